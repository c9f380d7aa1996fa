"""A machine that has no thread left: what was claimed waits for one, and nothing is held for ever by a worker that does not run it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from interlock.running import Loop, Threads
from interlock.threads import CallThreads
from sdk.live import Live
from support.waiting import wait_until


class Shortage:
    """While `on`, no thread whose name begins with `prefix` can be started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
        self.on = True
        self.refused = 0
        start = threading.Thread.start

        def refuse(thread: threading.Thread) -> None:
            if self.on and thread.name.startswith(prefix):
                self.refused += 1
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse)


def attempt(name: str) -> Any:
    return SimpleNamespace(task_id=name)


def test_sync_handlers_wait_for_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    shortage = Shortage(monkeypatch, "interlock-handler")
    ran: list[str] = []
    threads = Threads(2, lambda one: ran.append(one.task_id))
    threads.start([attempt("a"), attempt("b")])
    assert (ran, shortage.refused) == ([], 1)
    shortage.on = False
    threads.nudge()
    wait_until(lambda: sorted(ran) == ["a", "b"])
    threads.close()


def test_a_thread_that_is_there_takes_what_another_could_not(monkeypatch: pytest.MonkeyPatch) -> None:
    shortage = Shortage(monkeypatch, "interlock-handler-2")
    ran: list[str] = []
    threads = Threads(2, lambda one: ran.append(one.task_id))
    threads.start([attempt(str(n)) for n in range(5)])
    wait_until(lambda: ran == ["0", "1", "2", "3", "4"])
    assert shortage.refused > 0
    threads.close()


def test_async_handlers_wait_for_their_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    shortage = Shortage(monkeypatch, "interlock-loop")
    ran: list[str] = []
    loop = Loop(lambda one: ran.append(one.task_id))
    loop.start([attempt("a")])
    loop.start([attempt("b")])
    assert ran == []
    shortage.on = False
    loop.nudge()
    wait_until(lambda: ran == ["a", "b"])
    loop.close()


def test_a_call_that_was_refused_is_not_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    shortage = Shortage(monkeypatch, "interlock-call")
    calls = CallThreads(2)
    made: list[str] = []
    with pytest.raises(RuntimeError):
        calls.submit(lambda: made.append("refused"))
    shortage.on = False
    calls.submit(lambda: made.append("taken")).result(5)
    assert made == ["taken"]


def test_a_worker_runs_what_it_claimed_once_there_are_threads_again(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    shortage = Shortage(monkeypatch, "interlock-handler")
    worker = live.worker()

    @worker.handle(live.type, 1, effect_safety="non-idempotent")
    def run(inp: Any, ctx: Any) -> Any:
        return inp

    worker.start()
    task_id = live.submit(7)
    wait_until(lambda: shortage.refused > 1, 20)
    assert live.producer.get(task_id).status == "running"
    shortage.on = False
    task = live.wait(task_id)
    assert (task.status, task.result) == ("succeeded", 7)
    assert live.kinds(task_id) == ["submitted", "claimed", "succeeded"]
