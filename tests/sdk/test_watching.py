"""Watching a task: every event once and in order, by stream or without, whatever breaks."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from interlock import ApiError, Client, JournalEvent, TaskContext, TaskProducer, Watch
from sdk.conftest import KEY, Answer, ScriptedServer, Seen
from sdk.live import Live
from support.proxy import MakeProxy
from support.waiting import wait_until

PATH = "/v1/tasks/t"


class Told:
    """A watch in a thread of its own, and what it told so far."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.events: list[JournalEvent] = []
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            for event in self.watch:
                self.events.append(event)
        except BaseException as error:
            self.error = error

    @property
    def seqs(self) -> list[int]:
        return [event.seq for event in self.events]

    def join(self, timeout: float = 30.0) -> None:
        self.thread.join(timeout)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error


def test_a_task_is_watched_to_its_end(live: Live) -> None:
    go = threading.Event()

    def work(inp: Any, ctx: TaskContext) -> str:
        ctx.log.info("begun\u2028and \u0085 more")
        go.wait(30)
        return "done"

    told = Told(live.producer.watch(task_id := live.submit(None)))
    wait_until(lambda: told.seqs == [1])
    live.start(work)
    wait_until(lambda: "log" in [event.kind for event in told.events], 20)
    go.set()
    told.join()
    journal = list(live.producer.journal(task_id))
    assert told.events == journal
    assert [event.kind for event in journal] == ["submitted", "claimed", "log", "succeeded"]
    assert [event.seq for event in live.producer.watch(task_id, after=2)] == [3, 4]
    assert list(live.producer.watch(task_id, after=4)) == []


def test_without_a_stream_the_journal_is_read_again(live: Live, make_scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = make_scripted()  # answers 404 to every stream
    for host in (None, elsewhere.url):
        monkeypatch.setattr(live.producer._host, "find", lambda host=host: host)
        task_id = live.submit(None)
        told = Told(live.producer.watch(task_id))
        wait_until(lambda told=told: told.seqs == [1])
        live.producer.cancel(task_id)
        told.join()
        assert told.events == list(live.producer.journal(task_id))
    assert any(seen.path.endswith("/stream") for seen in elsewhere.seen)


def test_b52_a_watch_goes_on_over_cuts_and_outages(live: Live, make_proxy: MakeProxy) -> None:
    step = threading.Semaphore(0)

    def work(inp: Any, ctx: TaskContext) -> None:
        for number in range(6):
            step.acquire(timeout=30)
            ctx.log.info("line %d", number)

    live.start(work)
    task_id = live.submit(None)
    proxy = make_proxy(live.url)
    producer = TaskProducer(proxy.url, live.service.key("task-producer"), timeout=2)
    producer._host.find = lambda: proxy.url  # type: ignore[method-assign]
    told = Told(producer.watch(task_id))
    for number in range(6):
        if number % 2:
            proxy.cut(refuse=number == 3)
        step.release()
        if number == 3:
            wait_until(lambda: "line 3" in str([event.data for event in live.producer.journal(task_id)]))
            proxy.restore()
        line = f"line {number}"
        wait_until(lambda line=line: line in str([event.data for event in told.events]), 20)
    told.join()
    journal = list(live.producer.journal(task_id))
    assert told.seqs == list(range(1, len(journal) + 1))
    assert told.events == journal


def test_a_watch_is_closed_from_another_thread(live: Live) -> None:
    told = Told(live.producer.watch(live.submit(None, delay=3600)))
    wait_until(lambda: told.seqs == [1])
    told.watch.close()
    told.join(5)
    with live.producer.watch(live.submit(None, delay=3600)) as watch:
        assert next(watch).seq == 1
    assert list(watch) == []


def test_an_unknown_task_is_refused(live: Live) -> None:
    with pytest.raises(ApiError, match="NOT_FOUND"):
        next(live.producer.watch("01a00000-0000-7000-8000-000000000000"))


def event(seq: int) -> dict[str, Any]:
    return {"seq": seq, "at": "2026-01-01T00:00:00Z", "kind": "log", "data": {}}


def frames(*told: int | str) -> Answer:
    text = ": hello\n\n"
    for one in told:
        text += (
            f"id: {one}\nevent: log\ndata: {json.dumps(event(one))}\n\n"
            if isinstance(one, int)
            else f"event: {one}\ndata: {{}}\n\n"
        )
    return Answer(200, text.encode(), {"content-type": "text/event-stream"})


def test_gaps_repeats_and_resets_of_a_stream(scripted: ScriptedServer) -> None:
    """A service older or newer than ours, or set back: the watch tells each event once, whatever a stream says."""

    def journal(seen: Seen) -> Answer:
        after = int(seen.path.partition("after=")[2].partition("&")[0])
        return Answer(200, {"items": [event(seq) for seq in range(after + 1, 6)], "nextCursor": None})

    scripted.answer("GET", "/v1/config", Answer(200, {"streamUrl": scripted.url}))
    scripted.answer("GET", f"{PATH}/journal", journal)
    scripted.answer("GET", PATH, Answer(200, {"id": "t", "status": "running", "journalSeq": 5}))
    scripted.answer("GET", f"{PATH}/stream", frames(1, 2, 2, 1, 5), frames(4, 5, 6), frames("reset", 1, 2, "end"))
    told = Told(TaskProducer(client=Client(scripted.url, KEY)).watch("t"))
    told.join()
    assert told.seqs == [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 1, 2]
    asked = [seen.headers.get("last-event-id") for seen in scripted.seen if seen.path == f"{PATH}/stream"]
    assert asked == [None, "5", "5"]


def test_a_key_that_was_revoked_ends_the_watch(scripted: ScriptedServer) -> None:
    refused = Answer(401, {"code": "KEY_REVOKED", "status": 401, "retryable": False})
    scripted.answer("GET", "/v1/config", Answer(200, {"streamUrl": scripted.url}))
    scripted.answer("GET", f"{PATH}/stream", frames(1, "revoked"), refused)
    scripted.answer("GET", PATH, refused)
    told = Told(TaskProducer(client=Client(scripted.url, KEY)).watch("t"))
    with pytest.raises(ApiError, match="KEY_REVOKED"):
        told.join()
    assert told.seqs == [1]
