"""The figures of idle streams: how many one process carries, what each costs, and how soon all of them are told."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psycopg

from interlock_core import hints
from readers import Readers
from template import ROOT

IDLE = 10_000
DEAF = 150
TYPE = "bench/idle@1"


@contextmanager
def serve_stream(database_url: str) -> Iterator[tuple[str, int]]:
    """A stream process by itself on the database: its address and its pid."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, str(ROOT / "functions" / "stream" / "serve.py"), "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(command, env={**os.environ, "INTERLOCK_SERVER_DATABASE_URL": database_url})
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(lambda: _answers(url))
        yield url, process.pid
    finally:
        process.terminate()
        process.wait(15)


def measure(service: dict[str, Any], _folder: Path) -> None:
    """Prints them."""
    with serve_stream(service["databaseUrl"]) as (url, pid), psycopg.connect(service["databaseUrl"], autocommit=True) as database:
        key, empty, began = service["keys"]["task-worker"], _memory(pid), time.monotonic()
        idle = Readers(url, key, IDLE, TYPE, "idle")
        ready = idle.ask()["ready"]
        opened, each = time.monotonic() - began, (_memory(pid) - empty) / max(1, ready)
        one = [_tell(database, service["project"], idle, 1) for _ in range(20)]
        cpu = _cpu(pid)
        everyone = [_tell(database, service["project"], idle, ready) for _ in range(5)]
        effort = (_cpu(pid) - cpu) / 5
        deaf = Readers(url, key, DEAF, TYPE, "deaf", deaf=True)
        deaf.ask()
        before, cpu = _memory(pid), _cpu(pid)
        time.sleep(20)
        print(f"idle streams of one process        {ready:8d}      opened in {opened:.0f} s, {each / 1024:.1f} KiB each")
        print(f"hint → the one it wakes            {sorted(one)[10] * 1000:8.0f} ms   slowest {max(one) * 1000:.0f} ms")
        told = f"slowest {max(everyone) * 1000:.0f} ms; {effort * 1000:.0f} ms of the process's CPU"
        print(f"hint → all of them                 {sorted(everyone)[2] * 1000:8.0f} ms   {told}")
        print(
            f"their rest                         {(_cpu(pid) - cpu) / 20:8.1%} of a core; memory {(_memory(pid) - before) / 2**20:+.1f} MiB"
        )
        deaf.close()
        idle.close()


def _tell(database: psycopg.Connection[Any], project: str, idle: Readers, count: int) -> float:
    """Seconds from a hint of so many tasks to the last of so many streams that it wakes."""
    idle.ask("reset")
    sent = time.monotonic()
    database.execute("SELECT pg_notify('interlock', %s)", (hints.payload(project, ready=[(TYPE, "default", count, 0.0)]),))
    _wait(lambda: idle.ask()["woken"] >= count)
    last: float = idle.ask()["last"]
    return last - sent


def _wait(condition: Any) -> None:
    end = time.monotonic() + 60
    while not condition():
        if time.monotonic() > end:
            raise SystemExit("the streams did not come")
        time.sleep(0.01)


def _answers(url: str) -> bool:
    try:
        with urlopen(f"{url}/readyz", timeout=5) as answer:  # noqa: S310 (an address on this machine)
            return bool(answer.status == 200)
    except OSError:
        return False


def _memory(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
