"""Handlers in processes of their own: leases live on, stops are hard, a crash costs one attempt."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import interlock
from interlock import Retry, TaskContext, isolation
from sdk import isolated_handlers as handlers
from sdk.live import LEASE, Live
from support.waiting import wait_until

# each test starts worker programs with child processes
pytestmark = pytest.mark.slow


def start(live: Live, fn: Callable[..., Any], **options: Any) -> interlock.TaskWorker:
    worker = live.worker(max_concurrent=2)
    worker.handle(live.type, 1, isolation="process", **{"effect_safety": "idempotent", "lease": LEASE, **options})(fn)
    worker.start()
    return worker


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_child_runs_one_attempt_after_the_other(live: Live) -> None:
    worker = start(live, handlers.tell)
    first, second = (live.wait(live.submit({"n": n})).result for n in range(2))
    assert first["pid"] == second["pid"] != os.getpid()
    assert (first["input"], second["input"], first["attempt"]) == ({"n": 0}, {"n": 1}, 1)
    assert "leaseToken" not in first["repr"].replace("'leaseToken': ''", "")
    task = live.producer.get(live.submit(None))
    assert live.wait(task.id).result["key"] == f"{task.id}/x"
    journal = list(live.producer.journal(task.id))
    assert "in a child" in str([event.data for event in journal if event.kind == "log"])
    assert "half" in str([event.data for event in journal if event.kind == "progress"])
    worker.drain()
    wait_until(lambda: gone(first["pid"]))


def test_contracts_and_signals_work_in_a_child(live: Live) -> None:
    contract = interlock.task(live.type, 1, input=handlers.Pair, output=int)
    worker = live.worker()
    worker.handle(contract, effect_safety="pure", isolation="process", lease=LEASE)(handlers.add)
    worker.start()
    assert live.producer.submit(contract, handlers.Pair(2, 3)).result(timeout=30) == 5
    refused = live.producer.submit(live.type, 1, {"left": "x"}).wait(timeout=30).failure
    assert refused is not None
    assert (refused.code, refused.details) == ("INPUT_NOT_VALID", {"pointer": "/left"})
    task_id = live.producer.submit(contract, handlers.Pair(-1, 0)).id
    wait_until(lambda: "retry-scheduled" in live.kinds(task_id), 20)


def test_native_code_that_holds_the_lock_keeps_its_lease(live: Live, tmp_path: Path) -> None:
    start(live, handlers.hold_everything, effect_safety="non-idempotent")
    task = live.wait(live.submit({"seconds": 3 * LEASE, "note": str(tmp_path / "note")}), 40)
    assert (task.status, task.result) == ("succeeded", "done")
    assert "lease-expired" not in live.kinds(task.id)


@pytest.mark.parametrize(("fn", "safety", "status"), [
    (handlers.hold_everything, "idempotent", "cancelled"),
    (handlers.spin, "non-idempotent", "outcome-unknown"),
])  # fmt: skip
def test_a_handler_that_does_not_stop_is_killed(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fn: Any, safety: str, status: str
) -> None:
    monkeypatch.setattr(isolation, "KILL_AFTER", 0.3)
    note = tmp_path / "note"
    start(live, fn, effect_safety=safety)
    task_id = live.submit({"seconds": 600, "note": str(note)})
    wait_until(lambda: note.exists() and note.read_text(), 20)
    live.producer.cancel(task_id)
    assert live.wait(task_id).status == status
    wait_until(lambda: gone(int(note.read_text())))


def test_a_frozen_process_holds_up_nobody_but_its_handler(live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads nothing, and an answer fills its pipe: leases are renewed all the same, and a stop ends it."""
    monkeypatch.setattr(isolation, "KILL_AFTER", 0.3)
    note = tmp_path / "note"
    start(live, handlers.spin)
    task_id = live.submit({"note": str(note)})
    wait_until(lambda: note.exists() and note.read_text(), 20)
    pid = int(note.read_text())
    os.kill(pid, signal.SIGSTOP)
    (child,) = [one for children in isolation._open for one in children._all if one.process.pid == pid]
    threading.Thread(target=child.send, args=(b"x" * 2**20,), daemon=True).start()
    wait_until(child._lock.locked)
    live.producer.cancel(task_id)
    assert live.wait(task_id).status == "cancelled"
    assert "lease-expired" not in live.kinds(task_id)
    wait_until(lambda: gone(pid))


def test_a_time_out_kills_too(live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "KILL_AFTER", 0.3)
    start(live, handlers.spin)
    task = live.wait(live.submit({"note": str(tmp_path / "note")}, timeout=1, retry=Retry(max_attempts=1)))
    assert task.failure is not None
    assert (task.status, task.failure.details["last"]["code"]) == ("failed", "ATTEMPT_TIMEOUT")


def test_a_handler_that_stops_when_asked_is_not_killed(live: Live, tmp_path: Path) -> None:
    note = tmp_path / "note"
    start(live, handlers.stop_well, effect_safety="non-idempotent")
    task_id = live.submit({"note": str(note)})
    wait_until(lambda: note.exists() and note.read_text(), 20)
    live.producer.cancel(task_id)
    assert live.wait(task_id).status == "cancelled"
    assert not gone(int(note.read_text()))


@pytest.mark.parametrize(("safety", "status"), [("idempotent", "succeeded"), ("non-idempotent", "outcome-unknown")])
def test_a_crash_costs_one_attempt(live: Live, tmp_path: Path, safety: str, status: str) -> None:
    start(live, handlers.crash_once, effect_safety=safety)
    task = live.wait(live.submit({"note": str(tmp_path / "note")}, retry=Retry(initial_delay=0)))
    assert task.status == status
    if status == "succeeded":
        assert (task.result, task.attempts) == (2, 1)
    else:
        assert task.failure is not None
        assert (task.failure.code, task.failure.details) == ("PROCESS_DIED", {"exitCode": -9})


def test_a_handler_may_have_children_of_its_own(live: Live) -> None:
    start(live, handlers.have_children)
    assert live.wait(live.submit(None), 60).result == [2, 4, 6]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_fork_of_a_child_ends_with_its_handler(live: Live) -> None:
    start(live, handlers.fork)
    assert [live.wait(live.submit(number)).result for number in range(2)] == [0, 0]


def test_a_result_that_cannot_be_read_does_not_cost_the_process(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    start(live, handlers.return_fault)
    task = live.wait(live.submit())
    assert task.failure is not None
    assert (task.status, task.failure.code) == ("failed", "RESULT_NOT_STORABLE")
    wait_until(lambda: "RESULT_NOT_STORABLE: the result cannot be read: SystemExit: no luck" in caplog.text)


def test_a_drain_ends_a_handler_that_goes_on(live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "KILL_AFTER", 0.3)
    note = tmp_path / "note"
    worker = start(live, handlers.spin)
    task_id = live.submit({"note": str(note)})
    wait_until(lambda: note.exists() and note.read_text(), 20)
    begun = time.monotonic()
    worker.drain(timeout=0.2)
    assert time.monotonic() - begun < 15
    assert live.producer.get(task_id).status == "queued"
    wait_until(lambda: gone(int(note.read_text())))


def test_what_cannot_run_in_a_child_is_refused(live: Live) -> None:
    with pytest.raises(ValueError, match="sync"):

        @live.worker().handle(live.type, 1, effect_safety="pure", isolation="process")
        async def run(inp: Any, ctx: TaskContext) -> None: ...

    worker = live.worker()
    worker.handle(live.type, 1, effect_safety="pure", isolation="process")(lambda inp, ctx: None)
    with pytest.raises(ValueError, match="top of a module"):
        worker.start()


PROGRAM = """
worker = TaskWorker(worker_id="isolated", spool=os.path.dirname(LOG) + "/spool", drain_timeout=5)

@worker.handle(TYPE, 1, effect_safety="idempotent", isolation="process", lease=2)
def run(inp, ctx):
    note(f"pid-{os.getpid()}")
    if inp == "stay":
        while True:
            time.sleep(0.01)
    return os.getpid()
"""


def test_a_program_without_a_guard_serves_once_and_leaves_nobody(live: Live) -> None:
    """A child imports the worker's program, and must not become a worker itself; it ends with the worker, however that ends."""
    process = live.process(PROGRAM)
    pid = live.wait(live.submit("x"), 40).result
    assert pid != process.process.pid
    assert len(list(live.client("operator").request("GET", "/v1/workers/isolated")["instances"])) == 1
    live.submit("stay")
    wait_until(lambda: process.notes().count(f"pid-{pid}") == 2, 20)
    process.kill()
    wait_until(lambda: gone(pid))
    process = live.process(PROGRAM)
    wait_until(lambda: any(one.startswith("pid-") for one in process.notes()), 40)
    process.signal(signal.SIGTERM)
    assert process.wait(30) == 0
    last = next(int(one[4:]) for one in process.notes() if one.startswith("pid-"))
    wait_until(lambda: gone(last))
