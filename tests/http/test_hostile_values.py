"""Values at the edges of what a field takes: refused with a reason or kept, and never a 500."""

from __future__ import annotations

from typing import Any

from interlock_core.db import Database
from support.play import Play

Json = dict[str, Any]
TASK: Json = {"type": "demo/hello", "schemaVersion": 1, "input": {}}
INSTANTS = [
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59-14:00",
    "1900-02-29T00:00:00Z",
]
TEXTS = ["\u0000", "a\u0000b", "\ufffe", "😀" * 60, "\u202e", "'; DROP TABLE tasks; --", "%s %(x)s", "{}", "$1", "\\", "a\nb"]


async def check(answer: Any, given: object) -> None:
    assert answer.status_code < 500, (given, answer.text)
    if answer.status_code >= 400:
        assert answer.json()["next"], given


async def test_instants_at_the_ends_of_the_calendar(play: Play, database: Database) -> None:
    async with database.connection() as connection:
        await connection.execute(
            "DO $$BEGIN EXECUTE format('ALTER ROLE %I IN DATABASE %I SET timezone = %L',"
            " current_user, current_database(), 'Asia/Kolkata'); END$$"
        )
    await database.close()  # the next connection is in another time zone: what is stored and shown stays the same
    for instant in INSTANTS:
        await check(await play.http.producer.post("/v1/tasks", json={**TASK, "runAt": instant}), instant)
        await check(
            await play.http.operator.post("/v1/keys", json={"name": "n", "kind": "metrics", "expiresAt": instant}), instant
        )
        for name in ("createdAfter", "createdBefore", "finishedAfter", "finishedBefore"):
            await check(await play.http.producer.get("/v1/tasks", params={name: instant}), instant)
    for path in ("keys", "tasks", "doctor", "task-types"):
        await check(await play.http.operator.get(f"/v1/{path}"), path)


async def test_texts_that_mean_something_to_somebody(play: Play) -> None:
    held = await play.run()
    for text in TEXTS:
        for fields in (
            {"idempotencyKey": text},
            {"pool": text},
            {"tags": {"order": text}},
            {"tags": {text: "x"}},
            {"concurrency": {"key": text, "limit": 1}},
            {"trace": {"traceparent": text, "tracestate": text}},
            {"type": text},
            {"input": {text: text}},
        ):
            await check(await play.submit_raw(**fields), fields)
        made = await play.submit()
        await check(await play.http.producer.post(f"/v1/tasks/{made['id']}/cancel", json={"reason": text}), text)
        await check(await play.resolve_raw(made["id"], "failed", held["attemptId"], note=text), text)
        await check(await play.resolve_raw(made["id"], "failed", text), text)
        await check(
            await play.http.operator.post("/v1/keys", json={"name": text, "kind": "metrics", "idempotencyKey": text}), text
        )
        await check(
            await play.http.operator.post(
                "/v1/keys", json={"name": "n", "kind": "task-worker", "types": [text], "pools": [text]}
            ),
            text,
        )
        await check(await play.http.admin.post("/v1/projects", json={"name": "p", "idempotencyKey": text}), text)
        handler = {
            "type": "demo/hello",
            "schemaVersion": 1,
            "effectSafety": "pure",
            "description": text,
            "inputSchema": {text: text},
        }
        program = {"instanceId": text, "pool": text, "build": text, "handlers": [handler]}
        await check(await play.http.worker.put("/v1/workers/w", json=program), text)
        await check(
            await play.http.worker.put(
                "/v1/workers/w", json={**program, "instanceId": "i", "pool": "p", "build": "1", "host": text}
            ),
            text,
        )
        await check(
            await play.http.worker.post("/v1/claims", json=play.claim_body(instance=text, claim_id=text, pool=text)), text
        )
        for outcome in ("failed", "retryable", "unknown"):
            await check(
                await play.http.worker.post(
                    "/v1/attempts/complete", json={"completions": [{"outcome": outcome, "error": {"code": text}}]}
                ),
                text,
            )
        for name in ("pool", "tag", "idempotencyKey", "failureCode", "scheduleOwner", "type", "cursor", "limit", "parentId"):
            await check(await play.http.producer.get("/v1/tasks", params={name: text}), (name, text))
        await check(await play.http.worker.get("/v1/doctor", params={"workerId": text}), text)
        operator = play.http.operator
        for method in ("GET", "PUT", "DELETE"):
            await check(await operator.request(method, "/v1/limits", params={"key": text}, json={"limit": 1}), (method, text))
        for name in ("status", "pool", "tag", "idempotencyKey", "failureCode", "type", "createdAfter", "parentId", "nothing"):
            bulk = {"filter": {name: text}, "action": "cancel", "idempotencyKey": "once", "dryRun": True}
            await check(await operator.post("/v1/tasks/bulk", json=bulk), bulk)
        await check(await operator.post("/v1/tasks/bulk", json={"filter": {}, "action": "cancel", "idempotencyKey": text}), text)
        again = {"idempotencyKey": text, "input": text}
        await check(await play.http.producer.post(f"/v1/tasks/{made['id']}/rerun", json=again), text)
        await check(await operator.post("/v1/keys/none/rotate", json={"overlapSeconds": 1, "idempotencyKey": text}), text)
    for path in ("keys", "tasks", "workers", "task-types", "metrics", "doctor", "limits", "audit"):
        await check(await play.http.operator.get(f"/v1/{path}"), path)


async def test_bodies_that_are_not_json_objects(play: Play) -> None:
    bodies = [
        b"",
        b"null",
        b"[]",
        b"1",
        b'"x"',
        b"{",
        b"\xff",
        b"\xef\xbb\xbf{}",
        b'{"a":1,"a":2}',
        b"[" * 20_000,
        b'{"input": 1e999}',
        b'{"x": NaN}',
        b"{}{}",
    ]
    calls = [(e.method, e.path) for e in play.http._app.state.endpoints if e.body is not None]
    assert len(calls) > 10
    one = "01900000-0000-7000-8000-000000000000"
    for method, path in calls:
        place = path.replace("{id}", one).replace("{taskId}", one).replace("{attemptId}", one).replace("{workerId}", "w")
        for body in bodies:
            for client in (play.http.producer, play.http.worker, play.http.operator, play.http.admin):
                await check(await client.request(method, place, content=body), (method, path, body[:40]))
