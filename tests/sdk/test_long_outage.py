"""A task of an hour, and a service that is away for ten minutes of it, on clocks that the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interlock import TaskContext, TaskProducer, TaskWorker
from interlock import clock as sdk_clock
from support.clock import Clock
from support.dev_service import DevService
from support.proxy import MakeProxy
from support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

HOUR, STEP, LEASE = 3600.0, 15.0, 60.0
AWAY = range(1500, 2100)  # seconds of the hour


class Time:
    """The clocks of the service and of the worker, moved together; whoever waits for an instant looks again."""

    def __init__(self, service_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        self._service = service_clock
        self._shift = 0.0
        real = sdk_clock.now
        monkeypatch.setattr(sdk_clock, "now", lambda: real() + self._shift)

    def advance(self, seconds: float, worker: TaskWorker) -> None:
        self._service.advance(seconds)
        self._shift += seconds
        assert worker._life is not None
        renewal, ledger = worker._life._renewal, worker._life._ledger
        for condition in (renewal._changed, renewal._watch_changed, ledger.changed):
            with condition:
                condition.notify_all()


@pytest.fixture
def time_moved(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Time]:
    with monkeypatch.context() as patch:
        yield Time(clock, patch)


@pytest.mark.parametrize(("fault", "safety"), [("killed", "pure"), ("cut off", "pure"), ("cut off", "non-idempotent")])
def test_ten_minutes_without_the_service_cost_an_hours_task_nothing(
    service: DevService, time_moved: Time, make_proxy: MakeProxy, tmp_path: Path, fault: str, safety: Any
) -> None:
    """The lease lapses, is settled by the sweep and, where that is safe, lies in the queue again: whoever returns first is its holder."""
    proxy = make_proxy(service.url)
    ran: list[int] = []

    def work(inp: Any, ctx: TaskContext) -> str:
        ran.append(ctx.attempt)
        end = sdk_clock.now() + HOUR
        while sdk_clock.now() < end and not ctx.wait_for_cancel(0.005):
            pass
        return ctx.cancel_reason or "whole"

    worker = TaskWorker(
        worker_id="hour",
        max_concurrent=4,
        url=proxy.url,
        key=service.key("task-worker"),
        spool=tmp_path / "spool",
        drain_timeout=5,
    )
    worker.handle("demo/hour", effect_safety=safety, on_lease_doubt="finish", lease=LEASE)(work)
    producer = TaskProducer(service.url, service.key("task-producer"))
    task_id = producer.submit("demo/hour").id
    worker.start()
    wait_until(lambda: ran, 20)
    assert worker._life is not None
    [attempt] = worker._life._ledger.held.values()
    lapsed = "queued" if safety == "pure" else "outcome-unknown"
    for second in range(0, int(HOUR), int(STEP)):
        if second == AWAY.start:
            proxy.cut()  # also where the service dies: the worker is to come back after the lease's end was seen
            if fault == "killed":
                service.kill()
        if second == AWAY.stop:
            assert attempt.doubted
            if fault == "killed":
                service.restart()
            wait_until(lambda: producer.get(task_id).status == lapsed, 30)
            proxy.restore()
        time_moved.advance(STEP, worker)
        if second not in AWAY:
            wait_until(lambda: sdk_clock.now() - attempt.renewed_at < LEASE / 2, 40, 0.005)
    task = producer.wait(task_id, 30)
    assert (task.status, task.result, task.attempts) == ("succeeded", "whole", 0)
    assert task.attempt is not None
    assert task.attempt.number == 1
    assert ran == [1]
    kinds = [event.kind for event in producer.journal(task_id)]
    assert kinds.count("claimed") == 1
    assert kinds.count("lease-recovered") == 1
    worker.drain(timeout=1)
    producer.close()
