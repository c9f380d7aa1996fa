"""Every row of the protocol's transition table that is built, each as a test of its name (docs/protocol.md, transitions)."""

from __future__ import annotations

from datetime import datetime

import pytest

from support.clock import Clock
from support.play import Play, refused

NO_JITTER = {"jitter": 0, "initialDelaySeconds": 10, "multiplier": 2}


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def test_claim_leases_queued_due_work_and_raises_the_fence(play: Play, clock: Clock) -> None:
    attempt = await play.run()
    task = await play.get(attempt["taskId"])
    assert task["status"] == "running"
    assert attempt["fence"] == task["attempt"]["fence"] == 1
    assert task["attempt"]["id"] == attempt["attemptId"]
    assert await play.claim() == []
    await play.complete(attempt, "retryable", error={"code": "X", "message": "m"}, retryAfterSeconds=0)
    again = (await play.claim())[0]
    assert again["fence"] == 2
    assert again["attemptNumber"] == 2


@pytest.mark.parametrize(
    ("outcome", "said", "status", "counted"),
    [
        ("succeeded", {"result": None}, "succeeded", 1),
        ("failed", {"error": {"code": "X", "message": "m"}}, "failed", 1),
        ("unknown", {"error": {"code": "X", "message": "m"}}, "outcome-unknown", 1),
        ("retryable", {"error": {"code": "X", "message": "m"}}, "failed", 2),
    ],
)
async def test_the_latest_attempt_keeps_its_number_whether_it_counts_or_not(
    play: Play, outcome: str, said: dict[str, object], status: str, counted: int
) -> None:
    attempt = await play.run(retry={"maxAttempts": 2})
    await play.complete(attempt, "retryable", error={"code": "X", "message": "m"}, retryAfterSeconds=0)
    assert (await play.get(attempt["taskId"]))["attempt"]["number"] == 1
    second = (await play.claim())[0]
    assert (await play.get(attempt["taskId"]))["attempt"]["number"] == second["attemptNumber"] == 2
    await play.complete(second, outcome, **said)
    task = await play.get(attempt["taskId"])
    assert (task["status"], task["attempts"], task["attempt"]["number"]) == (status, counted, 2)
    listed = (await play.http.producer.get("/v1/tasks")).json()["items"]
    assert [item["attempt"]["number"] for item in listed if item["id"] == task["id"]] == [2]


async def test_claim_takes_the_best_priority_then_the_oldest_due(play: Play) -> None:
    low = await play.submit(priority=-5)
    first = await play.submit()
    second = await play.submit()
    high = await play.submit(priority=7)
    assert [a["taskId"] for a in await play.claim(slots=10)] == [high["id"], first["id"], second["id"], low["id"]]


async def test_claim_leaves_other_types_versions_and_pools(play: Play) -> None:
    await play.submit(type="demo/other")
    await play.submit(schemaVersion=2)
    await play.submit(pool="gpu")
    assert await play.claim(slots=10) == []
    assert len(await play.claim(slots=10, pool="gpu")) == 1


async def test_claim_does_not_start_before_the_due_time(play: Play, clock: Clock) -> None:
    task = await play.submit(delaySeconds=60)
    assert task["waiting"]["reason"] == "not-due"
    assert await play.claim() == []
    clock.advance(61)
    assert [a["taskId"] for a in await play.claim()] == [task["id"]]


async def test_succeeded_settles_with_its_result(play: Play) -> None:
    attempt = await play.run()
    assert await play.complete(attempt, result={"n": 1}) == {
        "attemptId": attempt["attemptId"],
        "taskStatus": "succeeded",
        "duplicate": False,
    }
    task = await play.get(attempt["taskId"])
    assert (task["status"], task["settled"], task["result"], task["failure"]) == ("succeeded", True, {"n": 1}, None)
    assert await play.kinds(task["id"]) == ["submitted", "claimed", "succeeded"]


async def test_succeeded_is_canonical_and_a_repeat_is_a_duplicate(play: Play) -> None:
    attempt = await play.run()
    await play.complete(attempt, result={"a": 1, "b": 1.0})
    assert (await play.complete(attempt, result={"b": 1, "a": 1}))["duplicate"] is True
    assert refused(await play.complete(attempt, result={"a": 2})) == "STALE_ATTEMPT"
    assert (await play.get(attempt["taskId"]))["result"] == {"a": 1, "b": 1.0}
    assert await play.kinds(attempt["taskId"]) == ["submitted", "claimed", "succeeded", "late-report"]
    assert refused(await play.complete(attempt, "failed", error={"code": "X"})) == "STALE_ATTEMPT"
    assert await play.kinds(attempt["taskId"]) == ["submitted", "claimed", "succeeded", "late-report"]  # kept once


async def test_b19_succeeded_with_a_result_too_large_fails_the_task(play: Play) -> None:
    attempt = await play.run()
    item = await play.complete(attempt, result="x" * (256 * 1024))
    assert item["taskStatus"] == "failed"
    task = await play.get(attempt["taskId"])
    assert task["failure"]["code"] == "RESULT_TOO_LARGE"
    assert (await play.complete(attempt, result="x" * (256 * 1024)))["duplicate"] is True


async def test_b19_succeeded_with_a_result_of_exactly_the_cap_is_stored(play: Play) -> None:
    attempt = await play.run()
    assert (await play.complete(attempt, result="x" * (256 * 1024 - 2)))["taskStatus"] == "succeeded"


async def test_failed_settles_with_the_handlers_code(play: Play) -> None:
    attempt = await play.run()
    error = {"code": "CARD_DECLINED", "message": "no", "details": {"n": 2**70}}
    assert (await play.complete(attempt, "failed", error=error))["taskStatus"] == "failed"
    task = await play.get(attempt["taskId"])
    assert task["failure"] == {**error, "details": {"n": str(2**70)}, "attemptId": attempt["attemptId"]}
    assert task["attempts"] == 0
    assert await play.kinds(task["id"]) == ["submitted", "claimed", "failed"]


async def test_retryable_queues_after_its_backoff(play: Play, clock: Clock) -> None:
    clock.hold()
    attempt = await play.run(retry=NO_JITTER)
    assert (await play.complete(attempt, "retryable", error={"code": "BUSY", "message": "later"}))["taskStatus"] == "queued"
    task = await play.get(attempt["taskId"])
    assert (task["status"], task["attempts"]) == ("queued", 1)
    assert (at(task["dueAt"]) - clock.now()).total_seconds() == 10
    assert task["waiting"]["reason"] == "retry-delay"
    assert await play.claim() == []
    clock.advance(10)
    again = (await play.claim())[0]
    await play.complete(again, "retryable", error={"code": "BUSY", "message": "later"})
    assert (at((await play.get(task["id"]))["dueAt"]) - clock.now()).total_seconds() == 20
    assert await play.kinds(task["id"]) == ["submitted", "claimed", "retry-scheduled", "claimed", "retry-scheduled"]


async def test_retryable_honours_retry_after(play: Play, clock: Clock) -> None:
    clock.hold()
    attempt = await play.run()
    await play.complete(attempt, "retryable", error={"code": "BUSY"}, retryAfterSeconds=77)
    assert (at((await play.get(attempt["taskId"]))["dueAt"]) - clock.now()).total_seconds() == 77


@pytest.mark.parametrize(("given", "kept"), [(1e12, 2_592_000), (-5, 0)])
async def test_retryable_bounds_retry_after(play: Play, clock: Clock, given: float, kept: float) -> None:
    clock.hold()
    attempt = await play.run()
    await play.complete(attempt, "retryable", error={"code": "BUSY"}, retryAfterSeconds=given)
    assert (at((await play.get(attempt["taskId"]))["dueAt"]) - clock.now()).total_seconds() == kept


async def test_retryable_without_attempts_left_fails(play: Play) -> None:
    attempt = await play.run(retry={"maxAttempts": 1})
    assert (await play.complete(attempt, "retryable", error={"code": "BUSY", "message": "later"}))["taskStatus"] == "failed"
    failure = (await play.get(attempt["taskId"]))["failure"]
    assert failure["code"] == "ATTEMPTS_EXHAUSTED"
    assert failure["details"]["last"]["code"] == "BUSY"


async def test_retryable_of_a_non_idempotent_attempt_fails(play: Play) -> None:
    attempt = await play.run(safety="non-idempotent")
    assert (await play.complete(attempt, "retryable", error={"code": "BUSY", "message": "later"}))["taskStatus"] == "failed"
    assert (await play.get(attempt["taskId"]))["failure"]["code"] == "RETRY_NOT_SAFE"


async def test_retryable_with_a_cancel_requested_is_cancelled(play: Play) -> None:
    attempt = await play.run()
    await play.cancel(attempt["taskId"])
    assert (await play.complete(attempt, "retryable", error={"code": "BUSY"}))["taskStatus"] == "cancelled"


async def test_unknown_is_never_repeated(play: Play, clock: Clock) -> None:
    attempt = await play.run()
    item = await play.complete(attempt, "unknown", error={"code": "NO_ANSWER", "message": "sent, no answer"})
    assert item["taskStatus"] == "outcome-unknown"
    task = await play.get(attempt["taskId"])
    assert (task["status"], task["settled"], task["failure"]["code"]) == ("outcome-unknown", False, "NO_ANSWER")
    clock.advance(86_400)
    await play.sweep()
    assert await play.claim() == []
    assert refused(await play.complete(attempt, result=1)) == "STALE_ATTEMPT"  # its own report ended it


async def test_cancelled_after_a_cancel_was_requested(play: Play) -> None:
    attempt = await play.run()
    await play.cancel(attempt["taskId"])
    assert (await play.complete(attempt, "cancelled"))["taskStatus"] == "cancelled"


async def test_cancelled_past_the_deadline_is_retried(play: Play, clock: Clock) -> None:
    attempt = await play.run(timeoutSeconds=5)
    clock.advance(6)
    assert (await play.complete(attempt, "cancelled"))["taskStatus"] == "queued"
    assert (await play.get(attempt["taskId"]))["attempts"] == 1


async def test_cancelled_past_the_deadline_of_a_non_idempotent_attempt_fails(play: Play, clock: Clock) -> None:
    attempt = await play.run(timeoutSeconds=5, safety="non-idempotent")
    clock.advance(6)
    assert (await play.complete(attempt, "cancelled"))["taskStatus"] == "failed"
    assert (await play.get(attempt["taskId"]))["failure"]["code"] == "ATTEMPT_TIMEOUT"


async def test_cancelled_without_being_asked_fails(play: Play) -> None:
    attempt = await play.run()
    assert (await play.complete(attempt, "cancelled"))["taskStatus"] == "failed"
    assert (await play.get(attempt["taskId"]))["failure"]["code"] == "CANCELLED_BY_HANDLER"


@pytest.mark.parametrize(("safety", "started"), [("pure", True), ("idempotent", True), ("non-idempotent", False)])
async def test_release_queues_at_once_and_counts_nothing(play: Play, safety: str, started: bool) -> None:
    attempt = await play.run(safety=safety)
    assert (await play.release(attempt, started=started))["taskStatus"] == "queued"
    assert (await play.release(attempt, started=started)) == {
        "attemptId": attempt["attemptId"],
        "taskStatus": "queued",
        "duplicate": True,
    }
    again = (await play.claim(safety=safety))[0]
    assert (again["taskId"], again["attemptNumber"], again["fence"]) == (attempt["taskId"], 1, 2)
    assert await play.kinds(attempt["taskId"]) == ["submitted", "claimed", "released", "claimed"]


async def test_release_of_a_started_non_idempotent_attempt_is_unknown(play: Play) -> None:
    attempt = await play.run(safety="non-idempotent")
    assert (await play.release(attempt, started=True))["taskStatus"] == "outcome-unknown"
    assert (await play.get(attempt["taskId"]))["failure"]["code"] == "RELEASED_UNSAFE"
    assert refused(await play.complete(attempt, result=1)) == "STALE_ATTEMPT"


async def test_release_with_a_cancel_requested_is_cancelled(play: Play) -> None:
    attempt = await play.run()
    await play.cancel(attempt["taskId"])
    assert (await play.release(attempt, started=True))["taskStatus"] == "cancelled"


async def test_release_past_the_deadline_of_a_started_non_idempotent_attempt_is_unknown(play: Play, clock: Clock) -> None:
    attempt = await play.run(timeoutSeconds=5, safety="non-idempotent")
    clock.advance(6)
    assert (await play.release(attempt, started=True))["taskStatus"] == "outcome-unknown"
    assert (await play.get(attempt["taskId"]))["failure"]["code"] == "RELEASED_UNSAFE"


async def test_release_past_the_deadline_of_one_that_never_started_is_a_timeout(play: Play, clock: Clock) -> None:
    attempt = await play.run(timeoutSeconds=5, safety="non-idempotent")
    clock.advance(6)
    assert (await play.release(attempt, started=False))["taskStatus"] == "failed"
    assert (await play.get(attempt["taskId"]))["failure"]["code"] == "ATTEMPT_TIMEOUT"


async def test_release_past_the_deadline_is_a_timeout(play: Play, clock: Clock) -> None:
    attempt = await play.run(timeoutSeconds=5, retry={"maxAttempts": 1})
    clock.advance(6)
    assert (await play.release(attempt, started=True))["taskStatus"] == "failed"
    failure = (await play.get(attempt["taskId"]))["failure"]
    assert (failure["code"], failure["details"]["last"]["code"]) == ("ATTEMPTS_EXHAUSTED", "ATTEMPT_TIMEOUT")


async def test_release_is_counted_the_101st_time_in_a_row(play: Play) -> None:
    attempt = await play.run()
    for _ in range(100):
        assert (await play.release(attempt))["taskStatus"] == "queued"
        attempt = (await play.claim())[0]
    assert attempt["attemptNumber"] == 1
    await play.release(attempt)
    assert (await play.get(attempt["taskId"]))["attempts"] == 1


async def test_b03_lease_expiry_queues_what_is_safe_and_counts_once(play: Play, clock: Clock) -> None:
    attempt = await play.run(retry=NO_JITTER)
    clock.advance(61)
    assert (await play.sweep())["lapsed"] == 1
    assert (await play.sweep())["lapsed"] == 0
    task = await play.get(attempt["taskId"])
    assert (task["status"], task["attempts"]) == ("queued", 1)
    assert await play.kinds(task["id"]) == ["submitted", "claimed", "lease-expired"]
    clock.advance(11)
    assert (await play.claim())[0]["attemptNumber"] == 2


async def test_lease_expiry_is_settled_by_the_next_claim_too(play: Play, clock: Clock) -> None:
    attempt = await play.run(retry={"initialDelaySeconds": 0})
    clock.advance(61)
    again = (await play.claim(instance="two"))[0]
    assert (again["taskId"], again["fence"], again["attemptNumber"]) == (attempt["taskId"], 2, 2)
    assert refused(await play.complete(attempt, result=1)) == "STALE_ATTEMPT"
    assert (await play.complete(again, result=2))["taskStatus"] == "succeeded"
    assert await play.kinds(attempt["taskId"]) == ["submitted", "claimed", "lease-expired", "claimed", "late-report", "succeeded"]


async def test_b18_lease_expiry_without_attempts_left_fails(play: Play, clock: Clock) -> None:
    attempt = await play.run(retry={"maxAttempts": 3, "initialDelaySeconds": 0})
    for fence in (2, 3):
        clock.advance(61)
        attempt = (await play.claim())[0]
        assert attempt["fence"] == fence
    clock.advance(61)
    assert await play.claim() == []
    failure = (await play.get(attempt["taskId"]))["failure"]
    assert (failure["code"], failure["details"]["last"]["code"]) == ("ATTEMPTS_EXHAUSTED", "LEASE_EXPIRED")
    assert refused(await play.complete(attempt, result=1)) == "STALE_ATTEMPT"


async def test_lease_expiry_of_a_non_idempotent_attempt_is_unknown(play: Play, clock: Clock) -> None:
    attempt = await play.run(safety="non-idempotent")
    clock.advance(61)
    await play.sweep()
    task = await play.get(attempt["taskId"])
    assert (task["status"], task["failure"]["code"]) == ("outcome-unknown", "LEASE_EXPIRED")
    assert await play.kinds(task["id"]) == ["submitted", "claimed", "lease-expired", "outcome-unknown"]


async def test_lease_expiry_past_the_deadline_is_a_timeout(play: Play, clock: Clock) -> None:
    attempt = await play.run(safety="non-idempotent", timeoutSeconds=5)
    clock.advance(36)  # the lease ends 30 s after the deadline
    await play.sweep()
    assert (await play.get(attempt["taskId"]))["failure"]["code"] == "ATTEMPT_TIMEOUT"


async def test_b18_lease_expiry_with_a_cancel_requested_is_cancelled(play: Play, clock: Clock) -> None:
    attempt = await play.run()
    await play.cancel(attempt["taskId"])
    clock.advance(61)
    await play.sweep()
    assert (await play.get(attempt["taskId"]))["status"] == "cancelled"
    assert await play.claim() == []


async def test_recovery_by_a_late_result_uncounts_the_expiry(play: Play, clock: Clock) -> None:
    attempt = await play.run()
    clock.advance(61)
    await play.sweep()
    assert (await play.complete(attempt, result=1))["taskStatus"] == "succeeded"
    task = await play.get(attempt["taskId"])
    assert (task["status"], task["attempts"]) == ("succeeded", 0)
    assert await play.kinds(task["id"]) == ["submitted", "claimed", "lease-expired", "lease-recovered", "succeeded"]


async def test_recovery_by_a_late_result_settles_an_unknown_outcome(play: Play, clock: Clock) -> None:
    attempt = await play.run(safety="non-idempotent")
    clock.advance(61)
    await play.sweep()
    assert (await play.complete(attempt, result={"sent": True}))["taskStatus"] == "succeeded"
    task = await play.get(attempt["taskId"])
    assert (task["result"], task["failure"]) == ({"sent": True}, None)
    assert await play.kinds(task["id"]) == [
        "submitted",
        "claimed",
        "lease-expired",
        "outcome-unknown",
        "lease-recovered",
        "succeeded",
    ]


async def test_recovery_by_a_heartbeat(play: Play, clock: Clock) -> None:
    attempt = await play.run()
    clock.advance(61)
    await play.sweep()
    beat = await play.heartbeat(attempt)
    assert beat["stop"] is None
    assert at(beat["leaseExpiresAt"]) > clock.now()
    task = await play.get(attempt["taskId"])
    assert (task["status"], task["attempts"]) == ("running", 0)
    assert await play.claim() == []


async def test_heartbeat_from_the_deadline_on_renews_and_recovers_nothing(play: Play, clock: Clock) -> None:
    attempt = await play.run(timeoutSeconds=20)
    clock.advance(21)
    assert (await play.heartbeat(attempt))["stop"] == "timeout"
    clock.advance(30)
    await play.sweep()
    assert (await play.heartbeat(attempt))["stop"] == "timeout"
    assert (await play.get(attempt["taskId"]))["status"] == "queued"
    assert (await play.complete(attempt, result=1))["taskStatus"] == "succeeded"  # outcomes are still taken while it is current


async def test_heartbeat_lease_ends_at_the_latest_30_seconds_after_the_deadline(play: Play, clock: Clock) -> None:
    clock.hold()
    attempt = await play.run(timeoutSeconds=20)
    clock.advance(15)
    beat = await play.heartbeat(attempt)
    assert (at(beat["leaseExpiresAt"]) - clock.now()).total_seconds() == 35
