"""Lost answers, outages, streams that die, disks that fill: the worker goes on, and nothing is lost or done twice."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from interlock import ApiError, Retryable, Submission, TaskContext, clock
from interlock import life as life_module
from interlock import spool as spool_module
from interlock import stream as stream_module
from interlock.attempt import Attempt
from interlock.http_port import HttpPort
from interlock.port import ChildRequest, PortRefused
from sdk.conftest import Answer, ScriptedServer, Seen
from sdk.live import Live
from support.proxy import MakeProxy
from support.waiting import wait_until


@pytest.mark.parametrize("path", ["/v1/claims", "/v1/attempts/complete", "/v1/attempts/heartbeat", "/v1/workers/*"])
def test_b64_a_lost_answer_is_asked_for_again(live: Live, make_proxy: MakeProxy, path: str) -> None:
    proxy = make_proxy(live.url)
    ran: list[Any] = []

    def work(inp: Any, ctx: TaskContext) -> Any:
        ran.append(inp)
        ctx.wait_for_cancel(1.0 if path.endswith("heartbeat") else 0)
        return inp

    lost = proxy.drop_next_answer("PUT" if "workers" in path else "POST", path)
    task_id = live.submit(1)
    live.start(work, through=proxy)
    assert live.wait(task_id).result == 1
    lost.wait()
    assert ran == [1]
    assert live.kinds(task_id) == ["submitted", "claimed", "succeeded"]
    assert wait_until(lambda: not live.spooled())


def test_b64_a_lost_answer_to_a_submission_makes_one_task(live: Live, make_proxy: MakeProxy) -> None:
    proxy = make_proxy(live.url)
    from interlock import TaskProducer

    with TaskProducer(proxy.url, live.service.key("task-producer")) as producer:
        lost = proxy.drop_next_answer("POST", "/v1/tasks")
        handle = producer.submit(live.type, 1, {})
        lost.wait()
        assert handle.deduplicated
        lost = proxy.drop_next_answer("POST", "/v1/tasks/batch")
        handles = producer.submit_many([Submission(live.type, 1, number) for number in range(10)])
        lost.wait()
    listed = {task.id for task in live.producer.list(type=live.type)}
    assert listed == {handle.id, *(item.id for item in handles)}
    assert len(listed) == 11


def test_outcomes_of_an_outage_are_kept_on_disk_and_sent_after_it(
    live: Live, make_proxy: MakeProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life_module, "FLUSH", 1.0)
    proxy = make_proxy(live.url)
    go = threading.Event()
    started = threading.Semaphore(0)

    def work(inp: Any, ctx: TaskContext) -> Any:
        started.release()
        assert go.wait(20)
        return inp

    worker = live.start(work, through=proxy, max_concurrent=3)
    ids = [live.submit(number, lease=60) for number in range(3)]
    for _ in ids:
        assert started.acquire(timeout=15)
    proxy.cut()
    go.set()
    saved = wait_until(lambda: len(live.spooled()) >= 1 and live.spooled(), 20)
    assert saved
    worker.drain(timeout=0)  # the process ends in the middle of the outage
    assert live.spooled()
    proxy.restore()
    live.start(work, spool=worker._spool_folder)
    assert [live.wait(task_id).result for task_id in ids] == [0, 1, 2]
    assert all(live.kinds(task_id) == ["submitted", "claimed", "succeeded"] for task_id in ids)
    assert wait_until(lambda: not live.spooled())


def test_b61_on_a_full_disk_outcomes_go_directly_and_no_more_is_claimed(
    live: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = spool_module.write_and_sync
    full = threading.Event()

    def fill(path: Any, data: bytes) -> None:
        if full.is_set():
            raise OSError(28, "No space left on device")
        write(path, data)

    monkeypatch.setattr(spool_module, "write_and_sync", fill)

    def work(inp: Any, ctx: TaskContext) -> Any:
        assert go.wait(20)
        return inp

    go = threading.Event()
    live.start(work, max_concurrent=1)
    direct = live.submit("direct")
    left = live.submit("later")  # due when the first one's report goes out: not even the claim beside that may take it
    full.set()
    go.set()
    assert live.wait(direct).result == "direct"
    assert [record.levelno for record in caplog.records if "NO MORE WORK IS CLAIMED" in record.message] == [logging.ERROR]
    with pytest.raises(TimeoutError):
        live.producer.wait(left, 2.5)
    full.clear()
    assert live.wait(left).result == "later"


@pytest.mark.parametrize("fault", ["cut", "black hole"])
def test_b52_without_its_stream_a_worker_polls_and_reopens(
    live: Live, make_proxy: MakeProxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    caplog.set_level(logging.INFO, logger="interlock")
    proxy = make_proxy(live.url)
    monkeypatch.setattr(stream_module, "SILENCE", 2.0)
    config = {"streamUrl": proxy.url, "pollSeconds": 1}
    request = stream_module.Client.request

    def send_stream_elsewhere(self: Any, method: str, path: str, **options: Any) -> Any:
        answer = request(self, method, path, **options)
        return {**answer, **config} if path == "/v1/config" and self.kind == "task-worker" else answer

    monkeypatch.setattr(stream_module.Client, "request", send_stream_elsewhere)
    live.start(lambda inp, ctx: inp)
    wait_until(lambda: proxy.count("GET", "/v1/stream") == 1)
    assert live.wait(live.submit(1)).result == 1
    if fault == "cut":
        proxy.cut()
    else:
        proxy.black_hole()
    assert live.wait(live.submit(2), 12).result == 2  # found by polling
    proxy.restore()
    wait_until(lambda: proxy.count("GET", "/v1/stream") >= 2, 15)
    assert live.wait(live.submit(3)).result == 3
    wait_until(lambda: "the stream is back" in caplog.text)
    told = [record.getMessage() for record in caplog.records]
    assert told.count("the stream is back") == 1
    assert any("polling meanwhile" in line for line in told[: told.index("the stream is back")])


def test_b54_a_stream_that_drops_at_once_is_reopened_ever_more_slowly(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    from interlock.stream import Stream

    opened: list[str] = []
    pauses: list[float] = []

    def drop(self: Stream, url: str) -> None:
        opened.append(url)
        self._on_ready()
        raise stream_module.Unreachable("dropped at once")

    def note(self: Stream, seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) >= 12:
            self._closing.wait()

    monkeypatch.setattr(Stream, "_follow", drop)
    monkeypatch.setattr(Stream, "_pause", note)
    live.start(lambda inp, ctx: inp)
    wait_until(lambda: len(pauses) >= 12, 20)
    assert len(opened) == 12
    assert pauses[0] <= 2
    assert all(3 <= pause <= 30 for pause in pauses[6:12])


def test_a_wake_finds_work_at_once_and_delays_are_kept(live: Live) -> None:
    live.start(lambda inp, ctx: (_ for _ in ()).throw(Retryable(after=1)) if ctx.attempt == 1 else ctx.attempt)
    assert live.wait(live.submit(delay=1), 15).result == 2


def test_b60_reports_survive_whatever_a_gateway_answers(live: Live, scripted: ScriptedServer) -> None:
    """A gateway of the worst kind stands between the worker and the service, for its reports."""
    upstream = live.client("task-worker")
    bad = [
        Answer(429, b""),
        Answer(503, b"", {"retry-after": "-5"}),
        Answer(502, b"<html>no</html>"),
        Answer(200, b"<html>hi</html>"),
    ]
    paths = {"claims": "/v1/claims", "complete": "/v1/attempts/complete", "heartbeat": "/v1/attempts/heartbeat"}

    def forward(seen: Seen) -> Answer:
        path = seen.path.partition("?")[0]
        return Answer(200, upstream.request(seen.method, path, content=seen.body or None))

    scripted.answer("PUT", f"/v1/workers/{live.type.replace('/', '-')}", *bad[:1], forward)
    scripted.answer("GET", "/v1/config", Answer(200, {"streamUrl": "http://127.0.0.1:9", "pollSeconds": 1, "limits": {}}))
    for path in paths.values():
        scripted.answer("POST", path, *bad, forward)
    ids = [live.submit(number) for number in range(3)]
    live.start(lambda inp, ctx: ctx.wait_for_cancel(0.2) or inp, url=scripted.url)
    assert [live.wait(task_id, 40).result for task_id in ids] == [0, 1, 2]
    assert all(live.kinds(task_id) == ["submitted", "claimed", "succeeded"] for task_id in ids)
    assert wait_until(lambda: not live.spooled())


def test_a_report_that_is_refused_for_good_does_not_hold_the_others(live: Live, scripted: ScriptedServer) -> None:
    upstream = live.client("task-worker")
    refusal = {"code": "INVALID_REQUEST", "status": 400, "retryable": False, "detail": "not this one"}

    def forward(seen: Seen) -> Answer:
        if seen.path == "/v1/attempts/complete" and b'"poison"' in seen.body:
            return Answer(400, refusal)
        return Answer(200, upstream.request(seen.method, seen.path.partition("?")[0], content=seen.body or None))

    scripted.answer("PUT", f"/v1/workers/{live.type.replace('/', '-')}", forward)
    scripted.answer("GET", "/v1/config", Answer(200, {"streamUrl": "http://127.0.0.1:9", "pollSeconds": 1, "limits": {}}))
    for path in ("/v1/claims", "/v1/attempts/complete", "/v1/attempts/heartbeat"):
        scripted.answer("POST", path, forward)
    together = threading.Barrier(8)

    def work(inp: Any, ctx: TaskContext) -> Any:
        together.wait(15)
        return "poison" if inp == 5 else inp

    live.start(work, url=scripted.url, max_concurrent=8)
    ids = [live.submit(number, lease=60) for number in range(8)]
    assert [live.wait(task_id).result for task_id in ids[:5] + ids[6:]] == [0, 1, 2, 3, 4, 6, 7]
    kept = wait_until(lambda: [path for path in live.spooled() if path.suffix == ".reason"])
    assert "not this one" in kept[0].read_text()
    assert kept[0].parent.name == "quarantine"
    assert wait_until(lambda: len(live.spooled()) == 2)


def through_faults(live: Live, scripted: ScriptedServer, *faulty: str) -> list[str]:
    """The scripted server in front of the service; calls of these paths are carried out, and the first two answers are lost to faults."""
    upstream = live.client("task-worker")
    fault = {"code": "INTERNAL", "status": 500, "retryable": False, "detail": "a defect"}
    failed: list[str] = []

    def forward(seen: Seen) -> Answer:
        path = seen.path.partition("?")[0]
        answer = upstream.request(seen.method, path, content=seen.body or None)
        name = path.rpartition("/")[2]
        if name in faulty and failed.count(name) < 2:
            failed.append(name)
            return Answer(500, fault)
        return Answer(200, answer)

    scripted.answer("PUT", f"/v1/workers/{live.type.replace('/', '-')}", forward)
    scripted.answer("GET", "/v1/config", Answer(200, {"streamUrl": "http://127.0.0.1:9", "pollSeconds": 1, "limits": {}}))
    for path in ("/v1/claims", "/v1/attempts/complete", "/v1/attempts/heartbeat", "/v1/attempts/release"):
        scripted.answer("POST", path, forward)
    return failed


def test_a_fault_of_the_service_is_no_refusal_of_an_outcome(live: Live, scripted: ScriptedServer) -> None:
    """It was taken, though the answer is a 500 that is not to be repeated: the repeat finds that out, and nothing is quarantined."""
    failed = through_faults(live, scripted, "complete")
    live.start(lambda inp, ctx: inp, url=scripted.url, effect_safety="non-idempotent")
    assert live.wait(live.submit(7)).result == 7
    wait_until(lambda: len(failed) == 2 and not live.spooled(), 20)


def test_what_a_claim_leased_behind_a_fault_is_given_back(
    live: Live, scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.exchange.KEY_PAUSE", 0.5)
    task_id = live.submit(7, lease=60)
    failed = through_faults(live, scripted, "claims")
    live.start(lambda inp, ctx: inp, url=scripted.url, effect_safety="non-idempotent")
    assert live.wait(task_id).result == 7  # long before its first lease has run out
    assert live.kinds(task_id) == ["submitted", "claimed", "released", "claimed", "released", "claimed", "succeeded"]
    assert failed == ["claims", "claims"]


def test_a_fault_of_the_service_is_no_refusal_of_a_runs_call() -> None:
    """One that goes on ends the run in the end."""
    answers: list[int] = [500, 500, 200]
    pauses: list[float] = []

    def request(*_: Any, **__: Any) -> dict[str, Any]:
        status = answers.pop(0)
        if status == 500:
            raise ApiError(code="INTERNAL", status=500, detail="a defect", retryable=False)
        return {"name": "s", "taskId": "t-2"}

    attempt: Any = SimpleNamespace(id="a", task_id="t", ids=b'{"fence":1', stop_reason=None, wait_stop=pauses.append)
    client: Any = SimpleNamespace(request=request)
    port = HttpPort(client, attempt)
    child = ChildRequest("c", {"type": "demo/child", "schemaVersion": 1, "input": 1})
    assert port.spawn_child(child) == "t-2"
    assert len(pauses) == 2
    assert max(pauses) < 2
    answers[:] = [500] * 50
    with pytest.raises(PortRefused, match="a defect"):
        port.spawn_child(child)
    assert len(answers) == 50 - 11


def test_outcomes_wait_for_a_key_that_is_accepted(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    operator = live.client("operator")
    made = operator.request("POST", "/v1/keys", json={"name": "short-lived", "kind": "task-worker"})
    started, go = threading.Event(), threading.Event()

    def work(inp: Any, ctx: TaskContext) -> str:
        started.set()
        assert go.wait(20)
        return "kept"

    monkeypatch.setattr(life_module, "FLUSH", 1.0)
    worker = live.start(work, key=made["key"])
    task_id = live.submit(lease=60)
    assert started.wait(15)
    operator.request("POST", f"/v1/keys/{made['id']}/revoke")

    def refused() -> bool:
        try:
            worker._life._client.request("GET", "/v1/config", timeout=2)  # type: ignore[union-attr]
        except ApiError as error:
            return error.code == "KEY_REVOKED"
        return False

    wait_until(refused, 10, 0.2)
    go.set()
    assert wait_until(live.spooled)
    worker.drain(timeout=0)
    assert live.spooled()
    live.start(work, spool=worker._spool_folder)
    assert live.wait(task_id).result == "kept"


def test_b68_no_log_of_a_worker_shows_a_key_or_a_token(
    live: Live, make_proxy: MakeProxy, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life_module, "FLUSH", 1.0)
    caplog.set_level(logging.DEBUG)
    tokens: list[str] = []
    seen = Attempt.__init__

    def note(self: Attempt, claim: Any, *arguments: Any) -> None:
        tokens.append(claim["leaseToken"])
        seen(self, claim, *arguments)
        assert claim["leaseToken"] not in repr(self)

    monkeypatch.setattr(Attempt, "__init__", note)
    proxy = make_proxy(live.url)

    def work(inp: Any, ctx: TaskContext) -> Any:
        assert live.service.key("task-worker") not in repr(ctx) + repr(vars(ctx.log))
        ctx.log.info("working on %s", inp)
        if inp == "fail":
            raise ValueError("on purpose")
        return inp

    worker = live.start(work, through=proxy)
    proxy.drop_next_answer("POST", "/v1/attempts/complete")
    for inp in ("fine", "fail"):
        live.wait(live.submit(inp))
    proxy.cut()
    worker.drain(timeout=0)
    texts = [record.getMessage() + str(record.exc_text) + repr(worker) for record in caplog.records]
    assert len(tokens) >= 2
    for secret in (*tokens, *(token.split(".")[-1] for token in tokens), live.service.key("task-worker")):
        assert not [text for text in texts if secret in text]


@pytest.mark.slow
def test_b53_a_quiet_stream_behind_a_slow_proxy_is_left_alone(
    live: Live, make_proxy: MakeProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = make_proxy(live.url)
    monkeypatch.setattr(stream_module, "SILENCE", 22.0)  # one keep-alive interval, and the delay of the proxy
    lost: list[float] = []
    monkeypatch.setattr(life_module.Life, "_stream_lost", lambda self: lost.append(clock.now()))
    request = stream_module.Client.request

    def lead_through_proxy(self: Any, method: str, path: str, **options: Any) -> Any:
        answer = request(self, method, path, **options)
        return {**answer, "streamUrl": proxy.url} if path == "/v1/config" else answer

    monkeypatch.setattr(stream_module.Client, "request", lead_through_proxy)
    worker = live.start(lambda inp, ctx: inp)
    wait_until(lambda: worker._life is not None and worker._life._stream.connected, 15)
    proxy.delay(5)
    begun = clock.now()
    wait_until(lambda: clock.now() - begun > 60 or lost, 90, 0.5)
    assert lost == []
