"""Submitting: one key names one request, a batch is all or none, every refusal says what to do (docs/protocol.md)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from interlock_core.db import Database
from support.play import Play

HELLO: dict[str, Any] = {"type": "demo/hello", "schemaVersion": 1, "input": {}}


async def register(play: Play, **fields: Any) -> None:
    handler = {"type": "demo/hello", "schemaVersion": 1, "effectSafety": "pure"} | fields.pop("handler", {})
    answer = await play.http.worker.put("/v1/workers/tester", json={"instanceId": "one", "handlers": [handler], **fields})
    assert answer.status_code == 200, answer.text


async def test_a_repeat_is_answered_with_its_task_whatever_has_happened(play: Play) -> None:
    attempt = await play.run(idempotencyKey="k")
    await play.complete(attempt, result=7)
    answer = await play.submit_raw(idempotencyKey="k")
    assert (answer.status_code, answer.json()["id"]) == (200, attempt["taskId"])
    assert (answer.json()["deduplicated"], answer.json()["result"]) == (True, 7)


async def test_a_repeat_passes_every_admission_check(play: Play) -> None:
    await register(play)
    first = await play.submit(idempotencyKey="k", requireWorker="registered")
    other = {"handlers": [{"type": "demo/other", "schemaVersion": 1, "effectSafety": "pure"}], "instanceId": "one"}
    await play.http.worker.put("/v1/workers/tester", json=other)
    assert (await play.submit(idempotencyKey="k", requireWorker="online"))["id"] == first["id"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"priority": 0}, {}),
        ({"pool": "default"}, {}),
        ({"tags": {}}, {}),
        ({"retry": {"maxAttempts": 5}}, {"retry": {"maxAttempts": 5, "jitter": 0.2}}),
        ({"input": {"a": 1.0, "b": [1e0, -0]}}, {"input": {"b": [1, 0], "a": 1}}),
        ({"trace": {"traceparent": "00-x"}}, {}),
        ({"delaySeconds": 60}, {"delaySeconds": 60.0}),
        ({"runAt": "2030-01-01T00:00:00Z"}, {"runAt": "2030-01-01T01:00:00+01:00"}),
    ],
)
async def test_equal_requests_are_one(play: Play, first: dict[str, Any], second: dict[str, Any]) -> None:
    one = await play.submit(idempotencyKey="k", **first)
    two = await play.submit(idempotencyKey="k", **second)
    assert (one["id"], two["deduplicated"]) == (two["id"], True)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("input", {"input": {"n": 2}}),
        ("priority", {"priority": 1}),
        ("schemaVersion", {"schemaVersion": 2}),
        ("tags", {"tags": {"a": "b"}}),
        ("retry", {"retry": {"maxAttempts": 2}}),
        ("delaySeconds", {"delaySeconds": 1}),
        ("concurrency", {"concurrency": {"key": "K", "limit": 1}}),
    ],
)
async def test_another_request_under_one_key_names_the_field(play: Play, field: str, change: dict[str, Any]) -> None:
    first = await play.submit(idempotencyKey="k")
    answer = await play.submit_raw(idempotencyKey="k", **change)
    body = answer.json()
    assert (answer.status_code, body["code"], body["retryable"]) == (409, "IDEMPOTENCY_CONFLICT", False)
    assert (body["taskId"], body["field"]) == (first["id"], field)
    assert body["next"]


async def test_b25_numbers_that_differ_are_other_requests(play: Play) -> None:
    await play.submit(idempotencyKey="k", input={"id": 2**53})
    assert (await play.submit_raw(idempotencyKey="k", input={"id": 2**53 + 1})).status_code == 409


async def test_b21_fifty_submits_at_once_on_one_key_are_one_task(play: Play) -> None:
    answers = await asyncio.gather(*(play.submit_raw(idempotencyKey="k") for _ in range(50)))
    assert {a.json()["id"] for a in answers} == {answers[0].json()["id"]}
    assert sorted(a.status_code for a in answers) == [200] * 49 + [201]


async def test_submits_that_share_a_flight_have_their_own_verdicts(play: Play) -> None:
    await play.submit(idempotencyKey="taken")
    calls = [play.submit_raw(input={"n": n}) for n in range(5)]
    calls += [play.submit_raw(idempotencyKey="taken", input={"other": 1}), play.submit_raw(requireWorker="registered")]
    answers = await asyncio.gather(*calls)
    assert [a.status_code for a in answers] == [201] * 5 + [409, 404]
    for n, answer in enumerate(answers[:5]):
        assert (await play.get(answer.json()["id"]))["input"] == {"n": n}


async def test_a_batch_is_stored_in_order(play: Play) -> None:
    known = await play.submit(idempotencyKey="known")
    tasks = [HELLO | {"input": n} for n in range(3)] + [
        HELLO | {"idempotencyKey": "known"},
        HELLO | {"idempotencyKey": "new"},
    ] * 2
    answer = await play.http.producer.post("/v1/tasks/batch", json={"tasks": tasks})
    assert answer.status_code == 201
    items = answer.json()["items"]
    assert [i["deduplicated"] for i in items] == [False, False, False, True, False, True, True]
    assert items[3]["id"] == items[5]["id"] == known["id"]
    assert items[4]["id"] == items[6]["id"]
    assert [(await play.get(items[n]["id"]))["input"] for n in range(3)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("bad", "status", "code", "pointer"),
    [
        ({"type": "nonsense"}, 400, "INVALID_TYPE", "/tasks/2/type"),
        ({"priorty": 1}, 400, "INVALID_REQUEST", "/tasks/2/priorty"),
        ({"idempotencyKey": "known", "input": 5}, 409, "IDEMPOTENCY_CONFLICT", "/tasks/2/input"),
        ({"input": "x" * 262_144}, 413, "PAYLOAD_TOO_LARGE", "/tasks/2/input"),
        ({"requireWorker": "registered"}, 404, "TASK_TYPE_NOT_FOUND", None),
    ],
)
async def test_one_bad_item_stores_nothing(
    play: Play, database: Database, bad: dict[str, Any], status: int, code: str, pointer: str | None
) -> None:
    await play.submit(idempotencyKey="known")
    answer = await play.http.producer.post(
        "/v1/tasks/batch", json={"tasks": [HELLO, HELLO | {"idempotencyKey": "n"}, HELLO | bad]}
    )
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    if pointer is not None:
        assert answer.json()["errors"][0]["pointer"] == pointer
    assert len((await play.http.producer.get("/v1/tasks")).json()["items"]) == 1
    assert (await play.submit_raw(idempotencyKey="n", input="free again")).status_code == 201


async def test_require_worker(play: Play) -> None:
    answer = await play.submit_raw(requireWorker="registered")
    assert (answer.status_code, answer.json()["code"]) == (404, "TASK_TYPE_NOT_FOUND")
    answer = await play.submit_raw(type="inference/chat", requireWorker="online")
    body = answer.json()
    assert (answer.status_code, body["code"], answer.headers["retry-after"]) == (503, "NO_ELIGIBLE_INFERENCE_WORKER", "5")
    assert (body["managedFallbackUsed"], body["billed"], body["retryable"]) == (False, False, True)
    await register(play)
    assert (await play.submit_raw(requireWorker="registered")).status_code == 201
    assert (await play.submit_raw(requireWorker="online")).status_code == 201
    assert (await play.submit_raw(requireWorker="online", pool="gpu")).json()["code"] == "NO_ELIGIBLE_WORKER"


async def test_a_type_that_nobody_registered_is_stored_with_a_warning(play: Play) -> None:
    task = await play.submit()
    assert task["warnings"][0]["code"] == "TYPE_NEVER_REGISTERED"
    await register(play)
    assert (await play.submit())["warnings"] == []


async def test_a_task_that_was_claimed_before_is_not_told_to_be_unclaimed(play: Play) -> None:
    attempt = await play.run()
    await play.release(attempt, reason="drain")
    waiting = (await play.get(attempt["taskId"]))["waiting"]
    assert waiting["reason"] == "no-worker"
    assert waiting["detail"] == "it waits for a worker's next claim; 1 slot is free for demo/hello@1"


async def test_why_it_waits(play: Play) -> None:
    async def reason(**fields: Any) -> tuple[str, str]:
        waiting = (await play.submit(**fields))["waiting"]
        return waiting["reason"], waiting["detail"]

    assert (await reason())[0] == "no-worker"
    await register(play, handler={"schemaVersion": 2}, pool="gpu", slots=1)
    found, detail = await reason()
    assert (found, detail) == (
        "no-worker",
        "no worker serves demo/hello@1 in pool default; worker tester serves demo/hello@2 in pool gpu",
    )
    assert (await reason(type="Demo/Hello", schemaVersion=2, pool="gpu"))[0] == "no-worker"
    assert (await reason(delaySeconds=5))[0] == "not-due"
    await play.submit(type="demo/busy")
    assert len(await play.claim(type="demo/busy")) == 1
    assert (await reason(type="demo/busy"))[0] == "workers-full"
    keyed = {"concurrency": {"key": "K", "limit": 1}, "type": "demo/keyed"}
    await play.submit(**keyed)
    assert len(await play.claim(type="demo/keyed")) == 1
    assert (await reason(**keyed))[0] == "concurrency-limit"


@pytest.mark.parametrize(
    ("change", "code", "pointer"),
    [
        ({"type": "audio/transcribe@1"}, "INVALID_TYPE", "/type"),
        ({"schemaVersion": 0}, "INVALID_REQUEST", "/schemaVersion"),
        ({"schemaVersion": "1"}, "INVALID_REQUEST", "/schemaVersion"),
        ({"priority": 101}, "INVALID_REQUEST", "/priority"),
        ({"runAt": "tomorrow"}, "INVALID_REQUEST", "/runAt"),
        ({"runAt": "2030-01-01T00:00:00"}, "INVALID_REQUEST", "/runAt"),
        ({"runAt": "2030-01-01T00:00:00Z", "delaySeconds": 1}, "INVALID_REQUEST", ""),
        ({"idempotencyKey": ""}, "INVALID_REQUEST", "/idempotencyKey"),
        ({"idempotencyKey": "a\nb"}, "INVALID_REQUEST", "/idempotencyKey"),
        ({"retry": {"maxAttempts": 0}}, "INVALID_REQUEST", "/retry/maxAttempts"),
        ({"retry": {"tries": 1}}, "INVALID_REQUEST", "/retry/tries"),
        ({"concurrency": {"key": "k"}}, "INVALID_REQUEST", "/concurrency/limit"),
        ({"tags": {"a:b": "c"}}, "INVALID_REQUEST", "/tags/a:b/[key]"),
        ({"tags": {str(n): "" for n in range(17)}}, "INVALID_REQUEST", "/tags"),
        ({"leaseSeconds": 5}, "INVALID_REQUEST", "/leaseSeconds"),
        ({"idempotencykey": "k"}, "INVALID_REQUEST", "/idempotencykey"),
    ],
)
async def test_a_bad_field_is_named(play: Play, change: dict[str, Any], code: str, pointer: str) -> None:
    answer = await play.submit_raw(**change)
    body = answer.json()
    assert (answer.status_code, body["code"], body["errors"][0]["pointer"]) == (400, code, pointer), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert body["requestId"] == answer.headers["x-request-id"]


async def test_audio_transcribe_at_1_says_how_to_send_it(play: Play) -> None:
    body = (await play.submit_raw(type="audio/transcribe@1")).json()
    assert body["next"] == 'Send "type": "audio/transcribe" and "schemaVersion": 1 as two fields.'
    latest = (await play.submit_raw(type="audio/transcribe@latest")).json()
    assert latest["next"] == 'Send a "type" without @, and its "schemaVersion", a whole number, as a field of its own.'


async def test_lists_filter_and_hide_input_and_result(play: Play) -> None:
    tagged = await play.submit(tags={"order": "17"}, pool="gpu", idempotencyKey="k")
    await play.submit(type="demo/other")
    for query in (
        "tag=order:17",
        "pool=gpu",
        "idempotencyKey=k",
        "type=demo/hello&status=queued",
        "schemaVersion=1&type=demo/hello",
    ):
        items = (await play.http.producer.get(f"/v1/tasks?{query}")).json()["items"]
        assert [i["id"] for i in items] == [tagged["id"]], query
        assert not {"input", "result"} & set(items[0])
    for query in ("stats=x", "status=done", "limit=0", "limit=201", "schemaVersion=x", "tag=x", "createdAfter=x", "parentId=1"):
        answer = await play.http.producer.get(f"/v1/tasks?{query}")
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST"), query


async def test_another_projects_task_does_not_exist(play: Play) -> None:
    task = await play.submit()
    keys = await play.http.make_keys("other")
    stranger, operator = play.http.use(keys["task-producer"]), play.http.use(keys["operator"])
    for answer in (
        await stranger.get(f"/v1/tasks/{task['id']}"),
        await stranger.get(f"/v1/tasks/{task['id']}/journal"),
        await stranger.post(f"/v1/tasks/{task['id']}/cancel", json={}),
        await operator.post(f"/v1/tasks/{task['id']}/resolve", json={"as": "failed", "attemptId": "x", "note": ""}),
        await stranger.get("/v1/tasks/nonsense"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")
    assert (await stranger.get("/v1/tasks")).json()["items"] == []


async def test_attempts_of_a_task(play: Play) -> None:
    attempt = await play.run()
    await play.release(attempt)
    again = (await play.claim())[0]
    await play.complete(again, result=1)
    found = (await play.http.producer.get(f"/v1/tasks/{attempt['taskId']}?include=attempts")).json()["attemptList"]
    assert [(a["fence"], a["end"]) for a in found] == [(1, "released"), (2, "succeeded")]
