"""The stream's own figures, of this process: they say nothing of any project, and are asked of each process by itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from connection import Connection
from interlock_core.metrics import Family, write
from observer import Observer
from watcher import Watcher

if TYPE_CHECKING:
    from broadcaster import Broadcaster

KINDS = {Connection: "worker", Watcher: "task", Observer: "project"}


def figures(broadcaster: Broadcaster) -> str:
    """Prometheus text. A figure that this system does not tell is left out."""
    return write(_families(broadcaster))


def _families(broadcaster: Broadcaster) -> list[Family]:
    listener = broadcaster.listener
    kinds = [KINDS[type(stream)] for stream in broadcaster.streams]
    return [
        ("interlock_stream_open", "Open streams.", [({"kind": kind}, kinds.count(kind)) for kind in KINDS.values()]),
        ("interlock_stream_waits", "Calls that wait for a task's end.", [({}, len(broadcaster.waits))]),
        ("interlock_stream_watched_tasks", "Tasks with an open stream.", [({}, len(broadcaster.watches))]),
        ("interlock_stream_memory_bytes", "Resident memory of the process.", [({}, _memory())]),
        ("interlock_stream_descriptors", "Open descriptors of the process.", [({}, _descriptors())]),
        ("interlock_stream_listening", "1 while hints are heard.", [({}, int(listener.listening))]),
        (
            "interlock_stream_listen_lag_seconds",
            "From the last proof that hints are heard, its way through the database.",
            [({}, listener.lag_seconds)],
        ),
        (
            "interlock_stream_sessions_replaced_total",
            "Sessions for hints that were lost and replaced.",
            [({}, max(0, listener.sessions - 1))],
        ),
        ("interlock_stream_hints_total", "Hints heard.", [({}, broadcaster.hints)]),
    ]


def _memory() -> float | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        pass
    if sys.platform == "win32":
        return None
    import resource  # noqa: PLC0415 (not on every system)

    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * (1 if sys.platform == "darwin" else 1024)


def _descriptors() -> float | None:
    for place in ("/proc/self/fd", "/dev/fd"):
        try:
            return sum(1 for _ in Path(place).iterdir()) - 1  # the folder itself was open
        except OSError:
            continue
    return None
