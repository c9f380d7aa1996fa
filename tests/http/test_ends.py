"""Rows of the transition table that no report of an attempt causes: cancel, deadlines, limits, resolve."""

from __future__ import annotations

from typing import Any

from support.clock import Clock
from support.play import Play, refused


async def test_cancel_of_a_queued_task(play: Play) -> None:
    task = await play.submit()
    assert (await play.cancel(task["id"]))["status"] == "cancelled"
    assert await play.claim() == []
    assert await play.kinds(task["id"]) == ["submitted", "cancelled"]
    again = await play.cancel(task["id"])
    assert (again["status"], again["duplicate"]) == ("cancelled", True)


async def test_cancel_of_a_running_task_tells_its_holder(play: Play) -> None:
    attempt = await play.run()
    task = await play.cancel(attempt["taskId"])
    assert (task["status"], task["cancelRequested"], task["duplicate"]) == ("running", True, False)
    assert (await play.cancel(attempt["taskId"]))["duplicate"] is True
    assert (await play.heartbeat(attempt))["stop"] == "cancel"
    assert await play.kinds(task["id"]) == ["submitted", "claimed", "cancel-requested"]
    assert (await play.complete(attempt, result=1))["taskStatus"] == "succeeded"  # it was too late


async def test_cancel_of_a_settled_or_unknown_task_is_refused(play: Play) -> None:
    attempt = await play.run()
    await play.complete(attempt, result=1)
    answer = await play.cancel_raw(attempt["taskId"])
    assert (answer.status_code, answer.json()["code"]) == (409, "TASK_FINISHED")
    attempt = await play.run()
    await play.complete(attempt, "unknown", error={"code": "X"})
    answer = await play.cancel_raw(attempt["taskId"])
    assert (answer.status_code, answer.json()["code"]) == (409, "OUTCOME_UNKNOWN")


async def test_cancel_after_expiry_ends_the_attempt_too(play: Play, clock: Clock) -> None:
    attempt = await play.run()
    clock.advance(61)
    await play.sweep()
    assert (await play.cancel(attempt["taskId"]))["status"] == "cancelled"
    assert refused(await play.complete(attempt, result=1)) == "STALE_ATTEMPT"
    assert (await play.kinds(attempt["taskId"]))[-2:] == ["cancelled", "late-report"]


async def test_start_deadline_fails_a_task_that_nobody_started(play: Play, clock: Clock) -> None:
    task = await play.submit(startDeadlineSeconds=30, delaySeconds=10)
    clock.advance(41)
    assert await play.claim() == []  # never handed out, even before a sweep
    await play.sweep()
    found = await play.get(task["id"])
    assert (found["status"], found["failure"]["code"]) == ("failed", "START_DEADLINE_EXCEEDED")


async def test_start_deadline_does_not_touch_a_started_task(play: Play, clock: Clock) -> None:
    attempt = await play.run(startDeadlineSeconds=30)
    clock.advance(61)
    await play.sweep()
    assert (await play.get(attempt["taskId"]))["status"] == "queued"


async def test_worker_wait_limit(play: Play, clock: Clock) -> None:
    task = await play.submit()
    await play.claim(type="demo/other")
    clock.advance(86_400 + 60)
    await play.sweep()
    found = await play.get(task["id"])
    assert (found["status"], found["failure"]["code"]) == ("failed", "WORKER_WAIT_LIMIT")


async def test_worker_wait_limit_counts_from_the_last_instance_seen(play: Play, clock: Clock) -> None:
    task = await play.submit(priority=-1)
    clock.advance(80_000)
    await play.submit(priority=5)
    attempt = (await play.claim())[0]
    clock.advance(8_000)
    await play.sweep()
    assert (await play.get(task["id"]))["status"] == "queued"
    clock.advance(86_000)
    await play.sweep()
    assert (await play.get(task["id"]))["status"] == "failed"
    assert attempt["taskId"] != task["id"]


async def _unknown(play: Play) -> dict[str, Any]:
    attempt = await play.run(safety="non-idempotent")
    await play.complete(attempt, "unknown", error={"code": "X", "message": "no answer"})
    return attempt


async def test_resolve_succeeded(play: Play) -> None:
    attempt = await _unknown(play)
    task = await play.resolve(attempt["taskId"], "succeeded", attempt["attemptId"], result={"found": True})
    assert (task["status"], task["result"], task["failure"]) == ("succeeded", {"found": True}, None)
    assert (await play.resolve(attempt["taskId"], "succeeded", attempt["attemptId"], result={"found": True}))["duplicate"] is True
    assert (await play.kinds(task["id"]))[-2:] == ["resolved", "succeeded"]


async def test_resolve_failed(play: Play) -> None:
    attempt = await _unknown(play)
    task = await play.resolve(attempt["taskId"], "failed", attempt["attemptId"])
    assert (task["status"], task["failure"]["code"]) == ("failed", "RESOLVED_FAILED")


async def test_resolve_requeue_grants_one_attempt_more(play: Play, clock: Clock) -> None:
    attempt = await play.run(safety="non-idempotent", retry={"maxAttempts": 1})
    await play.cancel(attempt["taskId"])
    clock.advance(61)
    await play.sweep()
    task = await play.resolve(attempt["taskId"], "requeue", attempt["attemptId"])
    assert (task["status"], task["cancelRequested"]) == ("queued", False)
    assert refused(await play.complete(attempt, result=1)) == "STALE_ATTEMPT"
    again = (await play.claim(safety="non-idempotent"))[0]
    assert (again["attemptNumber"], again["maxAttempts"]) == (2, 2)


async def test_resolve_of_another_attempt_or_status_is_refused(play: Play) -> None:
    attempt = await _unknown(play)
    answer = await play.resolve_raw(attempt["taskId"], "failed", "019a0000-0000-7000-8000-000000000000")
    assert (answer.status_code, answer.json()["code"]) == (409, "TASK_NOT_UNKNOWN")
    await play.resolve(attempt["taskId"], "failed", attempt["attemptId"])
    answer = await play.resolve_raw(attempt["taskId"], "succeeded", attempt["attemptId"])
    assert (answer.status_code, answer.json()["code"]) == (409, "TASK_NOT_UNKNOWN")


async def test_the_same_verdict_with_another_result_is_no_repeat(play: Play) -> None:
    """Whoever found out something else is not told that it was taken."""
    attempt = await _unknown(play)
    await play.resolve(attempt["taskId"], "succeeded", attempt["attemptId"], result={"paid": 1, "by": "card"})
    answer = await play.resolve_raw(attempt["taskId"], "succeeded", attempt["attemptId"], result={"paid": 2, "by": "card"})
    assert (answer.status_code, answer.json()["code"]) == (409, "TASK_NOT_UNKNOWN")
    again = await play.resolve(attempt["taskId"], "succeeded", attempt["attemptId"], result={"by": "card", "paid": 1.0}, note="n")
    assert (again["duplicate"], again["result"]) == (True, {"paid": 1, "by": "card"})


async def test_an_unknown_outcome_that_names_another_step_is_no_repeat(play: Play) -> None:
    attempt = await play.run()
    said = {"error": {"code": "GONE"}, "step": "charge"}
    await play.complete(attempt, "unknown", **said)
    assert (await play.complete(attempt, "unknown", **said))["duplicate"] is True
    assert refused(await play.complete(attempt, "unknown", **said | {"step": "ship"})) == "STALE_ATTEMPT"


async def test_handlers_that_reconcile_are_safe_to_repeat(play: Play, clock: Clock) -> None:
    task = await play.submit(retry={"initialDelaySeconds": 0})
    await play.claim(safety="non-idempotent", reconciles=True)
    clock.advance(61)
    await play.sweep()
    assert (await play.get(task["id"]))["status"] == "queued"
