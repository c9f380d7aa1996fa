"""What an operator does: rerun, bulk, pause, drain, limits, rate, rotation, the trail (docs/protocol.md, operator calls)."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from support.clock import Clock
from support.play import Play

Json = dict[str, Any]


async def post(play: Play, path: str, body: Json | None = None) -> Json:
    answer = await play.http.operator.post(path, json=body or {})
    assert answer.status_code in (200, 201), answer.text
    found: Json = answer.json()
    return found


async def rerun_raw(play: Play, task_id: str, **fields: Any) -> httpx.Response:
    return await play.http.producer.post(f"/v1/tasks/{task_id}/rerun", json=fields)


async def settled(play: Play, **fields: Any) -> Json:
    attempt = await play.run(**fields)
    await play.complete(attempt, result=1)
    return await play.get(attempt["taskId"])


async def test_rerun_is_a_new_task_with_what_was_submitted(play: Play) -> None:
    old = await settled(
        play,
        input={"n": 2**60},
        tags={"a": "b"},
        priority=3,
        idempotencyKey="k",
        retry={"maxAttempts": 2},
        trace={"traceparent": "x"},
    )
    answer = await rerun_raw(play, old["id"])
    new = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (201, f"/v1/tasks/{new['id']}")
    same = ("type", "schemaVersion", "input", "tags", "priority", "pool", "retry", "concurrency", "timeoutSeconds")
    assert [new[name] for name in same] == [old[name] for name in same]
    assert (new["rerunOf"], new["idempotencyKey"], new["status"], new["effectScope"]) == (old["id"], None, "queued", new["id"])
    assert [t["id"] for t in (await play.http.producer.get(f"/v1/tasks?rerunOf={old['id']}")).json()["items"]] == [new["id"]]
    assert (await play.claim())[0]["rerunOf"] == old["id"]


async def test_rerun_takes_another_input_and_may_keep_the_effect_keys(play: Play) -> None:
    old = await settled(play)
    new = (await rerun_raw(play, old["id"], input=None, keepEffectKeys=True)).json()
    assert (new["input"], new["effectScope"]) == (None, old["id"])


async def test_rerun_starts_from_the_submitted_policy_not_from_the_handlers(play: Play) -> None:
    handler = {"type": "demo/hello", "schemaVersion": 1, "effectSafety": "pure", "leaseSeconds": 33}
    await play.http.worker.put("/v1/workers/tester", json={"instanceId": "one", "handlers": [handler]})
    old = await settled(play)
    assert old["leaseSeconds"] == 33
    handler["leaseSeconds"] = 44
    await play.http.worker.put("/v1/workers/tester", json={"instanceId": "one", "handlers": [handler]})
    await rerun_raw(play, old["id"])
    assert (await play.claim())[0]["leaseSeconds"] == 44


async def test_b29_rerun_with_one_key_is_one_task(play: Play) -> None:
    old = await settled(play, idempotencyKey="first")
    one, two = [await rerun_raw(play, old["id"], idempotencyKey="again") for _ in range(2)]
    assert (one.status_code, two.status_code, two.json()["deduplicated"]) == (201, 200, True)
    assert one.json()["id"] == two.json()["id"] != old["id"]
    other = await rerun_raw(play, old["id"], idempotencyKey="again", input=5)
    assert (other.status_code, other.json()["code"]) == (409, "IDEMPOTENCY_CONFLICT")
    other = await rerun_raw(play, old["id"], idempotencyKey="first")
    assert other.json()["code"] == "IDEMPOTENCY_CONFLICT"


async def test_rerun_of_what_is_not_settled_is_refused(play: Play) -> None:
    queued = await play.submit()
    assert (await rerun_raw(play, queued["id"])).json()["code"] == "TASK_NOT_FINISHED"
    attempt = (await play.claim())[0]
    assert (await rerun_raw(play, queued["id"])).json()["code"] == "TASK_NOT_FINISHED"
    await play.complete(attempt, "unknown", error={"code": "X"})
    assert (await rerun_raw(play, queued["id"])).json()["code"] == "OUTCOME_UNKNOWN"
    assert (await rerun_raw(play, "019a0000-0000-7000-8000-000000000000")).status_code == 404


async def test_bulk_cancel(play: Play) -> None:
    for n in range(5):
        await play.submit(tags={"batch": str(n % 2)})
    running = (await play.claim())[0]
    wanted = {"filter": {"tag": "batch:0"}, "action": "cancel", "idempotencyKey": "b1"}
    assert (await post(play, "/v1/tasks/bulk", wanted | {"dryRun": True}))["matched"] == 3
    done = await post(play, "/v1/tasks/bulk", wanted)
    assert (done["matched"], done["changed"], done["skipped"], done["duplicate"]) == (3, 3, 0, False)
    assert await post(play, "/v1/tasks/bulk", wanted) == done | {"duplicate": True}
    assert (await play.get(running["taskId"]))["cancelRequested"] is True
    assert len((await play.http.producer.get("/v1/tasks?status=cancelled")).json()["items"]) == 2
    answer = await play.http.operator.post("/v1/tasks/bulk", json=wanted | {"filter": {}})
    assert answer.json()["code"] == "IDEMPOTENCY_CONFLICT"


async def test_bulk_rerun_never_touches_what_is_unknown(play: Play) -> None:
    for _ in range(3):
        attempt = await play.run()
        await play.complete(attempt, "failed", error={"code": "X"})
    unknown = await play.run()
    await play.complete(unknown, "unknown", error={"code": "X"})
    done = await post(play, "/v1/tasks/bulk", {"filter": {}, "action": "rerun", "idempotencyKey": "r"})
    assert (done["matched"], done["changed"], done["skipped"]) == (4, 3, 1)
    assert len((await play.http.producer.get("/v1/tasks?status=queued")).json()["items"]) == 3


async def test_bulk_names_an_unknown_filter(play: Play) -> None:
    body = {"filter": {"stats": "queued"}, "action": "cancel", "idempotencyKey": "b"}
    answer = await play.http.operator.post("/v1/tasks/bulk", json=body)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (400, "/filter/stats")


@pytest.mark.parametrize("name", ["status", "type", "tag", "pool", "createdBefore", "schemaVersion"])
async def test_a_bulk_filter_without_a_value_is_refused(play: Play, name: str) -> None:
    """A program whose list came out empty did not mean every task of the project."""
    await play.submit()
    body = {"filter": {name: []}, "action": "cancel", "idempotencyKey": "b"}
    answer = await play.http.operator.post("/v1/tasks/bulk", json=body)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (400, f"/filter/{name}")


async def test_a_paused_type_is_not_claimed_until_it_is_resumed(play: Play, clock: Clock) -> None:
    running = await play.run()
    task = await play.submit()
    assert await post(play, "/v1/task-types/demo/hello/1/pause") == {
        "type": "demo/hello", "schemaVersion": 1, "paused": True, "duplicate": False,
    }  # fmt: skip
    assert (await post(play, "/v1/task-types/demo/hello/1/pause"))["duplicate"] is True
    answer = (await play.http.worker.post("/v1/claims", json=play.claim_body())).json()
    assert (answer["attempts"], answer["more"]) == ([], False)
    assert (await play.get(task["id"]))["waiting"]["reason"] == "paused"
    assert (await play.complete(running, result=1))["taskStatus"] == "succeeded"
    clock.advance(90_000)
    await play.sweep()
    assert (await play.get(task["id"]))["status"] == "queued"  # paused work waits without limit
    await post(play, "/v1/task-types/demo/hello/1/resume")
    assert [a["taskId"] for a in await play.claim()] == [task["id"]]


async def test_a_paused_project(play: Play) -> None:
    await post(play, "/v1/project/pause")
    task = await play.submit()
    assert (task["waiting"]["reason"], await play.claim()) == ("paused", [])
    assert (await post(play, "/v1/project/resume"))["duplicate"] is False
    assert len(await play.claim()) == 1


async def test_a_drained_worker_claims_nothing_and_is_told(play: Play) -> None:
    attempt = await play.run()
    await play.submit()
    assert await post(play, "/v1/workers/tester/drain") == {"workerId": "tester", "instances": ["one"], "duplicate": False}
    assert (await post(play, "/v1/workers/tester/drain"))["duplicate"] is True
    answer = (await play.http.worker.post("/v1/claims", json=play.claim_body())).json()
    assert (answer["attempts"], answer["drain"]) == ([], True)
    body = {"workerId": "tester", "instanceId": "one", "attempts": []}
    assert (await play.http.worker.post("/v1/attempts/heartbeat", json=body)).json()["drain"] is True
    assert (await play.complete(attempt, result=1))["taskStatus"] == "succeeded"
    assert len(await play.claim(instance="two")) == 1  # the instances then alive
    assert (await play.http.operator.post("/v1/workers/nobody/drain", json={})).status_code == 404


async def test_a_removed_worker_is_no_longer_registered(play: Play) -> None:
    handler = {"type": "demo/hello", "schemaVersion": 1, "effectSafety": "pure"}
    await play.http.worker.put("/v1/workers/tester", json={"instanceId": "one", "handlers": [handler]})
    answer = await play.http.operator.delete("/v1/workers/tester")
    assert answer.json() == {"workerId": "tester", "removed": True, "duplicate": False}
    assert (await play.http.operator.delete("/v1/workers/tester")).json()["duplicate"] is True
    await play.submit()
    assert len(await play.claim()) == 1


async def test_an_operators_limit_bounds_the_tasks_own(play: Play) -> None:
    for _ in range(5):
        await play.submit(concurrency={"key": "K", "limit": 3})
    assert (await play.http.operator.put("/v1/limits?key=K", json={"limit": 1})).json()["limit"] == 1
    first = await play.claim(slots=5)
    assert len(first) == 1
    found = (await play.http.operator.get("/v1/limits?key=K")).json()
    assert found["items"] == [{"key": "K", "limit": 1, "held": 1}]
    await play.http.operator.delete("/v1/limits?key=K")
    assert len(await play.claim(slots=5)) == 2
    assert (await play.http.operator.put("/v1/limits", json={"limit": 1})).status_code == 400


async def test_every_limit_is_listed_a_page_at_a_time(play: Play) -> None:
    names = sorted(f"key {n}" for n in range(23))
    for name in names:
        await play.http.operator.put("/v1/limits", params={"key": name}, json={"limit": 3})
    met: list[str] = []
    cursor: str | None = None
    while cursor or not met:
        page = (await play.http.operator.get("/v1/limits", params={"limit": 10} | ({"cursor": cursor} if cursor else {}))).json()
        assert page["rate"] == {"perSecond": None, "burst": None}
        met += [item["key"] for item in page["items"]]
        cursor = page["nextCursor"]
    assert met == names
    assert (await play.http.operator.get("/v1/limits", params={"key": "x", "cursor": "W10"})).json()["code"] == "INVALID_CURSOR"


async def test_a_key_that_submits_too_fast_is_told_when_to_come_back(play: Play, clock: Clock) -> None:
    clock.hold()
    await play.http.operator.put("/v1/limits/rate", json={"perSecond": 1, "burst": 2})
    key = play.http.use(await play.http.make_key("task-producer"))
    body = {"type": "demo/hello", "schemaVersion": 1, "input": {}}
    assert (await key.post("/v1/tasks", json=body | {"idempotencyKey": "k"})).status_code == 201
    assert (await key.post("/v1/tasks", json=body)).status_code == 201
    refused = await key.post("/v1/tasks", json=body)
    assert (refused.status_code, refused.json()["code"], refused.headers["retry-after"]) == (429, "RATE_LIMITED", "1")
    assert (await key.post("/v1/tasks", json=body | {"idempotencyKey": "k"})).status_code == 200  # a repeat is never refused
    clock.advance(1)
    assert (await key.post("/v1/tasks", json=body)).status_code == 201
    assert (await key.post("/v1/tasks", json=body)).status_code == 429
    clock.advance(-3600)  # a clock that is set back locks nobody out
    assert [(await key.post("/v1/tasks", json=body)).status_code for _ in range(3)] == [201, 201, 429]
    assert (await play.submit_raw()).status_code == 201  # another key has an allowance of its own
    batch = await key.post("/v1/tasks/batch", json={"tasks": [body] * 3})
    assert (batch.status_code, batch.json()["code"], batch.json()["retryable"]) == (422, "LIMIT_EXCEEDED", False)
    await play.http.operator.put("/v1/limits/rate", json={"perSecond": None, "burst": None})
    assert (await key.post("/v1/tasks", json=body)).status_code == 201


async def test_a_rotated_key_lives_for_its_overlap(play: Play, clock: Clock) -> None:
    old = await play.http.make_key("task-worker", types=["demo/*"])
    key_id = old.split("_")[2]
    answer = await play.http.operator.post(f"/v1/keys/{key_id}/rotate", json={"overlapSeconds": 60, "idempotencyKey": "r"})
    new = answer.json()
    assert (answer.status_code, new["types"], new["kind"]) == (201, ["demo/*"], "task-worker")
    again = await play.http.operator.post(f"/v1/keys/{key_id}/rotate", json={"overlapSeconds": 60, "idempotencyKey": "r"})
    assert (again.status_code, again.json()["id"], "key" in again.json()) == (200, new["id"], False)
    body = play.claim_body()
    assert (await play.http.use(old).post("/v1/claims", json=body)).status_code == 200
    assert (await play.http.use(new["key"]).post("/v1/claims", json=body)).status_code == 200
    clock.advance(61)
    second = await play.http.make_key("task-worker")  # a key that this process has not verified yet
    assert (await play.http.use(second).post("/v1/claims", json=body)).status_code == 200
    listed = {k["id"]: k for k in (await play.http.operator.get("/v1/keys")).json()["items"]}
    assert listed[key_id]["expiresAt"] is not None
    again = await play.http.operator.post(f"/v1/keys/{key_id}/rotate", json={"overlapSeconds": 60, "idempotencyKey": "r"})
    assert (again.status_code, again.json()["id"]) == (200, new["id"])  # the same call still, whatever became of the old key
    refused = await play.http.operator.post(f"/v1/keys/{key_id}/rotate", json={"overlapSeconds": 60, "idempotencyKey": "r2"})
    assert (refused.status_code, refused.json()["code"]) == (400, "INVALID_REQUEST")
    assert "has expired" in refused.json()["detail"]


async def test_the_trail_says_who_did_what(play: Play) -> None:
    await post(play, "/v1/task-types/demo/hello/1/pause")
    await post(play, "/v1/task-types/demo/hello/1/pause")
    await play.http.operator.put("/v1/limits?key=K", json={"limit": 1})
    items = (await play.http.operator.get("/v1/audit?limit=2")).json()
    assert [(i["action"], i["target"]) for i in items["items"]] == [("limit-set", "K"), ("type-paused", "demo/hello@1")]
    assert items["items"][0]["keyId"] == play.http.keys["operator"].split("_")[2]
    assert items["nextCursor"]
