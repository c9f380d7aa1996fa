"""The end of a worker: B62, B63, B67, and drains of every kind."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import Any

import pytest

from interlock import ApiError, TaskContext, Unreachable
from interlock.client import Client
from interlock.ledger import Ledger
from sdk.live import Live
from support.proxy import MakeProxy
from support.waiting import wait_until

THREE = """
worker = TaskWorker(worker_id="b62", drain_timeout=1, spool=os.path.dirname(LOG) + "/spool")
@worker.handle(TYPE, 1, effect_safety="idempotent")
def work(inp, ctx):
    note("started")
    while not os.path.exists(LOG + ".go"): time.sleep(0.01)
    if inp == "return": return "returned"
    if inp == "raise": raise ValueError("raised")
    time.sleep(60)
@worker.handle(TYPE, 2, effect_safety="non-idempotent")
async def effect(inp, ctx):
    note("started")
    await asyncio.sleep(60)
"""


def test_b62_what_ends_during_the_drain_is_reported_and_the_rest_released(live: Live) -> None:
    process = live.process(THREE)
    returned, raised, busy = (live.submit(kind, lease=60) for kind in ("return", "raise", "busy"))
    effect = live.producer.submit(live.type, 2, None, lease=60).id
    process.wait_note("started", 4)
    process.signal(signal.SIGTERM)
    process.log.with_name("log.go").touch()
    assert live.wait(returned).result == "returned"
    failed = live.wait(raised)
    assert failed.failure is not None
    assert (failed.status, failed.failure.code) == ("failed", "ValueError")
    assert process.wait(20) == 0, process.output.read_text()
    assert process.notes()[-1] == "ended"
    # Given back, not left to the end of a lease of a minute; counted as no attempt.
    released = live.producer.get(busy)
    assert (released.status, released.attempts) == ("queued", 0)
    assert live.kinds(busy)[-1] == "released"
    unknown = live.producer.get(effect)
    assert unknown.failure is not None
    assert (unknown.status, unknown.failure.code) == ("outcome-unknown", "RELEASED_UNSAFE")
    found = live.client("operator").request("GET", "/v1/workers/b62")
    assert found["instances"] == []


def test_a_second_signal_cuts_the_drain_short(live: Live) -> None:
    process = live.process(THREE.replace("drain_timeout=1", "drain_timeout=600"))
    busy = live.submit("busy", lease=60)
    process.wait_note("started")
    process.signal(signal.SIGTERM)
    wait_until(lambda: "draining" in process.output.read_text())
    process.signal(signal.SIGINT)
    assert process.wait(20) == 0
    assert live.producer.get(busy).status == "queued"


def test_b63_what_a_claim_in_flight_brings_is_given_back(live: Live, make_proxy: MakeProxy) -> None:
    ran: list[Any] = []
    proxy = make_proxy(live.url)
    worker = live.start(lambda inp, ctx: ran.append(inp), through=proxy)
    wait_until(lambda: proxy.count("POST", "/v1/claims") >= 1)
    proxy.delay(1.0)
    task_id = live.submit(1, lease=60)
    live.wait_status(task_id, "running")
    drained = threading.Thread(target=worker.drain)
    drained.start()
    released = live.wait_status(task_id, "queued")
    assert released.attempts == 0
    proxy.restore()
    drained.join(20)
    claims = proxy.count("POST", "/v1/claims")
    assert ran == []
    assert live.kinds(task_id) == ["submitted", "claimed", "released"]
    assert proxy.count("POST", "/v1/claims") == claims
    live.start(lambda inp, ctx: inp)
    assert live.wait(task_id).result == 1


def test_b63_a_claim_whose_answer_never_comes_is_given_back(
    live: Live, make_proxy: MakeProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Any] = []
    proxy = make_proxy(live.url)
    worker = live.start(lambda inp, ctx: ran.append(inp), through=proxy)
    wait_until(lambda: proxy.count("POST", "/v1/claims") >= 1)
    request = Client.request

    def lose(self: Client, method: str, path: str, **options: Any) -> Any:
        answer = request(self, method, path, **options)
        if path == "/v1/claims" and answer["attempts"]:
            raise Unreachable("the answer was lost, every time")
        return answer

    monkeypatch.setattr(Client, "request", lose)
    assert worker._life is not None
    ledger = worker._life._ledger
    wait_until(lambda: not ledger.open_claims())  # one that was on its way would bring the task
    task_id = live.submit(1, lease=60)
    live.wait_status(task_id, "running")
    worker.drain()
    assert ran == []
    assert live.producer.get(task_id).status == "queued"


def test_drain_waits_for_a_handler_that_ends_in_time(live: Live) -> None:
    started = threading.Event()

    async def work(inp: Any, ctx: TaskContext) -> str:
        started.set()
        await asyncio.sleep(0.5)
        return "in time"

    worker = live.start(work)
    task_id = live.submit()
    assert started.wait(15)
    worker.drain()
    assert worker.join(1)
    assert live.producer.get(task_id).result == "in time"


def test_renewals_go_on_while_a_drain_waits(live: Live) -> None:
    started = threading.Event()

    def work(inp: Any, ctx: TaskContext) -> str:
        started.set()
        time.sleep(2.5)
        return "renewed"

    worker = live.start(work, effect_safety="non-idempotent", lease=1)
    task_id = live.submit(lease=1)
    assert started.wait(15)
    worker.drain()
    assert live.producer.get(task_id).result == "renewed"
    assert live.kinds(task_id) == ["submitted", "claimed", "succeeded"]


def test_a_worker_serves_for_the_length_of_a_block(live: Live) -> None:
    with live.worker(lambda inp, ctx: inp) as worker:
        assert live.wait(live.submit({"n": 1})).result == {"n": 1}
    assert worker.join(0)


async def test_a_worker_lives_inside_an_asyncio_program(live: Live) -> None:
    async with live.worker(lambda inp, ctx: inp):
        handle = await asyncio.to_thread(live.producer.submit, live.type, 1, "inside")
        assert await asyncio.to_thread(handle.result, 20) == "inside"


@pytest.mark.parametrize("fault", [NotImplementedError, ValueError])
def test_b67_a_worker_without_signals_warns_and_drains(
    live: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: type[Exception]
) -> None:
    def refuse(*_: object) -> None:
        raise fault("no signals here")

    monkeypatch.setattr(signal, "signal", refuse)
    worker = live.worker(lambda inp, ctx: inp)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert live.wait(live.submit("served")).result == "served"
    assert [record.message for record in caplog.records if "signals cannot be caught" in record.message] == [
        "signals cannot be caught here (no signals here): stop the worker with Ctrl-C or drain()"
    ]
    worker.drain()
    thread.join(20)
    assert not thread.is_alive()


CTRL_C = """
import signal
def refuse(*_): raise NotImplementedError("as on Windows")
signal.signal = refuse
worker = TaskWorker(worker_id="b67", spool=os.path.dirname(LOG) + "/spool")
@worker.handle(TYPE, 1, effect_safety="pure")
def work(inp, ctx):
    note("started")
    time.sleep(0.5)
    return "reported"
"""


def test_b67_ctrl_c_drains_where_it_cannot_be_caught(live: Live) -> None:
    process = live.process(CTRL_C)
    task_id = live.submit()
    process.wait_note("started")
    process.signal(signal.SIGINT)
    assert process.wait(20) == 0, process.output.read_text()
    assert live.producer.get(task_id).result == "reported"


def test_a_worker_that_the_service_refuses_says_so_at_once(live: Live) -> None:
    worker = live.worker(lambda inp, ctx: inp, key=live.service.key("task-producer"))
    with pytest.raises(ApiError) as refused:
        worker.run()
    assert refused.value.code == "SCOPE_DENIED"
    assert "task-worker" in str(refused.value)


def test_a_worker_starts_before_its_service_does(live: Live, make_proxy: MakeProxy, caplog: pytest.LogCaptureFixture) -> None:
    proxy = make_proxy(live.url)
    proxy.cut()
    worker = live.worker(lambda inp, ctx: inp, through=proxy)
    worker.start()
    task_id = live.submit("later")
    proxy.restore()
    assert live.wait(task_id, 30).result == "later"
    wait_until(lambda: live.client("operator").request("GET", f"/v1/workers/{worker.worker_id}")["handlers"], 30)
    wait_until(lambda: "registered again" in caplog.text)
    told = [record.getMessage() for record in caplog.records if "registered" in record.getMessage()]
    assert "the worker is not registered yet" in told[0]
    assert [line for line in told if "again" in line] == ["the worker is registered again"]


def test_no_heartbeat_follows_the_goodbye(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = live.start(lambda inp, ctx: inp)
    request = Client.request
    order: list[str] = []
    beating, gone = threading.Event(), threading.Event()

    def watch(self: Client, method: str, path: str, **options: Any) -> Any:
        if path == "/v1/attempts/heartbeat":
            beating.set()
            gone.wait(0.5)  # on its way for so long, unless the goodbye comes first
            order.append("heartbeat")
        if method == "DELETE":
            order.append("goodbye")
            gone.set()
        return request(self, method, path, **options)

    def beat_first(self: Ledger, deadline: float) -> bool:
        return beating.wait(10) and wait_until_idle(self, deadline)

    wait_until_idle = Ledger.wait_until_idle
    monkeypatch.setattr(Client, "request", watch)
    monkeypatch.setattr(Ledger, "wait_until_idle", beat_first)
    worker.drain()
    assert order == ["heartbeat", "goodbye"]


def test_a_running_worker_is_not_started_again(live: Live) -> None:
    worker = live.start(lambda inp, ctx: inp)
    with pytest.raises(RuntimeError, match="runs already"):
        worker.start()
