"""A list whose items are large has shorter pages: every list can be walked to its end, each item met once."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from interlock_core.db import Database
from support.play import Json, Play

BYTES = 5_500_000


async def store(database: Database, text: str, *params: object) -> None:
    async with database.connection() as connection:
        await connection.execute(text, params)


async def walk(client: httpx.AsyncClient, path: str) -> list[list[Json]]:
    """The pages of a list, each small enough for the platform."""
    pages: list[list[Json]] = []
    cursor: str | None = None
    while True:
        given: dict[str, Any] = {"limit": 200} | ({"cursor": cursor} if cursor else {})
        answer = await client.get(path, params=given)
        assert answer.status_code == 200, answer.text
        assert len(answer.content) + answer.content.count(b'"') + answer.content.count(b"\\") <= BYTES
        pages.append(answer.json()["items"])
        assert pages[-1]
        if (cursor := answer.json()["nextCursor"]) is None:
            return pages


@pytest.mark.slow
async def test_tasks_with_very_large_failures_are_listed_in_shorter_pages(play: Play, database: Database) -> None:
    await play.http.producer.post(
        "/v1/tasks/batch", json={"tasks": [{"type": "a/b", "schemaVersion": 1, "input": n} for n in range(150)]}
    )
    for fill in ("x", '"', "\\", "é"):
        failure = "json_build_object('code', 'BAD', 'message', repeat(%s, 16000), 'details', json_build_object('last', repeat(%s, 32000)))"
        await store(
            database, f"UPDATE tasks SET status = 'failed', finished_at = app_now(), failure = {failure}::text", fill, fill
        )
        pages = await walk(play.http.producer, "/v1/tasks")
        assert len(pages) > 1
        assert all(len(page) > 10 for page in pages[:-1])
        met = [task["id"] for page in pages for task in page]
        assert (len(met), len(set(met))) == (150, 150)
        assert {len(task["failure"]["message"]) for page in pages for task in page} == {16_000}


async def test_an_item_that_fills_an_answer_is_a_page_of_its_own(play: Play, database: Database) -> None:
    for _ in range(3):
        await play.submit()
    await store(database, "UPDATE tasks SET status = 'failed', finished_at = app_now(), failure = %s",
                '{"code": "BAD", "message": "' + "x" * 5_200_000 + '"}')  # fmt: skip
    assert [len(page) for page in await walk(play.http.producer, "/v1/tasks?limit=2")] == [1, 1, 1]


@pytest.mark.slow
async def test_keys_workers_and_the_audit_too(play: Play, database: Database) -> None:
    await store(
        database,
        "INSERT INTO keys (id, project, kind, name, secret_hash, types, pools) SELECT 'k' || n, 'test', 'task-worker', 'n', '\\x00',"
        " array_fill(repeat('t', 250), ARRAY[100]), array_fill(repeat('p', 250), ARRAY[100]) FROM generate_series(1, 300) n",
    )
    await store(
        database,
        "INSERT INTO audit (id, project, at, action, detail) SELECT gen_random_uuid(), 'test', app_now(), 'did',"
        " json_build_object('note', repeat('\"', 16000))::text FROM generate_series(1, 200) n",
    )
    await store(
        database,
        "INSERT INTO worker_ids (project, worker_id, pool, slots, instance_id, registered_at)"
        " SELECT 'test', repeat('w', 100) || n, 'p', 1, 'i', app_now() FROM generate_series(1, 200) n",
    )
    await store(
        database,
        "INSERT INTO handlers (project, type, schema_version, worker_id, pool, effect_safety)"
        " SELECT 'test', repeat('g', 64) || '/' || repeat('n', 60) || h, 1, repeat('w', 100) || n, repeat('p', 255), 'pure'"
        " FROM generate_series(1, 200) n, generate_series(1, 180) h",
    )
    lists = (("/v1/keys", "id", 300), ("/v1/audit", "id", 200), ("/v1/workers", "workerId", 200))
    for path, name, count in lists:
        pages = await walk(play.http.operator, path)
        met = [item[name] for page in pages for item in page]
        assert any(len(page) < 180 for page in pages[:-1]), path
        assert len(met) == len(set(met)) >= count, path


async def test_a_type_with_many_large_schemas_is_shown_and_says_what_is_left_out(play: Play) -> None:
    schema = {"description": '"' * 120_000}
    handler = {"type": "demo/hello", "schemaVersion": 1, "effectSafety": "pure", "inputSchema": schema, "resultSchema": schema}
    for number in range(12):
        body = {"instanceId": "i", "slots": 1, "handlers": [handler]}
        assert (await play.http.worker.put(f"/v1/workers/w{number:02}", json=body)).status_code == 200
    answer = await play.http.operator.get("/v1/task-types/demo/hello/1")
    assert answer.status_code == 200, answer.text[:300]
    assert len(answer.content) + answer.content.count(b'"') + answer.content.count(b"\\") <= BYTES
    shown = answer.json()["handlers"]
    assert [h["workerId"] for h in shown] == [f"w{number:02}" for number in range(12)]
    assert [h["leftOut"] for h in shown] == [False] * 4 + [True] * 8
    assert [h["inputSchema"] for h in shown] == [schema] * 4 + [None] * 8
    listed = (await play.http.operator.get("/v1/task-types")).json()["items"][0]["handlers"]
    assert len(listed) == 12
