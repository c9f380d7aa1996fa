"""Leases: B08, B09, B11, B15, B16, B18, and what a killed worker leaves behind."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import time
from typing import Any

import pytest

from interlock import Retry, TaskContext
from sdk.live import LEASE, Live
from support.proxy import MakeProxy
from support.waiting import wait_until


def test_b08_nothing_is_claimed_that_cannot_start(live: Live) -> None:
    held: list[int] = []
    ids = [live.submit() for _ in range(3)]

    def work(inp: Any, ctx: TaskContext) -> None:
        held.append(sum(task.status == "running" for task in live.producer.list(type=live.type)))
        time.sleep(0.8 * LEASE)

    live.start(work, max_concurrent=1)
    for task_id in ids:
        assert live.wait(task_id).status == "succeeded"
        assert live.kinds(task_id) == ["submitted", "claimed", "succeeded"]
    assert held == [1, 1, 1]


SPIN = """
worker = TaskWorker(worker_id="b09", max_concurrent=3, spool=os.path.dirname(LOG) + "/spool")
@worker.handle(TYPE, 1, effect_safety="non-idempotent")
def spin(inp, ctx):
    end = time.monotonic() + inp["seconds"]
    while time.monotonic() < end: pass
    return "spun"
@worker.handle(TYPE, 2, effect_safety="non-idempotent")
async def block(inp, ctx):
    time.sleep(inp["seconds"])
    return "blocked"
@worker.handle(TYPE, 3, effect_safety="non-idempotent")
def slow(inp, ctx):
    open(os.path.dirname(LOG) + "/slow_import.py", "w").write(f"import time; time.sleep({inp['seconds']})")
    sys.path.insert(0, os.path.dirname(LOG))
    import slow_import
    return "imported"
"""


def test_b09_handlers_that_spin_block_or_import_slowly_keep_their_leases(live: Live) -> None:
    seconds = {1: 3, 2: 3, 3: 2}  # leases of one second
    handles = [live.producer.submit(live.type, version, {"seconds": took}, lease=1) for version, took in seconds.items()]
    live.process(SPIN)
    assert [handle.result(timeout=40) for handle in handles] == ["spun", "blocked", "imported"]
    for handle in handles:
        assert live.kinds(handle.id) == ["submitted", "claimed", "succeeded"]
        attempt = handle.get().attempt
        assert attempt is not None
        assert attempt.number == 1


def test_b11_a_short_outage_of_renewals_stops_nobody(live: Live, make_proxy: MakeProxy) -> None:
    proxy = make_proxy(live.url)
    started, go = threading.Event(), threading.Event()
    stopped: list[str | None] = []

    def work(inp: Any, ctx: TaskContext) -> str:
        started.set()
        while not go.wait(0.02):
            if ctx.cancelled:
                stopped.append(ctx.cancel_reason)
                break
        return "done"

    live.start(work, through=proxy, effect_safety="non-idempotent")
    task_id = live.submit()
    assert started.wait(15)
    before = proxy.count("POST", "/v1/attempts/heartbeat")
    proxy.cut()
    time.sleep(0.6 * LEASE)  # the outage of the case has a length, not a state
    proxy.restore()
    wait_until(lambda: proxy.count("POST", "/v1/attempts/heartbeat") >= before + 3)
    go.set()
    assert live.wait(task_id).result == "done"
    assert stopped == []
    assert live.kinds(task_id) == ["submitted", "claimed", "succeeded"]


@pytest.mark.parametrize(
    ("safety", "doubt", "reason"),
    [
        ("non-idempotent", None, "lease-doubt"),
        ("idempotent", "cancel", "lease-doubt"),
        pytest.param("pure", None, None, marks=pytest.mark.slow),
    ],
)
def test_b11_a_long_outage_is_answered_as_declared(
    live: Live, make_proxy: MakeProxy, safety: str, doubt: str | None, reason: str | None
) -> None:
    proxy = make_proxy(live.url)
    started = threading.Event()
    seen: list[tuple[str | None, float]] = []
    cut_at = 0.0

    def work(inp: Any, ctx: TaskContext) -> str:
        started.set()
        ctx.wait_for_cancel(2 * LEASE)
        seen.append((ctx.cancel_reason, time.monotonic() - cut_at))
        return "late"

    live.start(work, through=proxy, effect_safety=safety, on_lease_doubt=doubt)
    task_id = live.submit()
    assert started.wait(15)
    cut_at = time.monotonic()
    proxy.black_hole()
    wait_until(lambda: seen, 20)
    assert seen[0][0] == reason
    assert seen[0][1] <= LEASE + 0.3 or reason is None
    proxy.restore()
    if safety == "non-idempotent":
        # The late report of an attempt that nobody else took over settles the task.
        assert live.wait_status(task_id, "succeeded").result == "late"
    else:
        assert wait_until(lambda: live.producer.get(task_id).status == "succeeded", 20)
    assert wait_until(lambda: not live.spooled())


@pytest.mark.parametrize("ends", ["in the outage", "after it"])
def test_after_an_outage_a_worker_claims_nothing_that_it_still_holds(live: Live, make_proxy: MakeProxy, ends: str) -> None:
    proxy = make_proxy(live.url)
    started, go = threading.Event(), threading.Event()
    ran: list[int] = []

    def work(inp: Any, ctx: TaskContext) -> int:
        ran.append(ctx.attempt)
        started.set()
        assert go.wait(30)
        return ctx.attempt

    live.start(work, through=proxy, effect_safety="pure")
    task_id = live.submit(lease=1, retry=Retry(initial_delay=0.1))
    assert started.wait(15)
    proxy.cut()
    if ends == "in the outage":
        go.set()
        wait_until(live.spooled, 20)
    live.wait_status(task_id, "queued")
    proxy.restore()
    if ends == "after it":
        live.wait_status(task_id, "running")
        go.set()
    task = live.wait(task_id)
    assert (task.result, task.attempts, ran) == (1, 0, [1])
    assert live.kinds(task_id).count("claimed") == 1
    assert live.wait(live.submit(lease=1)).result == 1  # it claims again


@pytest.mark.slow
def test_b15_renewals_outlive_the_garbage_collector(live: Live) -> None:
    done = threading.Event()

    def collect() -> None:
        while not done.wait(0.01):
            gc.collect()

    async def work(inp: Any, ctx: TaskContext) -> str:
        await asyncio.sleep(10 * LEASE)
        return "whole"

    collector = threading.Thread(target=collect)
    gc.freeze()  # what hundreds of other tests have made is not of this one's collections
    live.start(work)
    task_id = live.submit()
    collector.start()
    try:
        assert live.wait(task_id, 60).result == "whole"
    finally:
        done.set()
        collector.join()
        gc.unfreeze()
    assert live.kinds(task_id) == ["submitted", "claimed", "succeeded"]


def test_b15_a_fault_inside_the_renewal_is_survived(
    live: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from interlock.renewal import Renewal

    beats: list[int] = []
    beat = Renewal._beat

    def fail_once(self: Renewal, *arguments: Any) -> None:
        beats.append(1)
        if len(beats) == 1:
            raise ZeroDivisionError("a defect of ours")
        beat(self, *arguments)

    monkeypatch.setattr(Renewal, "_beat", fail_once)
    live.start(lambda inp, ctx: ctx.wait_for_cancel(1.7 * LEASE))
    task_id = live.submit()
    assert live.wait(task_id).result is False
    assert live.kinds(task_id) == ["submitted", "claimed", "succeeded"]
    assert "renewing failed unexpectedly" in caplog.text


def test_b16_a_second_process_of_a_worker_leaves_the_first_alone(live: Live) -> None:
    started, go = threading.Event(), threading.Event()

    def work(inp: Any, ctx: TaskContext) -> str:
        started.set()
        assert go.wait(20)
        return "first"

    def refuse(inp: Any, ctx: TaskContext) -> str:
        return "second"

    first = live.start(work, spool=None, max_concurrent=1)
    task_id = live.submit()
    assert started.wait(15)
    second = live.start(refuse, spool=None)
    assert second.worker_id == first.worker_id
    assert live.wait(live.submit()).result == "second"
    found = live.client("operator").request("GET", f"/v1/workers/{first.worker_id}")
    assert {item["instanceId"] for item in found["instances"]} == {first.instance_id, second.instance_id}
    go.set()
    assert live.wait(task_id).result == "first"
    assert live.kinds(task_id) == ["submitted", "claimed", "succeeded"]


CRASH = """
worker = TaskWorker(worker_id="b18", spool=os.path.dirname(LOG) + "/spool")
@worker.handle(TYPE, 1, effect_safety="pure")
def crash(inp, ctx):
    note("started")
    if inp != "wait": os._exit(7)
    time.sleep(60)
"""


@pytest.mark.slow
def test_b18_a_task_that_kills_its_worker_is_given_up(live: Live) -> None:
    task_id = live.submit(lease=1, retry=Retry(max_attempts=3, initial_delay=0.1))
    for lives in range(1, 4):
        process = live.process(CRASH)
        assert process.wait(30) == 7, process.output.read_text()
        assert len(process.notes()) == 1
        assert live.kinds(task_id).count("claimed") == lives
    last = live.process(CRASH)
    task = live.wait(task_id)
    assert task.failure is not None
    assert (task.status, task.failure.code) == ("failed", "ATTEMPTS_EXHAUSTED")
    assert task.failure.details["last"]["code"] == "LEASE_EXPIRED"
    assert last.notes() == []


def test_b18_a_cancelled_task_is_not_run_again_after_a_crash(live: Live) -> None:
    process = live.process(CRASH)
    task_id = live.submit("wait", lease=1)
    process.wait_note("started")
    live.producer.cancel(task_id)
    process.kill()
    idle = live.process(CRASH)
    assert live.wait(task_id).status == "cancelled"
    assert idle.notes() == []


HOLD = """
worker = TaskWorker(worker_id="hold", spool=os.environ["SPOOL"])
@worker.handle(TYPE, 1, effect_safety=os.environ["SAFETY"])
def hold(inp, ctx):
    note("started")
    time.sleep(0.2)
    if os.environ.get("DIE") == "yes":
        # The outcome is on disk, and nothing of it was sent: the worst instant for a crash.
        from interlock.client import Client
        Client.request = lambda *a, **k: os._exit(9) if "complete" in a[2] else {}
    return "from " + os.environ["NAME"]
"""


@pytest.mark.slow
def test_a_killed_workers_task_moves_on_and_its_late_outcome_is_dropped(live: Live) -> None:
    spool = str(live.folder / "spool-9")
    dying = live.process(HOLD, SPOOL=spool, SAFETY="idempotent", NAME="first", DIE="yes")
    task_id = live.submit(lease=1, retry=Retry(initial_delay=0.1))
    assert dying.wait(30) == 9, dying.output.read_text()
    assert len(live.spooled()) == 1
    heir = live.process(HOLD, SPOOL=str(live.folder / "spool-8"), SAFETY="idempotent", NAME="second")
    assert live.wait(task_id).result == "from second"
    heir.signal(signal.SIGTERM)
    assert heir.wait() == 0
    again = live.process(HOLD, SPOOL=spool, SAFETY="idempotent", NAME="third")
    assert wait_until(lambda: not live.spooled(), 20)
    assert "is no longer current" in again.output.read_text()
    assert live.wait(task_id).result == "from second"
    assert live.kinds(task_id)[-1] == "late-report"


@pytest.mark.slow
def test_a_killed_workers_outcome_settles_a_task_that_nobody_may_repeat(live: Live) -> None:
    spool = str(live.folder / "spool-9")
    dying = live.process(HOLD, SPOOL=spool, SAFETY="non-idempotent", NAME="first", DIE="yes")
    task_id = live.submit(lease=1)
    assert dying.wait(30) == 9, dying.output.read_text()
    idle = live.process(HOLD, SPOOL=str(live.folder / "spool-8"), SAFETY="non-idempotent", NAME="second")
    assert live.wait_status(task_id, "outcome-unknown").failure is not None
    live.process(HOLD, SPOOL=spool, SAFETY="non-idempotent", NAME="third")
    assert live.wait_status(task_id, "succeeded").result == "from first"
    assert idle.notes() == []
    assert wait_until(lambda: not live.spooled(), 20)


STOPPED = """
worker = TaskWorker(worker_id="stopped", spool=os.path.dirname(LOG) + "/spool")
@worker.handle(TYPE, 1, effect_safety="pure")
def work(inp, ctx):
    note("started")
    while not os.path.exists(LOG + ".go"): time.sleep(0.01)
    return ctx.cancel_reason
"""


@pytest.mark.slow
def test_a_process_that_stood_still_for_four_leases_takes_them_up_again(live: Live) -> None:
    """Its task lies in the queue again by then, and its own claims must not take it from the attempt that runs here."""
    process = live.process(STOPPED)
    task_id = live.submit(lease=1, retry=Retry(initial_delay=0.1))
    process.wait_note("started")
    process.signal(signal.SIGSTOP)
    time.sleep(4)  # the case is a length of time
    live.wait_status(task_id, "queued")
    process.signal(signal.SIGCONT)
    wait_until(lambda: live.producer.get(task_id).status == "running")
    process.log.with_name("log.go").touch()
    assert live.wait(task_id).result is None
    assert live.producer.get(task_id).attempts == 0
    assert process.notes() == ["started"]
