"""Pages of rows that share their creation time, while others come and go (B44)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from interlock_core import leases
from interlock_core.settings import Settings
from sql.rows import Rows
from support.clock import Clock
from support.play import Play

COUNT = 200


async def _batch(play: Play, count: int, **fields: Any) -> list[str]:
    task = {"type": "demo/hello", "schemaVersion": 1, "input": {}, **fields}
    answer = await play.http.producer.post("/v1/tasks/batch", json={"tasks": [task] * count})
    assert answer.status_code == 201, answer.text
    return [item["id"] for item in answer.json()["items"]]


async def _page(play: Play, limit: int, cursor: str | None, **query: str) -> tuple[list[str], str | None]:
    params = {"limit": str(limit), **query, **({"cursor": cursor} if cursor else {})}
    answer = await play.http.producer.get("/v1/tasks", params=params)
    assert answer.status_code == 200, answer.text
    page = answer.json()
    assert len(page["items"]) <= limit
    return [item["id"] for item in page["items"]], page["nextCursor"]


@pytest.mark.parametrize("limit", [1, 7, 50])
async def test_b44_each_task_of_one_instant_is_listed_once(play: Play, rows: Rows, limit: int) -> None:
    ids = await _batch(play, COUNT)
    assert rows.value("SELECT count(DISTINCT created_at) FROM tasks") == 1
    seen: list[str] = []
    cursor = None
    while True:
        page, cursor = await _page(play, limit, cursor)
        seen += page
        if cursor is None:
            break
        assert len(page) == limit
    assert sorted(seen) == sorted(ids)
    assert len(seen) == COUNT


async def test_b44_pages_go_on_while_rows_arrive_and_leave(play: Play, rows: Rows, clock: Clock) -> None:
    ids = await _batch(play, COUNT)
    settings = replace(Settings(), retention_seconds=0)
    seen: list[str] = []
    cursor = None
    gone: set[str] = set()
    while True:
        page, cursor = await _page(play, 7, cursor)
        seen += page
        if cursor is None:
            break
        await play.submit(priority=50)  # newer than every page to come
        (attempt,) = await play.claim()
        await play.complete(attempt, result=1)
        victims = [
            page[-1],
            next(task for task in ids if task not in seen and task not in gone),
        ]  # the anchor, and one not yet listed
        for task in victims:
            assert (await play.cancel(task))["status"] == "cancelled"
        gone.update(victims[1:])
        clock.advance(1)
        done = await leases.retain(play.http._app.state.database, settings)
        assert done["tasks"] == 3
        assert rows.value("SELECT count(*) FROM tasks WHERE id = ANY(%s::uuid[])", victims) == 0
        if len(gone) + len(set(seen)) >= COUNT - 1:
            break
    assert len(seen) == len(set(seen))
    assert set(seen) <= set(ids)
    assert not gone & set(seen)


async def test_b44_a_filter_pages_by_itself(play: Play) -> None:
    ids = await _batch(play, 20, tags={"order": "17"})
    await _batch(play, 20)
    seen: list[str] = []
    cursor = None
    while True:
        page, cursor = await _page(play, 3, cursor, tag="order:17")
        seen += page
        if cursor is None:
            break
    assert sorted(seen) == sorted(ids)


async def test_b44_a_cursor_of_another_list_is_refused(play: Play) -> None:
    await _batch(play, 5)
    _, cursor = await _page(play, 2, None)
    assert cursor is not None
    _, filtered = await _page(play, 2, None, type="demo/hello")
    keys = await play.http.make_keys("another")
    other = play.http.use(keys["task-producer"])
    task = (await other.post("/v1/tasks", json={"type": "demo/hello", "schemaVersion": 1, "input": {}})).json()
    journal = await other.get(f"/v1/tasks/{task['id']}/journal", params={"cursor": cursor})
    refused = [
        await play.http.producer.get("/v1/tasks", params={"cursor": cursor, "type": "demo/hello"}),
        await play.http.producer.get("/v1/tasks", params={"cursor": filtered}),
        await play.http.producer.get("/v1/tasks", params={"cursor": cursor, "status": "queued"}),
        await other.get("/v1/tasks", params={"cursor": cursor}),
        journal,
        *[
            await play.http.producer.get("/v1/tasks", params={"cursor": text})
            for text in ("", "x", "AAAA", "e30", cursor[:-3], cursor * 2)
        ],
    ]
    for answer in refused:
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_CURSOR"), answer.request.url
    assert (await play.http.operator.get("/v1/tasks", params={"cursor": cursor, "limit": "2"})).status_code == 200  # same project


async def test_b44_a_journal_pages_without_gaps(play: Play) -> None:
    attempt = await play.run()
    for _ in range(10):
        await play.release(attempt)
        (attempt,) = await play.claim()
    seen: list[int] = []
    cursor = None
    while True:
        params = {"limit": "3", **({"cursor": cursor} if cursor else {})}
        page = (await play.http.producer.get(f"/v1/tasks/{attempt['taskId']}/journal", params=params)).json()
        seen += [event["seq"] for event in page["items"]]
        cursor = page["nextCursor"]
        if cursor is None:
            break
    assert seen == list(range(1, 23))


async def test_b44_keys_of_one_instant_are_each_listed_once(play: Play, rows: Rows) -> None:
    made = {await play.http.make_key("task-worker") and n for n in range(30)}
    assert len(made) == 30
    rows.all("UPDATE keys SET created_at = app_now() WHERE project = 'test'")
    rows.all("UPDATE keys SET created_at = (SELECT max(created_at) FROM keys)")
    seen: list[str] = []
    cursor = None
    while True:
        params = {"limit": "7", **({"cursor": cursor} if cursor else {})}
        page = (await play.http.operator.get("/v1/keys", params=params)).json()
        seen += [key["id"] for key in page["items"]]
        cursor = page["nextCursor"]
        if cursor is None:
            break
    assert sorted(seen) == sorted(row[0] for row in rows.all("SELECT id FROM keys WHERE project = 'test'"))
