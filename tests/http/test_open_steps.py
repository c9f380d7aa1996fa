"""Who is still asked what an open step, or an attempt before, did; and what else the walks of tests/model found."""

from __future__ import annotations

from typing import Any

import pytest

from support.clock import Clock
from support.play import Play, refused
from support.runs import Runs

NOW = {"jitter": 0, "initialDelaySeconds": 0}
LOST = {"code": "LOST", "message": "no answer"}


async def failure(play: Play, attempt: dict[str, Any]) -> tuple[str, str | None, Any]:
    """(status, code, step) of the attempt's task."""
    task = await play.get(attempt["taskId"])
    found = task["failure"] or {}
    return task["status"], found.get("code"), (found.get("details") or {}).get("step")


async def test_a_handler_that_stops_unasked_inside_a_step_with_a_hook_is_unknown(play: Play, runs: Runs) -> None:
    attempt = await play.run(safety="pure")
    await runs.open(attempt, "charge", reconciles=True)
    assert (await play.complete(attempt, "cancelled"))["taskStatus"] == "outcome-unknown"  # it ends: nobody asks the hook
    assert await failure(play, attempt) == ("outcome-unknown", "RELEASED_UNSAFE", "charge")


async def test_the_last_attempt_may_wait_and_be_given_back_inside_a_step_with_a_hook(play: Play, runs: Runs) -> None:
    attempt = await play.run(safety="pure", retry={**NOW, "maxAttempts": 1})
    await runs.open(attempt, "charge", reconciles=True)
    assert (await play.release(attempt, started=True))["taskStatus"] == "queued"  # not counted: an attempt is left that asks
    again = await runs.again(safety="pure")
    assert [step["status"] for step in again["steps"]] == ["started"]
    assert (await runs.suspend(again, "w", afterSeconds=0))["taskStatus"] == "queued"
    assert (await runs.again(safety="pure"))["attemptNumber"] == 1


@pytest.mark.parametrize("how", ["suspended", "released"])
async def test_one_time_too_often_is_unknown_where_a_hook_was_to_be_asked(
    play: Play, runs: Runs, database: Any, how: str
) -> None:
    attempt = await play.run(safety="pure", retry={**NOW, "maxAttempts": 1})
    await runs.open(attempt, "charge", reconciles=True)
    async with database.connection() as connection:
        await connection.execute("UPDATE tasks SET releases = 100")
    answer = await (runs.suspend(attempt, "w", signal="s") if how == "suspended" else play.release(attempt, started=True))
    assert answer["taskStatus"] == "outcome-unknown"
    assert await failure(play, attempt) == ("outcome-unknown", "RELEASED_UNSAFE", "charge")


class TestWhatAnAttemptWasToFindOut:
    """An attempt that was told to ask after the one before it, whose own lease ran out, and which then came back."""

    async def back(self, play: Play, runs: Runs, clock: Clock, instance: str = "one") -> tuple[str, dict[str, Any]]:
        """(the attempt that is to be asked for, the one that was told so and whose lease has ended)."""
        await play.submit(leaseSeconds=10, retry=NOW)
        first = await runs.again(safety="non-idempotent", reconciles=True)
        clock.advance(11)
        second = await runs.again(safety="non-idempotent", reconciles=True, instance=instance, claim_id="told")
        assert second["reconcile"]["attemptId"] == first["attemptId"]
        clock.advance(11)
        await play.sweep()
        return first["attemptId"], second

    @pytest.mark.parametrize("how", ["heartbeat", "step", "child", "release"])
    async def test_it_is_asked_by_the_next_one_if_it_never_started(self, play: Play, runs: Runs, clock: Clock, how: str) -> None:
        first, second = await self.back(play, runs, clock)
        if how == "heartbeat":
            await play.heartbeat(second)
        elif how == "step":
            await runs.step(second, "s", output=1)
        elif how == "child":
            await runs.child(second, "c")
        assert (await play.release(second, started=False))["taskStatus"] == "queued"
        third = await runs.again(safety="non-idempotent", reconciles=True)
        assert third["reconcile"] == {"attemptId": first, "reason": "LEASE_EXPIRED"}

    async def test_a_repeated_claim_tells_it_again(self, play: Play, runs: Runs, clock: Clock) -> None:
        first, second = await self.back(play, runs, clock)
        again = await runs.again(safety="non-idempotent", reconciles=True, claim_id="told")
        assert (again["attemptId"], again["reconcile"]["attemptId"]) == (second["attemptId"], first)

    async def test_its_own_expiry_replaces_it(self, play: Play, runs: Runs, clock: Clock) -> None:
        _, second = await self.back(play, runs, clock)
        third = await runs.again(safety="non-idempotent", reconciles=True)
        assert third["reconcile"] == {"attemptId": second["attemptId"], "reason": "LEASE_EXPIRED"}


async def test_a_started_step_that_is_safe_can_be_resolved_beside_an_open_one(play: Play, runs: Runs) -> None:
    attempt = await play.run(safety="pure")
    await runs.step(attempt, "look", "started", effectSafety="pure")
    await runs.open(attempt, "charge")
    await play.complete(attempt, "unknown", error=LOST)
    await play.resolve(attempt["taskId"], "succeeded", attempt["attemptId"], step="look", result=1)
    assert await failure(play, attempt) == ("outcome-unknown", "LOST", "charge")
    await play.resolve(attempt["taskId"], "succeeded", attempt["attemptId"], step="charge", result=2)
    again = await runs.again(safety="pure")
    assert [step["output"] for step in again["steps"]] == [1, 2]
    assert (await runs.suspend(again, "w", afterSeconds=9))["taskStatus"] == "waiting"  # nothing is open


@pytest.mark.parametrize("kind", ["step", "child"])
async def test_a_wait_does_not_take_the_name_of_a_step_or_child(play: Play, runs: Runs, kind: str) -> None:
    attempt = await play.run()
    await (runs.step(attempt, "a", output=1) if kind == "step" else runs.child(attempt, "a"))
    answer = await runs.suspend(attempt, "a", signal="s")
    assert refused(answer) == "INVALID_REQUEST"
    assert answer["error"]["errors"][0]["pointer"] == "/wait/name"
    assert (await runs.suspend(attempt, "w", signal="s"))["taskStatus"] == "waiting"


async def test_a_step_that_starts_again_as_unsafe_is_open(play: Play, runs: Runs, clock: Clock) -> None:
    attempt = await play.run(safety="pure", retry=NOW)
    await runs.step(attempt, "charge", "started")
    assert (await runs.open(attempt, "charge"))["duplicate"] is False
    assert (await runs.open(attempt, "charge"))["duplicate"] is True
    clock.advance(61)
    await play.sweep()
    assert await failure(play, attempt) == ("outcome-unknown", "LEASE_EXPIRED", "charge")


async def test_a_step_left_open_to_be_asked_for_is_unknown_when_nobody_comes(play: Play, runs: Runs, clock: Clock) -> None:
    attempt = await play.run(safety="pure")
    await runs.open(attempt, "charge")
    await play.complete(attempt, "unknown", error=LOST)
    await play.resolve(attempt["taskId"], "reconcile", attempt["attemptId"])
    clock.advance(90_000)
    await play.sweep()
    assert await failure(play, attempt) == ("outcome-unknown", "WORKER_WAIT_LIMIT", "charge")


@pytest.mark.parametrize("kind", ["step", "child"])
async def test_a_claim_is_not_given_back_over_an_attempt_that_asked_for_what_is_known(play: Play, runs: Runs, kind: str) -> None:
    attempt = await play.run()
    await (runs.step(attempt, "a", output=1) if kind == "step" else runs.child(attempt, "a"))
    await play.complete(attempt, "retryable", error=LOST, retryAfterSeconds=0)
    again = await runs.again(claim_id="heard")
    told = await (runs.step_raw(again, "a", output=2) if kind == "step" else runs.child_raw(again, "a"))
    assert told.json()["duplicate"] is True
    which = {"workerId": "tester", "instanceId": "one", "claimId": "heard"}
    answer = await play.http.worker.post("/v1/attempts/release", json=which)
    assert answer.json() == {"attempts": []}
    assert (await play.complete(again))["taskStatus"] == "succeeded"


async def test_a_report_is_known_again_after_the_wait_limit(play: Play, runs: Runs, clock: Clock) -> None:
    attempt = await play.run()
    await play.release(attempt, started=True)
    clock.advance(90_000)
    await play.sweep()
    assert (await failure(play, attempt))[1] == "WORKER_WAIT_LIMIT"
    assert await play.release(attempt, started=True) == {
        "attemptId": attempt["attemptId"],
        "taskStatus": "queued",
        "duplicate": True,
    }


async def test_a_wait_that_a_refused_signal_finds_over_lets_its_task_run(play: Play, runs: Runs, clock: Clock) -> None:
    attempt = await play.run(concurrency={"key": "k", "limit": 1})
    await runs.signal(attempt["taskId"], "other", 1)
    await runs.suspend(attempt, "w", afterSeconds=10)
    clock.advance(11)
    assert (await runs.signal_raw(attempt["taskId"], "other", 2)).json()["code"] == "IDEMPOTENCY_CONFLICT"
    again = await runs.again()  # its key has let it in: no sweep
    assert again["steps"][0]["output"] == {"timedOut": True}


async def test_a_repeated_suspension_ends_no_wait_and_is_answered_as_the_first(play: Play, runs: Runs, clock: Clock) -> None:
    attempt = await play.run(concurrency={"key": "k", "limit": 1})
    first = await runs.suspend(attempt, "w", afterSeconds=10)
    clock.advance(11)  # nobody has looked
    for _ in range(2):
        assert await runs.suspend(attempt, "w", afterSeconds=10) == first | {"duplicate": True}
    assert (await play.get(attempt["taskId"]))["status"] == "waiting"
    await play.sweep()
    assert await runs.suspend(attempt, "w", afterSeconds=10) == first | {"duplicate": True}
    assert (await runs.again())["steps"][0]["output"] == {"timedOut": True}


class TestAnEndAfterACancelWasRequested:
    """The attempt that runs is the last: nobody will ask what it, or the one before it, did. That is not known, and said so."""

    @staticmethod
    async def end(play: Play, runs: Runs, clock: Clock, attempt: dict[str, Any], how: str) -> tuple[str, Any, Any]:
        await play.cancel(attempt["taskId"])
        if how == "expiry":
            clock.advance(11)
            await play.sweep()
        elif how in ("given back", "given back unstarted"):
            await play.release(attempt, started=how == "given back")
        elif how == "suspended":
            await runs.suspend(attempt, "w", afterSeconds=1)
        else:
            await play.complete(attempt, how, error={"code": "BAD"})
        return await failure(play, attempt)

    @pytest.mark.parametrize(
        ("how", "code"),
        [
            ("expiry", "LEASE_EXPIRED"),
            ("retryable", "BAD"),
            ("suspended", "RELEASED_UNSAFE"),
            ("cancelled", "RELEASED_UNSAFE"),
            ("given back", "RELEASED_UNSAFE"),
            ("given back unstarted", "RELEASED_UNSAFE"),
        ],
    )
    async def test_a_step_with_a_hook_is_open(self, play: Play, runs: Runs, clock: Clock, how: str, code: str) -> None:
        attempt = await play.run(leaseSeconds=10, retry=NOW)
        await runs.open(attempt, "charge", reconciles=True)
        assert await self.end(play, runs, clock, attempt, how) == ("outcome-unknown", code, "charge")

    @pytest.mark.parametrize(("how", "code"), [("expiry", "LEASE_EXPIRED"), ("given back", "RELEASED_UNSAFE")])
    async def test_a_handler_with_a_hook_vanished(self, play: Play, runs: Runs, clock: Clock, how: str, code: str) -> None:
        await play.submit(leaseSeconds=10, retry=NOW)
        attempt = await runs.again(safety="non-idempotent", reconciles=True)
        assert await self.end(play, runs, clock, attempt, how) == ("outcome-unknown", code, None)

    @pytest.mark.parametrize("safety", ["non-idempotent", "idempotent"])
    @pytest.mark.parametrize(
        ("how", "code"),
        [
            ("expiry", "LEASE_EXPIRED"),
            ("retryable", "BAD"),
            ("given back", "RELEASED_UNSAFE"),
            ("given back unstarted", "RELEASED_UNSAFE"),
        ],
    )
    async def test_it_was_to_find_out_what_another_did(
        self, play: Play, runs: Runs, clock: Clock, safety: str, how: str, code: str
    ) -> None:
        await play.submit(leaseSeconds=10, retry=NOW)
        first = await runs.again(safety="non-idempotent", reconciles=True)
        clock.advance(11)
        attempt = await runs.again(safety=safety, reconciles=safety != "idempotent")
        assert attempt["reconcile"]["attemptId"] == first["attemptId"]
        assert await self.end(play, runs, clock, attempt, how) == ("outcome-unknown", code, None)

    async def test_what_only_a_handler_ran_is_cancelled(self, play: Play, runs: Runs, clock: Clock) -> None:
        """It was there to say so: nothing is to be asked."""
        for how in ("retryable", "cancelled", "given back unstarted"):
            await play.submit(leaseSeconds=10, retry=NOW)
            attempt = await runs.again(safety="non-idempotent", reconciles=True)
            assert await self.end(play, runs, clock, attempt, how) == ("cancelled", None, None)


async def test_the_last_attempt_vanished_before_it_could_find_out(play: Play, runs: Runs, clock: Clock) -> None:
    await play.submit(leaseSeconds=10, retry={**NOW, "maxAttempts": 2})
    await runs.again(safety="non-idempotent", reconciles=True)
    clock.advance(11)
    attempt = await runs.again()  # by a build whose handler is idempotent
    clock.advance(11)
    await play.sweep()
    assert await failure(play, attempt) == ("outcome-unknown", "LEASE_EXPIRED", None)


@pytest.mark.parametrize("as_", ["succeeded", "failed", "requeue"])
async def test_a_resolved_step_says_nothing_of_what_ran_outside_it(play: Play, runs: Runs, clock: Clock, as_: str) -> None:
    await play.submit(leaseSeconds=10, retry=NOW)
    attempt = await runs.again(safety="non-idempotent", reconciles=True)
    await runs.open(attempt, "charge")
    clock.advance(11)
    await play.sweep()
    assert await failure(play, attempt) == ("outcome-unknown", "LEASE_EXPIRED", "charge")
    await play.resolve(attempt["taskId"], as_, attempt["attemptId"], step="charge")
    again = await runs.again(safety="non-idempotent", reconciles=True)
    assert again["reconcile"] == {"attemptId": attempt["attemptId"], "reason": "RESOLVED"}


class TestACancelBeforeAnybodyWasAsked:
    """What an attempt did was to be found out by the next one; a cancel leaves none. That is not known, and said so."""

    async def lapsed(self, play: Play, runs: Runs, clock: Clock) -> dict[str, Any]:
        """A handler that has a hook, whose lease ended: its task is queued so that the hook is asked."""
        await play.submit(leaseSeconds=10, retry=NOW)
        attempt = await runs.again(safety="non-idempotent", reconciles=True)
        clock.advance(11)
        await play.sweep()
        assert (await play.get(attempt["taskId"]))["status"] == "queued"
        return attempt

    async def test_it_is_unknown(self, play: Play, runs: Runs, clock: Clock) -> None:
        attempt = await self.lapsed(play, runs, clock)
        view = (await play.cancel_raw(attempt["taskId"])).json()
        assert (view["status"], view["failure"]["code"]) == ("outcome-unknown", "LEASE_EXPIRED")
        assert view["failure"]["attemptId"] == attempt["attemptId"]
        assert await play.claim() == []
        answer = await play.cancel_raw(attempt["taskId"])
        assert (answer.status_code, answer.json()["code"]) == (409, "OUTCOME_UNKNOWN")
        assert (await play.kinds(attempt["taskId"]))[-1] == "outcome-unknown"

    async def test_inside_a_step_with_a_hook_it_names_the_step(self, play: Play, runs: Runs) -> None:
        attempt = await play.run(safety="pure", retry=NOW)
        await runs.open(attempt, "charge", reconciles=True)
        await play.release(attempt, started=True)
        view = (await play.cancel_raw(attempt["taskId"])).json()
        assert view["status"] == "outcome-unknown"
        assert await failure(play, attempt) == ("outcome-unknown", "RELEASED_UNSAFE", "charge")

    async def test_the_late_report_settles_it(self, play: Play, runs: Runs, clock: Clock) -> None:
        attempt = await self.lapsed(play, runs, clock)
        await play.cancel_raw(attempt["taskId"])
        assert (await play.complete(attempt, result=1))["taskStatus"] == "succeeded"

    async def test_resolving_to_reconcile_asks_after_all(self, play: Play, runs: Runs, clock: Clock) -> None:
        attempt = await self.lapsed(play, runs, clock)
        await play.cancel_raw(attempt["taskId"])
        body = {"as": "reconcile", "attemptId": attempt["attemptId"], "note": "ask the bank"}
        await play.http.operator.post(f"/v1/tasks/{attempt['taskId']}/resolve", json=body)
        again = await runs.again(safety="non-idempotent", reconciles=True)
        assert (again["reconcile"]["attemptId"], again["cancelRequested"]) == (attempt["attemptId"], False)
