"""Submit, run, read, wait: the SDK against the real service."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from interlock import (
    ApiError,
    OutcomeUnknown,
    Retry,
    Retryable,
    Submission,
    TaskCancelled,
    TaskContext,
    TaskFailed,
    TaskProducer,
    UnknownOutcome,
)
from sdk.isolated_handlers import Hostile
from sdk.live import Live
from support.proxy import MakeProxy
from support.waiting import wait_until


def test_a_task_goes_from_submission_to_result(live: Live) -> None:
    def hello(inp: Any, ctx: TaskContext) -> Any:
        assert ctx.effect_key("mail") == f"{ctx.task_id}/mail"
        return {"message": f"Hello, {inp['name']}!", "id": inp["id"] + 1, "tags": dict(ctx.tags), "attempt": ctx.attempt}

    live.start(hello)
    handle = live.producer.submit(
        live.type, 1, {"name": "Ada", "id": 2**53}, tags={"order": "17"}, idempotency_key=f"{live.type}-1"
    )
    assert not handle.deduplicated
    assert handle.result(timeout=20) == {"message": "Hello, Ada!", "id": 2**53 + 1, "tags": {"order": "17"}, "attempt": 1}
    task = handle.get()
    assert (task.status, task.settled, task.succeeded, task.input["id"]) == ("succeeded", True, True, 2**53)
    assert task.finished_at is not None
    assert task.finished_at.tzinfo is not None
    events = list(handle.journal())
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.kind for event in events] == ["submitted", "claimed", "succeeded"]
    assert [event.kind for event in live.producer.journal(task.id, after=1, page_size=1)] == ["claimed", "succeeded"]
    again = live.producer.submit(
        live.type, 1, {"id": 2**53, "name": "Ada"}, tags={"order": "17"}, idempotency_key=f"{live.type}-1"
    )
    assert (again.id, again.deduplicated) == (handle.id, True)
    with pytest.raises(ApiError) as conflict:
        live.producer.submit(live.type, 1, {"name": "Bob"}, idempotency_key=f"{live.type}-1")
    assert conflict.value.code == "IDEMPOTENCY_CONFLICT"


def test_async_handlers_share_a_loop_and_run_at_once(live: Live) -> None:
    together = asyncio.Barrier(5) if hasattr(asyncio, "Barrier") else None
    threads: set[int] = set()

    async def meet(inp: Any, ctx: TaskContext) -> int:
        threads.add(threading.get_ident())
        if together is not None:
            await asyncio.wait_for(together.wait(), 15)
        return int(inp)

    live.start(meet, max_concurrent=5)
    ids = [live.submit(number) for number in range(5)]
    assert [live.wait(task_id).result for task_id in ids] == [0, 1, 2, 3, 4]
    assert len(threads) == 1


def test_sync_handlers_run_at_once_up_to_the_limits(live: Live) -> None:
    together = threading.Barrier(3)
    lock = threading.Lock()
    now, most = 0, 0

    def meet(inp: Any, ctx: TaskContext) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        together.wait(15)
        with lock:
            now -= 1

    worker = live.worker(max_concurrent=10)
    worker.handle(live.type, 1, effect_safety="pure", max_concurrent=3)(meet)
    worker.start()
    ids = [live.submit() for _ in range(6)]
    assert {live.wait(task_id).status for task_id in ids} == {"succeeded"}
    assert most == 3


def test_results_of_every_end(live: Live) -> None:
    def end(inp: Any, ctx: TaskContext) -> None:
        if inp == "unknown":
            raise UnknownOutcome("sent, no answer")
        raise ValueError("bad input")

    live.start(end)
    failed = live.producer.submit(live.type, 1, "fail")
    with pytest.raises(TaskFailed, match="ValueError: bad input") as caught:
        failed.result(timeout=20)
    assert caught.value.task.failure is not None
    assert caught.value.task.failure.code == "ValueError"
    unknown = live.producer.submit(live.type, 1, "unknown")
    with pytest.raises(OutcomeUnknown, match="sent, no answer"):
        unknown.result(timeout=20)
    assert not unknown.get().settled
    later = live.producer.submit(live.type, 1, "later", delay=3600)
    assert later.task.waiting is not None
    assert later.task.waiting["reason"] == "not-due"
    with pytest.raises(TimeoutError, match="queued"):
        later.result(timeout=0.3)
    assert later.cancel("not needed").status == "cancelled"
    with pytest.raises(TaskCancelled):
        later.result(timeout=20)
    with pytest.raises(ApiError) as finished:
        failed.cancel()
    assert finished.value.code == "TASK_FINISHED"


def test_retries_keep_their_delay_and_count(live: Live) -> None:
    def flaky(inp: Any, ctx: TaskContext) -> Any:
        if ctx.attempt == 1:
            raise Retryable("not yet", after=0.3)
        if ctx.attempt == 2:
            raise ConnectionError("by policy")
        return [ctx.attempt, ctx.max_attempts]

    live.start(flaky, retry=Retry(max_attempts=4, initial_delay=0.1, on=(ConnectionError,)))
    task = live.wait(live.submit())
    assert task.result == [3, 4]
    assert live.kinds(task.id) == ["submitted", *["claimed", "retry-scheduled"] * 2, "claimed", "succeeded"]


def test_a_batch_is_stored_in_order_and_listed(live: Live) -> None:
    handles = live.producer.submit_many(
        [Submission(live.type, 1, {"n": number}, tags={"batch": live.type}, delay=3600) for number in range(120)]
        + [{"type": live.type, "schema_version": 1, "input": {"n": 120}, "delay": timedelta(hours=1)}]
    )
    assert [live.producer.get(handle.id).input["n"] for handle in (handles[0], handles[57], handles[120])] == [0, 57, 120]
    listed = list(live.producer.list(type=live.type, status=["queued", "running"], page_size=50))
    assert {task.id for task in listed} == {handle.id for handle in handles}
    assert len(listed) == 121
    assert len(list(live.producer.list(tag=f"batch:{live.type}", limit=70))) == 70
    assert list(live.producer.list(type=live.type, created_before=datetime(2020, 1, 1, tzinfo=UTC))) == []


def test_progress_and_logs_are_kept(live: Live) -> None:
    go = threading.Event()

    def work(inp: Any, ctx: TaskContext) -> None:
        ctx.log.info("begun with %s", inp, size=3)
        ctx.progress(50, "half")
        assert go.wait(15)
        ctx.log.warning("nearly \x00 done")
        ctx.progress(100, "all")

    live.start(work)
    task_id = live.submit("x")
    seen = wait_until(lambda: live.producer.get(task_id).progress, 15)
    assert (seen.percent, seen.message) == (50, "half")
    go.set()
    task = live.wait(task_id)
    assert task.progress is not None
    assert task.progress.percent == 100
    events = list(live.producer.journal(task_id))
    lines = [line for event in events if event.kind == "log" for line in event.data["lines"]]
    assert [line["message"] for line in lines] == ["begun with x", "nearly \ufffd done"]


def test_a_running_task_is_told_to_stop(live: Live) -> None:
    started = threading.Semaphore(0)

    def stop(inp: Any, ctx: TaskContext) -> None:
        started.release()
        assert ctx.wait_for_cancel(20)
        assert ctx.cancel_reason == "cancel"
        ctx.raise_if_cancelled()

    live.start(stop)
    task_id = live.submit()
    assert started.acquire(timeout=15)
    assert live.producer.cancel(task_id).cancel_requested
    assert live.wait(task_id).status == "cancelled"


@pytest.mark.parametrize(("safety", "status"), [("pure", "cancelled"), ("non-idempotent", "outcome-unknown")])
def test_a_running_coroutine_is_cancelled(live: Live, safety: str, status: str) -> None:
    started = threading.Event()

    async def wait(inp: Any, ctx: TaskContext) -> None:
        started.set()
        await asyncio.sleep(60)

    live.start(wait, effect_safety=safety)
    task_id = live.submit()
    assert started.wait(15)
    live.producer.cancel(task_id)
    assert live.wait(task_id).status == status


def test_a_timeout_stops_the_attempt_and_counts(live: Live) -> None:
    async def wait(inp: Any, ctx: TaskContext) -> str:
        assert ctx.deadline is not None
        assert ctx.seconds_left is not None
        if ctx.attempt == 1:
            await asyncio.sleep(60)
        return "second"

    live.start(wait)
    task = live.wait(live.submit(timeout=1, retry=Retry(max_attempts=2, initial_delay=0.1)))
    assert (task.result, task.attempts) == ("second", 1)
    assert "retry-scheduled" in live.kinds(task.id)


def test_b19_b26_a_result_that_cannot_be_stored_ends_the_task_at_once(live: Live) -> None:
    def work(inp: Any, ctx: TaskContext) -> Any:
        if inp == "large":
            return "x" * (256 * 1024 - 1)  # one byte more than the limit, its quotes counted
        if inp == "fits":
            return "x" * (256 * 1024 - 2)
        if inp == "error":
            raise ValueError("é" * 100_000 + "\udcff")
        return {"rows": [float("nan")]}

    live.start(work)
    large, fits, nan, error = (live.wait(live.submit(kind)) for kind in ("large", "fits", "nan", "error"))
    assert large.failure is not None
    assert (large.status, large.failure.code) == ("failed", "RESULT_TOO_LARGE")
    assert fits.status == "succeeded"
    assert nan.failure is not None
    assert nan.failure.code == "RESULT_NOT_STORABLE"
    assert "/rows/0" in nan.failure.message
    assert error.failure is not None
    assert error.failure.message.endswith("…[truncated]")
    for task in (large, nan, error):
        assert live.kinds(task.id).count("claimed") == 1
        assert task.id in {found.id for found in live.producer.list(type=live.type, status="failed")}
    assert wait_until(lambda: not live.spooled())


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_b26_a_result_that_raises_keeps_no_slot(live: Live, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    def give(inp: Any, ctx: TaskContext) -> Any:
        return inp if inp == "good" else Hostile(RuntimeError if inp == "error" else SystemExit)

    async def give_async(inp: Any, ctx: TaskContext) -> Any:
        return give(inp, ctx)

    live.start(give if kind == "sync" else give_async, max_concurrent=1)
    bad = [live.wait(live.submit(inp)) for inp in ("error", "exit")]
    assert [task.failure and task.failure.code for task in bad] == ["RESULT_NOT_STORABLE"] * 2
    assert live.wait(live.submit("good")).result == "good"
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [line for line in told if bad[0].id in line and "RESULT_NOT_STORABLE" in line]


def test_b26_a_result_that_the_service_cannot_store_is_in_the_log(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    live.start(lambda inp, ctx: {1: "one", "1": "another"})
    task = live.wait(live.submit())
    assert task.failure is not None
    assert task.failure.code == "RESULT_NOT_STORABLE"
    wait_until(lambda: f"task {task.id} failed: the service cannot store its result" in caplog.text)


def test_a_log_that_raises_keeps_no_slot(live: Live) -> None:
    def refuse(record: logging.LogRecord) -> bool:
        if record.getMessage().startswith("task "):
            raise RuntimeError("a filter with a fault")
        return True

    def fail(inp: Any, ctx: TaskContext) -> Any:
        if inp == "fail":
            raise ValueError("told")
        return inp

    log = logging.getLogger("interlock")
    live.start(fail, max_concurrent=1)
    log.addFilter(refuse)
    try:
        failed = live.wait(live.submit("fail"))
    finally:
        log.removeFilter(refuse)
    assert failed.failure is not None
    assert failed.failure.message == "told"
    assert live.wait(live.submit("good")).result == "good"


@pytest.mark.slow
def test_requests_for_each_task_stay_few_under_load(live: Live, make_proxy: MakeProxy) -> None:
    proxy = make_proxy(live.url)
    live.producer.submit_many([Submission(live.type, 1, number) for number in range(1000)])
    live.start(lambda inp, ctx: inp, through=proxy, max_concurrent=20)
    wait_until(lambda: not any(live.producer.list(type=live.type, status=["queued", "running"], limit=1)), 60)
    asked = [path for method, path in proxy.requests if path != "/v1/stream"]
    assert len(asked) <= 250, {path: asked.count(path) for path in set(asked)}
    assert all(task.result is None for task in live.producer.list(type=live.type, limit=1))


def test_a_wait_may_last_longer_than_the_bound_of_other_calls(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    producer = TaskProducer(url=live.url, key=live.service.key("task-producer"), timeout=0.5)
    task = producer.submit(live.type, 1, {})
    with pytest.raises(TimeoutError, match="queued"):
        producer.wait(task.id, timeout=1.5)
    assert "timed out" not in caplog.text
