"""What a hostile or broken caller may send: nobody else pays for it, and nothing is believed that should not be."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest

from interlock_core.db import Database
from support.play import Play, ids

HUGE = ("1e-99999999999999999999", "0e99999999999999999999", "0e-99999999999999999999", "1E+00000012345678")


@pytest.mark.parametrize("number", HUGE)
async def test_b26_exponents_that_no_arithmetic_can_carry(play: Play, number: str) -> None:
    body = f'{{"type": "demo/hello", "schemaVersion": 1, "idempotencyKey": "k", "input": [{number}]}}'
    answer = await play.http.producer.post("/v1/tasks", content=body.encode())
    assert (answer.status_code, answer.json()["code"], answer.json()["errors"][0]["pointer"]) == (400, "INVALID_JSON", "/input/0")
    attempts = [await play.run() for _ in range(3)]
    parts = [json.dumps({**ids(a), "outcome": "succeeded"})[:-1] for a in attempts]
    items = [f'{part}, "result": {value}}}' for part, value in zip(parts, ("1", number, "2"), strict=True)]
    answer = await play.http.worker.post("/v1/attempts/complete", content=f'{{"completions": [{", ".join(items)}]}}'.encode())
    assert [i["taskStatus"] for i in answer.json()["completions"]] == ["succeeded", "failed", "succeeded"]


async def test_a_claim_that_cannot_even_be_told_back_does_not_cost_the_completions_their_answer(play: Play) -> None:
    attempt = await play.run()
    item = json.dumps({**ids(attempt), "outcome": "succeeded", "result": 1})
    claim = json.dumps(play.claim_body() | {"handlers": [{"type": "\ud800", "schemaVersion": 1, "effectSafety": "pure"}]})
    answer = await play.http.worker.post(
        "/v1/attempts/complete", content=f'{{"completions": [{item}], "claim": {claim}}}'.encode()
    )
    assert (answer.status_code, answer.json()["completions"][0]["taskStatus"]) == (200, "succeeded")
    assert answer.json()["claim"]["error"]["code"] == "INVALID_JSON"
    lone = await play.http.worker.post("/v1/attempts/heartbeat", content=b'{"workerId": "\\ud800", "instanceId": "i"}')
    assert (lone.status_code, lone.json()["code"]) == (400, "INVALID_REQUEST")


async def test_a_narrowing_with_a_control_character_is_refused(play: Play) -> None:
    answer = await play.http.operator.post("/v1/keys", json={"name": "n", "kind": "task-worker", "types": ["a\u0000b"]})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (400, "/types/0")


async def test_b29_bulk_reruns_under_long_keys_are_two(play: Play) -> None:
    attempt = await play.run()
    await play.complete(attempt, result=1)
    for key in ("x" * 250 + "a", "x" * 250 + "b"):
        body = {"filter": {"status": "succeeded"}, "action": "rerun", "idempotencyKey": key}
        assert (await play.http.operator.post("/v1/tasks/bulk", json=body)).json()["changed"] == 1
    assert len((await play.http.producer.get("/v1/tasks")).json()["items"]) == 3


async def test_a_claim_is_given_back_only_while_nothing_was_heard_of_it(play: Play) -> None:
    for n in range(10):
        task = await play.submit()
        attempt = (await play.claim(claim_id=f"c{n}", safety="non-idempotent"))[0]
        release = {"workerId": "tester", "instanceId": "one", "claimId": f"c{n}"}
        beat, given = await asyncio.gather(
            play.heartbeat(attempt, progress={"percent": 1}), play.http.worker.post("/v1/attempts/release", json=release)
        )
        kinds = await play.kinds(task["id"])
        if "released" in kinds:  # the release came first: the report is stale, or met it half-way and is to be repeated
            assert beat["error"]["code"] in ("STALE_ATTEMPT", "UNAVAILABLE")
            assert "progress" not in kinds
        else:
            assert given.json()["attempts"] == []
            await play.complete(attempt, result=1)
            continue
        await play.cancel(task["id"])


async def test_a_repeated_release_of_a_claim_is_answered_as_the_first(play: Play) -> None:
    await play.submit()
    await play.claim(claim_id="lost")
    body = {"workerId": "tester", "instanceId": "one", "claimId": "lost"}
    first = (await play.http.worker.post("/v1/attempts/release", json=body)).json()["attempts"]
    again = (await play.http.worker.post("/v1/attempts/release", json=body)).json()["attempts"]
    assert again == [first[0] | {"duplicate": True}]


@pytest.mark.parametrize("repaired_by", ["claim", "sweep"])
async def test_b07_a_ready_task_whose_key_is_full_does_not_stand_in_the_way(
    play: Play, database: Database, repaired_by: str
) -> None:
    await play.submit(concurrency={"key": "K", "limit": 1})
    assert len(await play.claim()) == 1
    blocked = await play.submit(concurrency={"key": "K", "limit": 1}, priority=5)
    free = await play.submit()
    async with database.connection() as connection:  # as a claim that died before its admission would leave it
        await connection.execute("UPDATE tasks SET hold = NULL WHERE id = %s", [blocked["id"]])
    if repaired_by == "sweep":
        await play.sweep()
    else:
        answer = (await play.http.worker.post("/v1/claims", json=play.claim_body())).json()
        assert (answer["attempts"], answer["pollAfterSeconds"]) == ([], 0.2)
    assert [a["taskId"] for a in await play.claim()] == [free["id"]]


async def test_one_attempt_many_times_in_a_batch_is_as_many_calls(play: Play) -> None:
    attempt = await play.run()
    right = {**ids(attempt), "outcome": "succeeded", "result": 1}
    forged = right | {"leaseToken": "1.forged"}
    items: list[dict[str, Any]] = [forged, right, right, right | {"outcome": "failed"}, forged, right | {"fence": 2}]
    answer = (await play.http.worker.post("/v1/attempts/complete", json={"completions": items})).json()["completions"]
    assert [a.get("duplicate", a.get("error", {}).get("code")) for a in answer] == [
        "STALE_ATTEMPT", False, True, "STALE_ATTEMPT", "STALE_ATTEMPT", "STALE_ATTEMPT",
    ]  # fmt: skip


async def test_bodies_that_would_cost_seconds_are_refused_at_once(play: Play) -> None:
    many = b'{"type": "demo/hello", "schemaVersion": 1, "input": 1, ' + b", ".join(b'"f%d": 1' % n for n in range(50_000)) + b"}"
    answer = await play.http.producer.post("/v1/tasks", content=many)
    assert (answer.status_code, len(answer.json()["errors"])) == (400, 1)
    answer = await play.http.producer.post("/v1/tasks/batch", content=b'{"tasks": [' + b",".join([b"{}"] * 100_000) + b"]}")
    assert (answer.status_code, len(answer.json()["errors"]) <= 50) == (400, True)
    members = gzip.compress(b"") * 1000 + gzip.compress(b'{"type": "demo/hello", "schemaVersion": 1, "input": 1}')
    answer = await play.http.producer.post("/v1/tasks", content=members, headers={"content-encoding": "gzip"})
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
    one = gzip.compress(b'{"type": "demo/hello", "schemaVersion": 1, "input": 1}')
    assert (await play.http.producer.post("/v1/tasks", content=one, headers={"content-encoding": "gzip"})).status_code == 201
