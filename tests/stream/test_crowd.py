"""Ten thousand idle streams on one process, and among them readers that take nothing and readers that have vanished."""

from __future__ import annotations

import itertools
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest

from interlock_core import hints
from interlock_core.settings import Settings
from readers import Readers
from stream.conftest import PROJECT, TYPE
from support.proxy import MakeProxy
from support.served import serve
from support.stream_process import StartStream
from support.waiting import wait_until

# opens thousands of streams, and waits for as long as a reader that has vanished is borne
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

IDLE, DEAF, VANISHED = 10_000, 50, 100
HINTS = 10_000
#: After 30 s in which a frame could not be sent a stream is dropped; the kernel gives its last bytes as long. And before that, what
#: lies between (this proxy, two kernels) has to be full.
STATED_SECONDS, FILLING_SECONDS = 30 + 30, 60
QUIET = "quiet/q@1"
LOUD = [f"loud{n}/" + "n" * 60 for n in range(10)]

Crowd = Callable[..., Readers]


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    with ExitStack() as stack:

        def gather(url: str, key: str, count: int, types: str, name: str, *, deaf: bool = False) -> Readers:
            readers = Readers(url, key, count, types, name, deaf=deaf)
            stack.callback(readers.close)
            readers.ask()
            return readers

        yield gather


def notify(connection: psycopg.Connection, *ready: tuple[str, str, int, float]) -> float:
    """One hint; when it was sent."""
    connection.execute("SELECT pg_notify('interlock', %s)", (hints.payload(PROJECT, ready=list(ready)),))
    return time.monotonic()


def test_b47_a_crowd_of_streams_is_carried_and_those_who_take_nothing_are_dropped(
    database_url: str, start_stream: StartStream, crowd: Crowd, make_proxy: MakeProxy
) -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > IDLE + 1000, "this machine's limit of descriptors is too small"
    process = start_stream(database_url)
    with serve(database_url, Settings()) as served, psycopg.connect(database_url, autocommit=True) as database:
        key = served.keys["task-worker"]
        empty = process.memory()
        idle = crowd(process.url, key, IDLE, f"{TYPE}@1", "idle")
        assert idle.ask()["ready"] == IDLE
        assert (process.memory() - empty) * 1024 / IDLE < 32
        loud = ",".join(f"{name}@1" for name in LOUD)
        healthy = crowd(process.url, key, 1, loud, "healthy")
        apart = crowd(process.url, key, 1, QUIET, "apart")
        proxy = make_proxy(process.url)
        proxy.held_bytes = 4096
        crowd(process.url, key, DEAF, loud, "deaf", deaf=True)
        crowd(proxy.url, key, VANISHED, loud, "vanished")
        wait_until(lambda: process.streams() == IDLE + 2 + DEAF + VANISHED, 60)
        crowded, memory = process.descriptors(), process.memory()
        proxy.black_hole()
        begun, late, most, gone = time.monotonic(), [], memory, False
        noise = [(f"{name}@1", "default", 200, 0.0) for name in LOUD]
        for number in itertools.count():
            if number % 100 == 0:  # a hint behind a hundred others
                apart.ask("reset")
                healthy.ask("reset")
                sent = notify(database, *noise, (QUIET, "default", 1, 0.0))
                late.append(wait_until(lambda: apart.ask()["first"], 10) - sent)
                wait_until(lambda: healthy.ask()["wakes"], 10)
                most = max(most, process.memory())
                gone = gone or process.streams() == IDLE + 2
                if number >= HINTS and gone:
                    break
                assert gone or time.monotonic() < begun + STATED_SECONDS + FILLING_SECONDS
            notify(database, *noise)
        assert max(late) < 1, late
        assert most - memory < 20
        few = 8  # connections to the database may have come
        wait_until(lambda: process.descriptors() <= crowded - DEAF - VANISHED + few, STATED_SECONDS)
        idle.ask("reset")
        sent = notify(database, (f"{TYPE}@1", "default", 2 * IDLE, 0.0))
        wait_until(lambda: idle.ask()["woken"] == IDLE, 30)  # nobody of the crowd was lost over it
        assert idle.ask()["ended"] == 0
