"""The stream of one task: its journal as it grows, resumed where it was left, ended when there is nothing more to tell."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import httpx
import psycopg
import pytest

from interlock_core import hints, watching
from interlock_core import testpoint as points
from interlock_core.db import Database
from stream.conftest import Serve, Service
from support.waiting import wait_until_async


async def test_a_task_is_told_from_its_submission_to_its_end(service: Service) -> None:
    task = await service.submit()
    watch = await service.watch(task["id"])
    await watch.until("submitted")
    (attempt,) = await service.claim("i")
    await watch.until("claimed", timeout=5)
    await _report(service, attempt, progress={"percent": 50, "message": "half"}, logs=[{"seq": 1, "message": "hello"}])
    await watch.until("progress", timeout=5)
    await watch.until("log", timeout=5)
    await service.complete(attempt, result={"n": 1})
    assert (await watch.until("end", timeout=5)).data == {"status": "succeeded", "settled": True}
    await watch.until_ended(2)
    assert watch.events() == await _journal(service, task["id"])
    assert [frame.id for frame in watch.frames] == [*(str(n + 1) for n in range(len(watch.frames) - 1)), ""]
    assert all(frame.event == frame.data["kind"] for frame in watch.frames[:-1])


async def test_the_end_is_told_at_once_where_a_hint_tells_it(service: Service) -> None:
    task = await service.submit()
    (attempt,) = await service.claim("i")
    watch = await service.watch(task["id"])
    await watch.until("claimed")
    service.broadcaster.watches._look_at = asyncio.get_running_loop().time() + 60
    await _gone_to_sleep(service)
    await service.complete(attempt)
    await watch.until("end", timeout=2)


async def test_progress_and_logs_come_within_about_a_second_and_notify_nobody(service: Service) -> None:
    task = await service.submit()
    (attempt,) = await service.claim("i")
    watch = await service.watch(task["id"])
    await watch.until("claimed")
    heard: list[str] = []
    hear = service.broadcaster.listener._heard
    service.broadcaster.listener._heard = lambda payload: (heard.append(payload), hear(payload))
    for number in range(1, 4):
        await asyncio.sleep(0.11)  # reports come no closer than that
        await _report(service, attempt, progress={"percent": number, "message": ""})
        began = time.monotonic()
        await watch.until("progress", number, timeout=5)
        assert time.monotonic() - began < 3
    assert heard == []


async def test_a_settled_task_is_told_whole_and_ended(service: Service) -> None:
    task = await service.submit()
    (attempt,) = await service.claim("i")
    await service.complete(attempt, "failed", error={"code": "NO", "message": "no"})
    watch = await service.watch(task["id"])
    await watch.until_ended(5)
    assert watch.kinds() == ["submitted", "claimed", "failed", "end"]
    assert watch.frames[-1].data == {"status": "failed", "settled": True}


async def test_an_unknown_outcome_ends_the_stream_unsettled(service: Service) -> None:
    task = await service.submit()
    watch = await service.watch(task["id"])
    (attempt,) = await service.claim("i")
    await service.complete(attempt, "unknown", error={"code": "LOST", "message": "who knows"})
    assert (await watch.until("end", timeout=5)).data == {"status": "outcome-unknown", "settled": False}
    await watch.until_ended(2)


@pytest.mark.parametrize("how", ["header", "query"])
async def test_a_resumed_stream_misses_and_repeats_nothing(service: Service, how: str) -> None:
    task = await service.submit()
    first = await service.watch(task["id"])
    await first.until("submitted")
    await first.close()
    (attempt,) = await service.claim("i")
    if how == "header":
        second = await service.watch(task["id"], last_event_id="1")
    else:
        second = await service.watch(task["id"], lastEventId="1")
    await service.complete(attempt)
    await second.until_ended(5)
    assert second.kinds() == ["claimed", "succeeded", "end"]
    last = await service.watch(task["id"], last_event_id="3")
    await last.until_ended(5)
    assert last.kinds() == ["end"]
    both = await service.watch(task["id"], last_event_id="2", lastEventId="1")
    await both.until_ended(5)
    assert both.kinds() == ["succeeded", "end"], "a browser that reconnects sends the query of the first time too"


@pytest.mark.parametrize("event_id", ["2", "999999999999999999999", "-1", "+1", "1.0", " x", "none", "0x1", "1 1", "é"])
async def test_an_id_ahead_foreign_or_nonsense_begins_anew(service: Service, event_id: str) -> None:
    task = await service.submit()
    watch = await service.watch(task["id"], lastEventId=event_id)
    await watch.until("submitted")
    assert watch.kinds() == ["reset", "submitted"]


async def test_b44_every_event_is_told_once_in_order_however_slowly_it_is_read(service: Service, database: Database) -> None:
    """A thousand events in one instant, and more while they are read, by readers who come and go at any place."""
    task = await service.submit()
    _grow(database, task["id"], 1000)
    watches = [await service.watch(task["id"], last_event_id=str(after)) for after in (0, 1, 7, 50, 99, 100, 101, 999, 1001)]
    for _ in range(5):
        _grow(database, task["id"], 150)
    for watch in watches:
        await wait_until_async(lambda watch=watch: watch.frames and watch.frames[-1].id == "1751", 20)
    for watch, after in zip(watches, (0, 1, 7, 50, 99, 100, 101, 999, 1001), strict=True):
        assert [int(frame.id) for frame in watch.frames] == list(range(after + 1, 1752))


async def test_b50_an_event_before_the_watcher_is_known_is_not_missed(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the first look at the task and the stream's place among the watchers it ends."""
    reached, go = asyncio.Event(), asyncio.Event()

    async def freeze() -> None:
        reached.set()
        await go.wait()

    task = await service.submit()
    (attempt,) = await service.claim("i")
    monkeypatch.setitem(points.armed, "stream.join", freeze)
    opening = asyncio.create_task(service.watch(task["id"]))
    await reached.wait()
    await service.complete(attempt)
    go.set()
    watch = await opening
    await watch.until("end", timeout=3)
    assert watch.kinds() == ["submitted", "claimed", "succeeded", "end"]


async def test_b45_watchers_read_again_when_hints_were_lost(service: Service) -> None:
    task = await service.submit()
    (attempt,) = await service.claim("i")
    watch = await service.watch(task["id"])
    await watch.until("claimed")
    service.broadcaster.watches._look_at = asyncio.get_running_loop().time() + 60
    await _gone_to_sleep(service)
    hear, service.broadcaster.listener._heard = service.broadcaster.listener._heard, lambda _: None
    await service.complete(attempt)
    service.broadcaster.listener._heard = hear
    with psycopg.connect(service.broadcaster.listener._address.find_now(), autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'interlock stream'")
    await watch.until("end", timeout=20)


async def test_an_answer_for_those_who_left_misleads_nobody_who_came(
    service: Service, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last watcher goes while the task is looked at, and the next one, who is far behind, comes before the answer."""
    task = await service.submit()
    _grow(database, task["id"], 299)
    first = await service.watch(task["id"], last_event_id="300")
    watches = service.broadcaster.watches
    await wait_until_async(lambda: watches._tasks and watches._tasks[task["id"]].seen == 300)
    looked, look_on, reading, read_on = (asyncio.Event() for _ in range(4))
    ask = watching.events

    async def hold(*args: Any, always: bool = False) -> Any:
        rows = await ask(*args, always=always)
        if rows:
            (reading if always else looked).set()
            await (read_on if always else look_on).wait()
        return rows

    monkeypatch.setattr(watching, "events", hold)
    _grow(database, task["id"], 1)
    await looked.wait()
    await first.close()
    await wait_until_async(lambda: len(watches) == 0)
    second = await service.watch(task["id"])
    await reading.wait()
    looks = watches.looks
    look_on.set()
    await wait_until_async(lambda: watches.looks > looks)
    read_on.set()
    await wait_until_async(lambda: second.frames and second.frames[-1].id == "301")
    assert [int(frame.id) for frame in second.frames] == list(range(1, 302))


async def test_watchers_on_another_process_are_told_too(serve: Serve) -> None:
    one, two = await serve(), await serve()
    task = await one.submit()
    watch = await two.watch(task["id"])
    (attempt,) = await one.claim("i")
    await one.complete(attempt)
    await watch.until_ended(5)
    assert watch.kinds() == ["submitted", "claimed", "succeeded", "end"]


@pytest.mark.slow
async def test_many_watchers_cost_one_statement_a_second(service: Service) -> None:
    tasks = [await service.submit() for _ in range(20)]
    for task in tasks:
        for _ in range(3):
            await (await service.watch(task["id"])).until("submitted")
    watches = service.broadcaster.watches
    assert len(watches) == 20
    looks, began = watches.looks, time.monotonic()
    await wait_until_async(lambda: watches.looks >= looks + 3)
    assert time.monotonic() - began > 1.5
    for watch in service.streams:
        await watch.close()
    await wait_until_async(lambda: len(watches) == 0)


async def test_text_that_readers_of_lines_would_break_arrives_whole(service: Service) -> None:
    task = await service.submit()
    (attempt,) = await service.claim("i")
    text = "a\nb\rc\u2028d\u2029e\x85f\\u2028"
    watch = await service.watch(task["id"])
    await service.complete(attempt, "failed", error={"code": "NO", "message": text})
    await watch.until_ended(5)
    assert watch.frames[-2].event == "failed"
    assert watch.events() == await _journal(service, task["id"])


async def test_only_those_who_may_read_the_task_may_watch_it(service: Service) -> None:
    task = await service.submit()
    for client, path, code in (
        (service.worker, task["id"], "SCOPE_DENIED"),
        (service.client("metrics"), task["id"], "SCOPE_DENIED"),
        (service.producer, "00000000-0000-7000-8000-000000000000", "NOT_FOUND"),
        (service.producer, "nonsense", "NOT_FOUND"),
        (service.client_of("il_p_" + "a" * 16 + "_" + "b" * 43), task["id"], "UNAUTHENTICATED"),
    ):
        answer = await client.get(f"/v1/tasks/{path}/stream")
        assert answer.json()["code"] == code, path
    answer = await service.producer.get(f"/v1/tasks/{task['id']}/stream", params={"lastEventID": "1"})
    assert (answer.json()["code"], answer.json()["errors"][0]["pointer"]) == ("INVALID_REQUEST", "/lastEventID")
    head = await service.producer.head(f"/v1/tasks/{task['id']}/stream")
    assert head.status_code == 200
    await (await service.watch(task["id"], client=service.operator)).until("submitted")


async def test_a_revoked_key_ends_its_watch(service: Service) -> None:
    made = (await service.operator.post("/v1/keys", json={"name": "x", "kind": "task-producer"})).json()
    task = await service.submit()
    watch = await service.watch(task["id"], client=service.client_of(made["key"]))
    other = await service.watch(task["id"])
    await service.operator.post(f"/v1/keys/{made['id']}/revoke")
    await watch.until("revoked", timeout=5)
    await watch.until_ended(1)
    assert not other.ended


async def test_a_task_that_is_gone_ends_its_streams(service: Service, database: Database) -> None:
    task = await service.submit()
    watch = await service.watch(task["id"])
    await watch.until("submitted")
    with psycopg.connect(database.address.find_now(), autocommit=True) as connection:
        connection.execute("DELETE FROM journal")
        connection.execute("DELETE FROM tasks")
    await watch.until_ended(5)


async def test_a_journal_that_was_set_back_ends_its_streams_and_is_told_anew(service: Service, database: Database) -> None:
    """A database restored from a copy: what readers were told may never have happened."""
    task = await service.submit()
    _grow(database, task["id"], 3)
    watch = await service.watch(task["id"])
    await watch.until("log", 3)
    with psycopg.connect(database.address.find_now(), autocommit=True) as connection:
        connection.execute("DELETE FROM journal WHERE seq > 2")
        connection.execute("UPDATE tasks SET journal_seq = 2")
    await watch.until_ended(5)
    assert watch.count("end") == 0
    again = await service.watch(task["id"], last_event_id=watch.frames[-1].id)
    await again.until("log")
    assert again.kinds() == ["reset", "submitted", "log"]


async def test_b45_a_database_that_is_away_ends_no_watch(service: Service, database: Database) -> None:
    task = await service.submit()
    (attempt,) = await service.claim("i")
    watch = await service.watch(task["id"])
    await watch.until("claimed")
    with psycopg.connect(database.address.find_now().rpartition("/")[0] + "/postgres", autocommit=True) as connection:
        name = database.address.find_now().rpartition("/")[2]
        connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
        await wait_until_async(lambda: not service.broadcaster.listener.listening)
        connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
    await service.listening()
    await service.complete(attempt)
    await watch.until("end", timeout=20)


async def test_b47_watchers_that_never_read_hold_nothing(serve: Serve, database: Database) -> None:
    def tune(listener: socket.socket) -> None:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    service = await serve(listener=tune, stall_seconds=1.0)
    task = await service.submit()
    healthy = await service.watch(task["id"])
    deaf = [service.open_and_never_read(f"/v1/tasks/{task['id']}/stream") for _ in range(10)]
    await wait_until_async(lambda: len(service.broadcaster.streams) == 11)
    watched = healthy_watched(service)
    seen = 1
    while len(service.broadcaster.streams) > 1:
        _grow(database, task["id"], 50, size=4000)
        seen += 50
        await database.one(hints.send(hints.payload("test", done=[task["id"]])))
        await wait_until_async(lambda seen=seen: healthy.frames and healthy.frames[-1].id == str(seen), 5)
        assert watched._size <= 300 * 1024
        assert seen < 100_000
    assert [int(frame.id) for frame in healthy.frames] == list(range(1, seen + 1))
    for raw in deaf:
        raw.close()


def healthy_watched(service: Service) -> Any:
    (watched,) = service.broadcaster.watches._tasks.values()
    return watched


async def _gone_to_sleep(service: Service) -> None:
    """The loop of the watches has seen its next look put off."""
    service.broadcaster.watches._kick.set()
    await wait_until_async(lambda: not service.broadcaster.watches._kick.is_set())


async def _report(service: Service, attempt: dict[str, Any], **fields: Any) -> None:
    item = {name: attempt[name] for name in ("taskId", "attemptId", "fence", "leaseToken")} | fields
    answer = await service.worker.post("/v1/attempts/heartbeat", json={"workerId": "w", "instanceId": "i", "attempts": [item]})
    assert answer.status_code == 200, answer.text


async def _journal(service: Service, task_id: str) -> list[dict[str, Any]]:
    answer: httpx.Response = await service.producer.get(f"/v1/tasks/{task_id}/journal", params={"limit": "200"})
    events: list[dict[str, Any]] = answer.json()["items"]
    return events


def _grow(database: Database, task_id: str, events: int, size: int = 10) -> None:
    with psycopg.connect(database.address.find_now(), autocommit=True) as connection:
        connection.execute(
            """WITH t AS (UPDATE tasks SET journal_seq = journal_seq + %(n)s WHERE id = %(id)s RETURNING journal_seq)
               INSERT INTO journal (task_id, seq, at, kind, data)
               SELECT %(id)s, t.journal_seq - %(n)s + g, now(), 'log', json_build_object('lines', repeat('x', %(size)s))::text
               FROM t, generate_series(1, %(n)s) g""",
            {"id": task_id, "n": events, "size": size},
        )
