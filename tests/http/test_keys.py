"""Keys and projects: minting, repeating, listing, revoking, and who may call what (protocol.md §2)."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from typing import Any

import pytest

from interlock_core.db import Database
from interlock_core.errors import KeyRevoked, Problem, Unauthenticated
from interlock_core.keys import Keyring
from interlock_core.settings import Settings
from support.api import Http
from support.clock import Clock
from support.hosts import Hosts
from support.waiting import wait_until_async

Json = dict[str, Any]
TASK: Json = {"type": "demo/hello", "schemaVersion": 1, "input": {}}


async def run_sql(database: Database, text: str, *params: object) -> list[Any]:
    async with database.connection() as connection:
        cursor = await connection.execute(text, params)
        return await cursor.fetchall() if cursor.description else []


async def test_a_key_is_shown_once_and_works(http: Http) -> None:
    answer = await http.operator.post("/v1/keys", json={"name": "shop", "kind": "task-producer"})
    assert answer.status_code == 201
    key = answer.json()
    assert (key["kind"], key["project"], key["duplicate"]) == ("task-producer", "test", False)
    assert (await http.use(key["key"]).post("/v1/tasks", json=TASK)).status_code == 201
    listed = (await http.operator.get("/v1/keys")).json()["items"]
    assert listed[0]["id"] == key["id"]
    assert "key" not in listed[0]
    assert key["key"].split("_", 3)[3] not in (await http.operator.get("/v1/keys")).text


async def test_b29_a_repeated_key_creation_answers_without_the_secret(http: Http) -> None:
    body = {"name": "shop", "kind": "task-worker", "types": ["audio/*"], "idempotencyKey": "k1"}
    first = await http.operator.post("/v1/keys", json=body)
    again = await http.operator.post("/v1/keys", json=body)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["duplicate"] is True
    assert "key" not in again.json()
    assert again.json()["id"] == first.json()["id"]
    other = await http.operator.post("/v1/keys", json={**body, "types": ["video/*"]})
    assert (other.status_code, other.json()["code"]) == (409, "IDEMPOTENCY_CONFLICT")
    assert first.json()["id"] in other.json()["detail"]
    # the key belongs to its project: another project's same one makes another key
    stranger = http.use((await http.make_keys("other"))["operator"])
    assert (await stranger.post("/v1/keys", json=body)).status_code == 201


async def test_b29_ten_equal_creations_at_once_make_one_key(http: Http) -> None:
    body = {"name": "shop", "kind": "metrics", "idempotencyKey": "once"}
    answers = await asyncio.gather(*(http.operator.post("/v1/keys", json=body) for _ in range(10)))
    assert sorted(a.status_code for a in answers) == [200] * 9 + [201]
    assert len({a.json()["id"] for a in answers}) == 1
    assert sum("key" in a.json() for a in answers) == 1


MINTING: list[tuple[str, Json, int, str | None]] = [
    ("operator", {"kind": "admin"}, 403, "SCOPE_DENIED"),
    ("operator", {"kind": "metrics", "project": "elsewhere"}, 404, "NOT_FOUND"),
    ("operator", {"kind": "metrics", "project": "test"}, 201, None),
    ("admin", {"kind": "operator", "project": "test"}, 201, None),
    ("admin", {"kind": "operator", "project": "nowhere"}, 404, "NOT_FOUND"),
    ("admin", {"kind": "operator"}, 400, "INVALID_REQUEST"),
    ("admin", {"kind": "admin"}, 201, None),
    ("admin", {"kind": "admin", "project": "test"}, 400, "INVALID_REQUEST"),
    ("operator", {"kind": "operator", "types": ["a/*"]}, 400, "INVALID_REQUEST"),
    ("operator", {"kind": "task-producer", "pools": ["gpu"]}, 400, "INVALID_REQUEST"),
    ("operator", {"kind": "task-producer", "types": ["a/*"]}, 201, None),
    ("operator", {"kind": "boss"}, 400, "INVALID_REQUEST"),
    ("operator", {"kind": "metrics", "expires": "soon"}, 400, "INVALID_REQUEST"),
    ("operator", {"kind": "metrics", "expiresAt": "2030-01-01"}, 400, "INVALID_REQUEST"),
    ("operator", {"kind": "task-worker", "types": []}, 400, "INVALID_REQUEST"),
]


async def test_who_may_mint_what(http: Http) -> None:
    for caller, body, status, code in MINTING:
        answer = await getattr(http, caller).post("/v1/keys", json={"name": "n", **body})
        assert (answer.status_code, answer.json().get("code")) == (status, code), (caller, body, answer.text)


async def test_an_expired_key_is_unauthenticated(http: Http, clock: Clock) -> None:
    until = clock.now().replace(microsecond=0).isoformat()
    key = await http.make_key("task-producer", expiresAt=until.replace(until[:4], str(int(until[:4]) + 1), 1))
    client = http.use(key)
    assert (await client.post("/v1/tasks", json=TASK)).status_code == 201
    clock.advance(367 * 86400)

    async def refused() -> bool:
        return (await client.post("/v1/tasks", json=TASK)).status_code == 401

    await wait_until_async(refused, 5)
    assert (await client.post("/v1/tasks", json=TASK)).json()["code"] == "UNAUTHENTICATED"


async def test_revoking_twice_is_a_duplicate_and_another_projects_key_is_not_found(http: Http) -> None:
    made = (await http.operator.post("/v1/keys", json={"name": "n", "kind": "metrics"})).json()
    path = f"/v1/keys/{made['id']}/revoke"
    stranger = http.use((await http.make_keys("other"))["operator"])
    assert (await stranger.post(path)).status_code == 404
    first, again = await http.operator.post(path), await http.operator.post(path, json={})
    assert (first.status_code, first.json()["duplicate"], again.json()["duplicate"]) == (200, False, True)
    assert first.json()["revokedAt"] == again.json()["revokedAt"]
    for unknown in ("nothing", "%00", "é"):
        assert (await http.operator.post(f"/v1/keys/{unknown}/revoke")).status_code == 404
    for call in ("revoke", "rotate"):
        refusal = await http.operator.post(f"/v1/keys/n/{call}", json={"overlapSeconds": 0} if call == "rotate" else {})
        assert (refusal.status_code, "by its id, not its name" in refusal.json()["next"]) == (404, True), refusal.text
    audit = await run_sql(http._app.state.database, "SELECT action FROM audit WHERE target = %s ORDER BY id", made["id"])
    assert [row.action for row in audit] == ["key-created", "key-revoked"]


async def test_b77_a_revoked_key_is_refused_within_the_bound_in_every_process(http: Http, database: Database) -> None:
    made = (await http.operator.post("/v1/keys", json={"name": "n", "kind": "task-worker"})).json()
    bearer = f"Bearer {made['key']}"
    rings = [Keyring(database, Settings().key_cache_seconds) for _ in range(20)]
    for ring in rings:
        assert (await ring.verify(bearer)).id == made["id"]
    client = http.use(made["key"])
    claim = {"workerId": "w", "instanceId": "i", "claimId": "c", "slots": 1, "handlers": [{**TASK, "effectSafety": "pure"}]}
    await http.producer.post("/v1/tasks", json=TASK)
    (attempt,) = (await client.post("/v1/claims", json=claim)).json()["attempts"]
    ids = {name: attempt[name] for name in ("taskId", "attemptId", "fence", "leaseToken")}
    started = time.monotonic()
    await http.operator.post(f"/v1/keys/{made['id']}/revoke")

    async def all_refuse() -> bool:
        found = await asyncio.gather(*(ring.verify(bearer) for ring in rings), return_exceptions=True)
        answers = [
            await client.post("/v1/claims", json={**claim, "claimId": "d"}),
            await client.post("/v1/attempts/heartbeat", json={"workerId": "w", "instanceId": "i", "attempts": [ids]}),
        ]
        return all(isinstance(f, KeyRevoked) for f in found) and {a.status_code for a in answers} == {401}

    await wait_until_async(all_refuse, 5)
    assert time.monotonic() - started < 5
    refused = await client.post("/v1/attempts/complete", json={"completions": [{**ids, "outcome": "succeeded"}]})
    assert (refused.status_code, refused.json()["code"]) == (401, "KEY_REVOKED")
    # the lease outlives its key: another worker key of the project reports with its token
    done = await http.worker.post("/v1/attempts/complete", json={"completions": [{**ids, "outcome": "succeeded"}]})
    assert done.json()["completions"][0]["taskStatus"] == "succeeded"
    # only who knows the secret is told that the key was revoked
    guess = made["key"][:-43] + secrets.token_urlsafe(32)
    with pytest.raises(Unauthenticated):
        await Keyring(database, 0).verify(f"Bearer {guess}")


async def test_b77_a_bad_verdict_is_never_remembered(http: Http, database: Database) -> None:
    key_id, secret = "A" * 16, secrets.token_urlsafe(32)
    bearer = f"Bearer il_p_{key_id}_{secret}"
    rings = [Keyring(database, 60) for _ in range(5)]
    client = http.use(bearer.removeprefix("Bearer "))
    for _ in range(10):
        assert (await client.post("/v1/tasks", json=TASK)).status_code == 401
        for ring in rings:
            with pytest.raises(Unauthenticated):
                await ring.verify(bearer)
    digest = hashlib.sha256(secret.encode()).digest()
    await run_sql(
        database,
        "INSERT INTO keys (id, project, kind, name, secret_hash) VALUES (%s, 'test', 'task-producer', 'n', %s)",
        key_id,
        digest,
    )
    assert (await client.post("/v1/tasks", json=TASK)).status_code == 201
    for ring in rings:
        assert (await ring.verify(bearer)).id == key_id


ODD = {
    "non-ascii": [b"Bearer il_p_\xe9\xff"],
    "utf-8": ["Bearer il_p_é".encode()],
    "controls": [b"Bearer \x01\x02\x7f"],
    "nul": [b"Bearer il_p_AAAAAAAAAAAAAAAA_\x00"],
    "100 kB": [b"Bearer " + b"a" * 100_000],
    "two": [b"Bearer one", b"Bearer two"],
    "basic": [b"Basic aWw6aWw="],
    "scheme only": [b"Bearer"],
    "no scheme": [b"il_p_AAAAAAAAAAAAAAAA_" + b"a" * 43],
    "empty": [b""],
    "newline": [b"Bearer a\tb"],
    "unknown": [b"Bearer il_p_AAAAAAAAAAAAAAAA_" + b"a" * 43],
}


# Control characters make no header: the client, or the server in front of the service, refuses them itself.
NO_HEADER = {"controls", "nul"}


async def test_b78_an_odd_authorization_header_is_401(http: Http, caplog: pytest.LogCaptureFixture, hosts: Hosts | None) -> None:
    for name, values in ODD.items():
        if hosts is not None and name in NO_HEADER:
            continue
        caplog.clear()
        with caplog.at_level(logging.DEBUG, "interlock"):
            answer = await http.request("GET", "/v1/tasks", headers=[(b"authorization", value) for value in values])
        assert (answer.status_code, answer.json()["code"]) == (401, "UNAUTHENTICATED"), name
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["content-type"] == "application/problem+json"
        assert set(answer.json()) == {"type", "title", "status", "detail", "code", "retryable", "next", "requestId"}
        assert not [record for record in caplog.records if record.exc_info], name
        for value in values:
            given = value.decode("latin-1").partition(" ")[2]
            assert len(given) < 5 or given[:60] not in answer.text + caplog.text, name


async def test_b78_the_scheme_is_read_in_any_case_and_two_keys_are_none(http: Http) -> None:
    key = http.keys["task-producer"]
    for scheme in ("bearer", "BEARER", "Bearer"):
        assert (await http.get("/v1/tasks", headers={"Authorization": f"{scheme} {key}"})).status_code == 200
    both = [("Authorization", f"Bearer {key}"), ("Authorization", f"Bearer {key}")]
    assert (await http.request("GET", "/v1/tasks", headers=both)).status_code == 401
    assert (await http.get("/v1/tasks")).json()["detail"] == "the request has no Authorization header"


@pytest.mark.parametrize("size", [1, 7, 50])
async def test_b44_keys_made_in_one_instant_are_each_listed_once(http: Http, database: Database, size: int) -> None:
    for number in range(30):
        await http.make_key("metrics", name=f"n{number}")
    await run_sql(database, "UPDATE keys SET created_at = '2026-01-01T00:00:00.123456Z' WHERE project = 'test'")
    wanted = {row.id for row in await run_sql(database, "SELECT id FROM keys WHERE project = 'test'")}
    seen: list[str] = []
    cursor: str | None = None
    for _ in range(len(wanted) + 2):
        page = (await http.operator.get("/v1/keys", params={"limit": size} | ({"cursor": cursor} if cursor else {}))).json()
        seen += [item["id"] for item in page["items"]]
        cursor = page["nextCursor"]
        if cursor is None:
            break
        await http.make_key("metrics")  # newer: it belongs before what was read already
        last = page["items"][-1]["id"]  # the anchor itself goes
        await run_sql(database, "DELETE FROM keys WHERE id = %s AND kind = 'metrics'", last)
    assert cursor is None
    assert sorted(seen) == sorted(wanted)


async def test_b44_a_cursor_of_another_list_or_project_is_refused(http: Http) -> None:
    stranger = http.use((await http.make_keys("other"))["operator"])
    cursor = (await http.operator.get("/v1/keys?limit=1")).json()["nextCursor"]
    assert (await http.operator.get("/v1/keys", params={"cursor": cursor})).status_code == 200
    for client, path in (
        (stranger, "/v1/keys"),
        (http.operator, "/v1/workers"),
        (http.operator, "/v1/tasks"),
        (http.admin, "/v1/projects"),
    ):
        answer = await client.get(path, params={"cursor": cursor})
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_CURSOR")
    for nonsense in ("x", "", "%", "W10", "bnVsbA", "é", "A" * 5000):
        answer = await http.operator.get("/v1/keys", params={"cursor": nonsense})
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_CURSOR"), nonsense


async def test_a_cursor_with_a_forged_anchor_is_refused(http: Http) -> None:
    from interlock_core.wire import cursors

    scope = ["keys", "test"]
    for anchor in (
        ["now", "x"],
        [1, "x"],
        ["2026-01-01T00:00:00Z", "\x00"],
        [None, None],
        ["2026-01-01T00:00:00Z"],
        {"a": 1, "b": 2},
    ):
        answer = await http.operator.get("/v1/keys", params={"cursor": cursors.write(scope, anchor)})  # type: ignore[arg-type]
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_CURSOR"), anchor


async def test_projects_are_made_once_and_listed_by_name(http: Http) -> None:
    for name in ("beta", "alpha", "gamma"):
        assert (await http.admin.post("/v1/projects", json={"name": name, "idempotencyKey": name})).status_code == 201
    again = await http.admin.post("/v1/projects", json={"name": "alpha", "idempotencyKey": "alpha"})
    assert (again.status_code, again.json()["duplicate"]) == (200, True)
    assert (await http.admin.post("/v1/projects", json={"name": "alpha"})).status_code == 200
    for body in ({"name": "delta", "idempotencyKey": "alpha"}, {"name": "alpha", "requireWorker": "online"}):
        conflict = await http.admin.post("/v1/projects", json=body)
        assert (conflict.status_code, conflict.json()["code"]) == (409, "IDEMPOTENCY_CONFLICT")
    for name in ("Upper", "-x", "", "a" * 64, "ä", "a/b"):
        assert (await http.admin.post("/v1/projects", json={"name": name})).status_code == 400
    seen, cursor = [], None
    while True:
        page = (await http.admin.get("/v1/projects", params={"limit": 1} | ({"cursor": cursor} if cursor else {}))).json()
        seen += [item["name"] for item in page["items"]]
        if (cursor := page["nextCursor"]) is None:
            break
    assert seen == ["alpha", "beta", "gamma", "test"]


async def test_a_project_may_require_workers_by_default(http: Http) -> None:
    await http.admin.post("/v1/projects", json={"name": "strict", "requireWorker": "registered"})
    made = await http.admin.post("/v1/keys", json={"name": "p", "kind": "task-producer", "project": "strict"})
    answer = await http.use(made.json()["key"]).post("/v1/tasks", json=TASK)
    assert (answer.status_code, answer.json()["code"]) == (404, "TASK_TYPE_NOT_FOUND")


PRODUCER, WORKER, OPERATOR, METRICS, ADMIN = "task-producer", "task-worker", "operator", "metrics", "admin"
TASK_ID = "01900000-0000-7000-8000-000000000000"
MAY: dict[tuple[str, str], tuple[str, ...]] = {
    ("POST", "/v1/tasks"): (PRODUCER,),
    ("POST", "/v1/tasks/batch"): (PRODUCER,),
    ("GET", "/v1/tasks"): (PRODUCER, OPERATOR),
    ("GET", f"/v1/tasks/{TASK_ID}"): (PRODUCER, OPERATOR),
    ("GET", f"/v1/tasks/{TASK_ID}/journal"): (PRODUCER, OPERATOR),
    ("POST", f"/v1/tasks/{TASK_ID}/cancel"): (PRODUCER, OPERATOR),
    ("POST", f"/v1/tasks/{TASK_ID}/resolve"): (OPERATOR,),
    ("POST", f"/v1/tasks/{TASK_ID}/rerun"): (PRODUCER, OPERATOR),
    ("POST", f"/v1/tasks/{TASK_ID}/signals"): (PRODUCER,),
    ("GET", f"/v1/tasks/{TASK_ID}/steps"): (PRODUCER, OPERATOR),
    ("GET", f"/v1/tasks/{TASK_ID}/children"): (PRODUCER, OPERATOR),
    ("POST", "/v1/tasks/bulk"): (OPERATOR,),
    ("POST", "/v1/task-types/a/b/1/pause"): (OPERATOR,),
    ("POST", "/v1/task-types/a/b/1/resume"): (OPERATOR,),
    ("POST", "/v1/project/pause"): (OPERATOR,),
    ("POST", "/v1/project/resume"): (OPERATOR,),
    ("GET", "/v1/limits"): (OPERATOR,),
    ("PUT", "/v1/limits"): (OPERATOR,),
    ("DELETE", "/v1/limits"): (OPERATOR,),
    ("PUT", "/v1/limits/rate"): (OPERATOR,),
    ("POST", "/v1/workers/w/drain"): (OPERATOR,),
    ("DELETE", "/v1/workers/w"): (OPERATOR,),
    ("POST", "/v1/keys/none/rotate"): (OPERATOR,),
    ("GET", "/v1/audit"): (OPERATOR,),
    ("POST", "/v1/stream-tickets"): (OPERATOR,),
    ("PUT", "/v1/schedules/s"): (PRODUCER, OPERATOR),
    ("GET", "/v1/schedules/s"): (PRODUCER, OPERATOR),
    ("DELETE", "/v1/schedules/s"): (PRODUCER, OPERATOR),
    ("GET", "/v1/schedules"): (PRODUCER, OPERATOR),
    ("POST", "/v1/schedules/s/pause"): (PRODUCER, OPERATOR),
    ("POST", "/v1/schedules/s/resume"): (PRODUCER, OPERATOR),
    ("POST", "/v1/schedules/s/trigger"): (PRODUCER, OPERATOR),
    ("POST", "/v1/claims"): (WORKER,),
    ("POST", "/v1/attempts/heartbeat"): (WORKER,),
    ("POST", "/v1/attempts/complete"): (WORKER,),
    ("POST", "/v1/attempts/release"): (WORKER,),
    ("POST", f"/v1/tasks/{TASK_ID}/attempts/{TASK_ID}/heartbeat"): (WORKER,),
    ("POST", f"/v1/tasks/{TASK_ID}/attempts/{TASK_ID}/complete"): (WORKER,),
    ("POST", f"/v1/tasks/{TASK_ID}/attempts/{TASK_ID}/release"): (WORKER,),
    ("POST", f"/v1/tasks/{TASK_ID}/attempts/{TASK_ID}/steps"): (WORKER,),
    ("POST", f"/v1/tasks/{TASK_ID}/attempts/{TASK_ID}/children"): (WORKER,),
    ("GET", f"/v1/tasks/{TASK_ID}/attempts/{TASK_ID}/steps"): (WORKER,),
    ("GET", f"/v1/tasks/{TASK_ID}/attempts/{TASK_ID}/children"): (WORKER,),
    ("GET", f"/v1/tasks/{TASK_ID}/attempts/{TASK_ID}/signals"): (WORKER,),
    ("PUT", "/v1/workers/w"): (WORKER,),
    ("DELETE", "/v1/workers/w/instances/i"): (WORKER,),
    ("GET", "/v1/task-types"): (PRODUCER, OPERATOR),
    ("GET", "/v1/task-types/a/b/1"): (PRODUCER, OPERATOR),
    ("GET", "/v1/workers"): (PRODUCER, OPERATOR),
    ("GET", "/v1/workers/w"): (PRODUCER, OPERATOR),
    ("GET", "/v1/doctor"): (PRODUCER, WORKER, OPERATOR),
    ("GET", "/v1/config"): (PRODUCER, WORKER, OPERATOR, METRICS, ADMIN),
    ("GET", "/v1/metrics"): (OPERATOR, METRICS),
    ("POST", "/v1/keys"): (OPERATOR, ADMIN),
    ("GET", "/v1/keys"): (OPERATOR,),
    ("POST", "/v1/keys/none/revoke"): (OPERATOR,),
    ("POST", "/v1/projects"): (ADMIN,),
    ("GET", "/v1/projects"): (ADMIN,),
    ("GET", "/healthz"): (),
    ("GET", "/readyz"): (),
    ("GET", "/openapi.json"): (),
    ("GET", "/tasks.md"): (),
}


async def test_every_kind_of_key_may_exactly_what_the_table_says(http: Http) -> None:
    assert len(MAY) == len(http._app.state.endpoints)
    for (method, path), may in MAY.items():
        place = f"{method} {path}"
        bare = await http.request(method, path)
        assert (bare.status_code == 401) == bool(may), place
        for kind, key in http.keys.items():
            answer = await http.request(method, path, headers={"Authorization": f"Bearer {key}"})
            if kind in may or not may:
                assert answer.status_code not in (401, 403), (place, kind, answer.text)
                continue
            problem = answer.json()
            assert (answer.status_code, problem["code"], problem["retryable"]) == (403, "SCOPE_DENIED", False), (place, kind)
            assert kind in problem["detail"]
            assert all(allowed in problem["detail"] for allowed in may)
            assert any(allowed in problem["next"] for allowed in may)


def test_every_refusal_says_what_to_do_next() -> None:
    def tree(problem: type[Problem]) -> list[type[Problem]]:
        return [problem, *(found for child in problem.__subclasses__() for found in tree(child))]

    for problem in tree(Problem):
        assert problem.default_next.endswith("."), problem
