"""Claims: repeatable by claimId, bounded, narrowed, keyed (docs/protocol.md, claims)."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from interlock_core.db import Database
from support.clock import Clock
from support.play import Play, ids


async def test_a_repeated_claim_answers_the_same_attempts_with_fresh_tokens(play: Play, database: Database) -> None:
    for _ in range(4):
        await play.submit()
    first = await play.claim(slots=2, claim_id="lost")
    again = await play.claim(slots=2, claim_id="lost")
    assert sorted(a["attemptId"] for a in again) == sorted(a["attemptId"] for a in first)
    assert not {a["leaseToken"] for a in again} & {a["leaseToken"] for a in first}
    assert [a["fence"] for a in again] == [1, 1]
    assert (await play.complete(first[0], result=1))["error"]["code"] == "STALE_ATTEMPT"  # the lost answer's token
    for attempt in again:
        assert (await play.complete(attempt, result=1))["taskStatus"] == "succeeded"
    assert await play.claim(slots=2, claim_id="lost") == []  # remembered after its attempts ended: leases nothing new
    assert len(await play.claim(slots=2)) == 2


async def test_a_repeated_claim_that_found_nothing_leases_nothing_new(play: Play, clock: Clock) -> None:
    assert await play.claim(claim_id="empty") == []
    await play.submit()
    assert await play.claim(claim_id="empty") == []
    clock.advance(16 * 60)
    assert len(await play.claim(claim_id="empty")) == 1


async def test_a_repeated_claim_recovers_its_lapsed_attempts(play: Play, clock: Clock) -> None:
    await play.submit()
    first = (await play.claim(claim_id="lost"))[0]
    clock.advance(61)
    await play.sweep()
    again = (await play.claim(claim_id="lost"))[0]
    assert (again["attemptId"], again["attemptNumber"]) == (first["attemptId"], 1)
    assert await play.kinds(first["taskId"]) == ["submitted", "claimed", "lease-expired", "lease-recovered"]


async def test_one_claim_id_of_two_instances_is_two_claims(play: Play) -> None:
    await play.submit()
    await play.submit()
    one = await play.claim(claim_id="same", instance="one")
    two = await play.claim(claim_id="same", instance="two")
    assert len(one) == len(two) == 1
    assert one[0]["taskId"] != two[0]["taskId"]


async def _release_claim(play: Play, claim_id: str) -> list[dict[str, Any]]:
    body = {"workerId": "tester", "instanceId": "one", "claimId": claim_id}
    answer = await play.http.worker.post("/v1/attempts/release", json=body)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["attempts"]
    return found


async def test_a_claim_whose_answer_never_came_is_given_back(play: Play) -> None:
    await play.submit()
    await play.submit()
    seen, unseen = await play.claim(slots=2, claim_id="lost")
    await play.heartbeat(seen)  # this one was heard of: the answer did come
    assert [(a["attemptId"], a["taskStatus"]) for a in await _release_claim(play, "lost")] == [(unseen["attemptId"], "queued")]
    assert [(a["attemptId"], a["duplicate"]) for a in await _release_claim(play, "lost")] == [(unseen["attemptId"], True)]
    assert [a["attemptId"] for a in await play.claim(slots=2, claim_id="lost")] == [seen["attemptId"]]
    assert (await play.claim(instance="two"))[0]["taskId"] == unseen["taskId"]


async def test_a_claim_given_back_before_it_arrives_never_leases(play: Play) -> None:
    await play.submit()
    assert await _release_claim(play, "slow") == []
    assert await play.claim(claim_id="slow") == []
    assert len(await play.claim()) == 1


async def test_an_answer_stops_at_two_mebibytes_and_says_more(play: Play) -> None:
    for _ in range(12):
        await play.submit(input="x" * 250_000)
    answer = await play.http.worker.post("/v1/claims", json=play.claim_body(slots=12))
    body = answer.json()
    assert len(body["attempts"]) == 8
    assert body["more"] is True
    assert len(await play.claim(slots=12, instance="two")) == 4  # what was not in the answer was not leased


async def test_handlers_have_their_own_slots(play: Play) -> None:
    for kind in ("demo/a", "demo/a", "demo/b", "demo/b"):
        await play.submit(type=kind)
    body = play.claim_body(slots=4)
    body["handlers"] = [
        {"type": "demo/a", "schemaVersion": 1, "effectSafety": "pure", "slots": 1},
        {"type": "demo/b", "schemaVersion": 1, "effectSafety": "pure"},
    ]
    got = (await play.http.worker.post("/v1/claims", json=body)).json()["attempts"]
    assert sorted(a["type"] for a in got) == ["demo/a", "demo/b", "demo/b"]


async def test_poll_after_follows_the_next_due_time_and_stretches_when_idle(play: Play, clock: Clock) -> None:
    async def told() -> float:
        seconds: float = (await play.http.worker.post("/v1/claims", json=play.claim_body())).json()["pollAfterSeconds"]
        return seconds

    idle = [await told() for _ in range(20)]
    assert idle[0] >= 5
    assert idle == sorted(idle)
    assert idle[-1] == 60
    await play.submit(delaySeconds=3)
    assert 0.2 <= await told() <= 3
    clock.advance(4)
    assert len(await play.claim()) == 1


async def test_a_narrowed_key_claims_only_inside(play: Play) -> None:
    key = await play.http.make_key("task-worker", types=["audio/*"], pools=["gpu"], workerIds=["tester"])
    client = play.http.use(key)
    inside = play.claim_body(type="audio/transcribe", pool="gpu")
    assert (await client.post("/v1/claims", json=inside)).status_code == 200
    for change in ({"type": "demo/hello"}, {"pool": "default"}, {"workerId": "other"}):
        answer = await client.post("/v1/claims", json=play.claim_body(**{"type": "audio/transcribe", "pool": "gpu"} | change))
        assert (answer.status_code, answer.json()["code"]) == (403, "SCOPE_DENIED"), change


async def test_b16_two_processes_of_one_worker_id_keep_their_own(play: Play) -> None:
    await play.submit()
    attempt = (await play.claim(instance="first"))[0]
    assert await play.claim(instance="second") == []
    beat = await play.http.worker.post(
        "/v1/attempts/heartbeat",
        json={"workerId": "tester", "instanceId": "second", "attempts": [{**ids(attempt), "leaseToken": "1.wrong"}]},
    )
    assert beat.json()["attempts"][0]["error"]["code"] == "STALE_ATTEMPT"
    assert (await play.get(attempt["taskId"]))["attempt"]["instanceId"] == "first"


async def test_a_registered_stricter_safety_wins_over_the_claims(play: Play, clock: Clock) -> None:
    handler = {"type": "demo/hello", "schemaVersion": 1, "effectSafety": "non-idempotent"}
    answer = await play.http.worker.put("/v1/workers/tester", json={"instanceId": "one", "handlers": [handler]})
    assert answer.status_code == 200, answer.text
    attempt = await play.run(safety="pure")
    assert (await play.get(attempt["taskId"]))["attempt"]["effectSafety"] == "non-idempotent"


async def test_policy_is_the_submits_then_the_handlers_then_the_default(play: Play) -> None:
    handler = {
        "type": "demo/hello", "schemaVersion": 1, "effectSafety": "pure",
        "retry": {"maxAttempts": 9, "multiplier": 3}, "leaseSeconds": 30, "timeoutSeconds": 100,
    }  # fmt: skip
    await play.http.worker.put("/v1/workers/tester", json={"instanceId": "one", "handlers": [handler]})
    given = await play.run(leaseSeconds=20)
    assert (given["leaseSeconds"], given["maxAttempts"]) == (20, 9)
    task = await play.get(given["taskId"])
    assert (task["retry"]["multiplier"], task["retry"]["maxDelaySeconds"], task["timeoutSeconds"]) == (3, 300, 100)


async def test_a_token_of_another_epoch_is_refused(play: Play, database: Database) -> None:
    attempt = await play.run()
    async with database.connection() as connection:
        await connection.execute("UPDATE service SET epoch = 2")
    assert (await play.complete(attempt, result=1))["error"]["code"] == "EPOCH_CHANGED"
    assert (await play.get(attempt["taskId"]))["status"] == "running"


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"slots": 0}, "/slots"),
        ({"slots": 101}, "/slots"),
        ({"handlers": []}, "/handlers"),
        ({"workerId": "a b"}, "/workerId"),
        ({"instanceId": ""}, "/instanceId"),
        ({"claimId": " "}, "/claimId"),
        ({"handlers": [{"type": "x", "schemaVersion": 1, "effectSafety": "pure"}]}, "/handlers/0/type"),
        ({"handlers": [{"type": "a/b", "schemaVersion": 1, "effectSafety": "maybe"}]}, "/handlers/0/effectSafety"),
    ],
)
async def test_a_bad_claim_names_its_field(play: Play, change: dict[str, Any], pointer: str) -> None:
    answer = await play.http.worker.post("/v1/claims", json=play.claim_body() | change)
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["pointer"] == pointer


async def test_unknown_fields_of_a_worker_are_ignored(play: Play) -> None:
    answer: httpx.Response = await play.http.worker.post("/v1/claims", json=play.claim_body() | {"later": {"x": 1}})
    assert answer.status_code == 200
