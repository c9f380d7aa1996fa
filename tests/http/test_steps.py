"""Steps: stored once, read by every later attempt; what an open one means for its attempt's end (docs/protocol.md, steps)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.clock import Clock
from support.play import Play, ids, refused
from support.runs import Runs

NOW = {"jitter": 0, "initialDelaySeconds": 0}


async def test_a_stored_step_rides_with_the_next_claim(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    assert attempt["steps"] == []
    stored = await runs.step(attempt, "charge", output={"id": 17}, effectSafety="idempotent")
    assert (stored["status"], stored["final"], stored["tries"], stored["duplicate"]) == ("succeeded", True, 1, False)
    await play.complete(attempt, "retryable", error={"code": "X", "message": "m"}, retryAfterSeconds=0)
    (step,) = (await runs.again())["steps"]
    assert (step["name"], step["kind"], step["output"], step["effectSafety"]) == ("charge", "step", {"id": 17}, "idempotent")
    assert await play.kinds(attempt["taskId"]) == ["submitted", "claimed", "step", "retry-scheduled", "claimed"]


@pytest.mark.parametrize(
    "value", ["null", '""', "0", "false", "[]", "12345678901234567890123", "1e3", '{"b": 1, "a": "\\u0000"}']
)
async def test_values_come_back_as_they_were_sent(play: Play, runs: Runs, value: str) -> None:
    attempt = await play.run()
    path = f"/v1/tasks/{attempt['taskId']}/attempts/{attempt['attemptId']}/steps"
    body = json.dumps({**ids(attempt), "name": "s", "status": "succeeded"})[:-1] + f', "output": {value}}}'
    answer = await play.http.worker.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200, answer.text
    assert f'"output":{value}' in answer.text
    assert f'"output":{value}' in (await play.http.producer.get(f"/v1/tasks/{attempt['taskId']}/steps")).text


async def test_the_first_final_write_wins(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    await runs.step(attempt, "s", output=1)
    again = await runs.step(attempt, "s", output=2)
    assert (again["output"], again["duplicate"], again["tries"]) == (1, True, 1)
    failed = await runs.step(attempt, "s", "failed", error={"code": "E", "message": "m"}, final=True)
    assert (failed["status"], failed["output"], failed["duplicate"]) == ("succeeded", 1, True)
    assert (await play.kinds(attempt["taskId"])).count("step") == 1


async def test_failed_tries_are_counted_once_each_and_a_final_one_stays(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    error = {"code": "E", "message": "m", "details": {"n": 1}}
    for tries in (1, 1, 2):
        stored = await runs.step(attempt, "s", "failed", error=error, tries=tries)
        assert (stored["status"], stored["final"], stored["tries"]) == ("failed", False, tries)
    last = await runs.step(attempt, "s", "failed", error=error, final=True, tries=3)
    assert (last["final"], last["tries"], last["error"]) == (True, 3, error)
    assert (await runs.step(attempt, "s", output="late"))["error"] == error
    assert (await play.kinds(attempt["taskId"])).count("step") == 3


async def test_a_failed_non_idempotent_step_is_always_final(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    await runs.open(attempt, "s")
    assert (await runs.step(attempt, "s", "failed", error={"code": "E", "message": "m"}))["final"] is True


async def test_a_failure_of_what_started_again_is_a_new_one(play: Play, runs: Runs) -> None:
    """The count of tries tells a repeat only of what has not started since."""
    attempt = await play.run()
    await runs.open(attempt, "charge")
    await play.complete(attempt, "unknown", error={"code": "GONE"}, step="charge")
    await play.resolve(attempt["taskId"], "requeue", attempt["attemptId"])  # closes it, as a try
    again = await runs.again()
    await runs.open(again, "charge")
    failed = await runs.step(again, "charge", "failed", tries=1, error={"code": "DENIED"})
    assert (failed["status"], failed["final"], failed["duplicate"]) == ("failed", True, False)
    assert (await play.complete(again, "retryable", error={"code": "DENIED"}))["taskStatus"] == "queued"  # nothing is open


async def test_a_counted_try_may_turn_out_to_be_the_last(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    await runs.step(attempt, "s", "failed", tries=1, error={"code": "BUSY"})
    last = await runs.step(attempt, "s", "failed", tries=1, final=True, error={"code": "GIVEN_UP"})
    assert (last["final"], last["tries"], last["error"]["code"], last["duplicate"]) == (True, 1, "GIVEN_UP", False)
    assert await runs.step(attempt, "s", "failed", tries=1, error={"code": "BUSY"}) == last | {"duplicate": True}


async def test_outputs_of_waits_are_bounded_as_those_of_steps(play: Play, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    from interlock_core import steps

    attempt = await play.run()
    monkeypatch.setattr(steps, "MOST_BYTES", 100)
    await runs.signal(attempt["taskId"], "go", "x" * 200)
    assert (await runs.suspend(attempt, "first", signal="go"))["taskStatus"] == "queued"  # what it brings is known only then
    again = await runs.again()
    assert refused(await runs.suspend(again, "second", signal="go")) == "LIMIT_EXCEEDED"
    assert (await play.complete(again))["taskStatus"] == "succeeded"


async def test_a_step_of_an_expired_attempt_recovers_it(play: Play, runs: Runs, clock: Clock) -> None:
    attempt = await play.run(leaseSeconds=10)
    clock.advance(11)
    await play.sweep()
    assert (await play.get(attempt["taskId"]))["status"] == "queued"
    await runs.step(attempt, "s", output=1)
    task = await play.get(attempt["taskId"])
    assert (task["status"], task["attempts"]) == ("running", 0)
    assert (await play.kinds(task["id"]))[-2:] == ["lease-recovered", "step"]
    assert (await play.complete(attempt))["taskStatus"] == "succeeded"


async def test_a_step_of_a_replaced_attempt_is_stale(play: Play, runs: Runs, clock: Clock) -> None:
    old = await play.run(leaseSeconds=10, retry=NOW)
    clock.advance(11)
    new = await runs.again(instance="two")
    answer = await runs.step_raw(old, "s", output=1)
    assert (answer.status_code, answer.json()["code"]) == (409, "STALE_ATTEMPT")
    assert (await runs.step_raw({**new, "leaseToken": old["leaseToken"]}, "s")).json()["code"] == "STALE_ATTEMPT"
    assert await runs.steps(old["taskId"]) == {}


OPEN_ENDS: list[tuple[str, dict[str, Any], str]] = [
    ("retryable", {"error": {"code": "X", "message": "m"}}, "X"),
    ("cancelled", {}, "RELEASED_UNSAFE"),
    ("suspended", {"wait": {"name": "w", "afterSeconds": 1}}, "RELEASED_UNSAFE"),
    ("unknown", {"error": {"code": "LOST", "message": "no answer"}}, "LOST"),
]


@pytest.mark.parametrize(("outcome", "fields", "code"), OPEN_ENDS, ids=[o for o, _, _ in OPEN_ENDS])
async def test_an_attempt_that_ends_inside_an_unsafe_step_is_unknown_and_names_it(
    play: Play, runs: Runs, outcome: str, fields: dict[str, Any], code: str
) -> None:
    attempt = await play.run(safety="pure")
    await runs.step(attempt, "before", output=1)
    await runs.open(attempt, "charge")
    assert (await play.complete(attempt, outcome, **fields))["taskStatus"] == "outcome-unknown"
    failure = (await play.get(attempt["taskId"]))["failure"]
    assert (failure["code"], failure["details"]["step"]) == (code, "charge")


@pytest.mark.parametrize("how", ["expiry", "release"])
async def test_a_crash_inside_an_unsafe_step_is_unknown_and_a_crash_elsewhere_resumes(
    play: Play, runs: Runs, clock: Clock, how: str
) -> None:
    async def crash(attempt: dict[str, Any]) -> None:
        if how == "release":
            await play.release(attempt, started=True)
            return
        clock.advance(61)
        await play.sweep()

    attempt = await play.run(safety="pure", retry=NOW)
    await runs.open(attempt, "charge")
    await runs.step(attempt, "charge", output="paid")
    await crash(attempt)
    attempt = await runs.again(safety="pure")
    assert [step["output"] for step in attempt["steps"]] == ["paid"]
    await runs.open(attempt, "ship")
    await crash(attempt)
    task = await play.get(attempt["taskId"])
    assert (task["status"], task["failure"]["details"]["step"]) == ("outcome-unknown", "ship")
    assert task["failure"]["code"] == ("RELEASED_UNSAFE" if how == "release" else "LEASE_EXPIRED")


async def test_an_open_step_that_can_be_asked_for_goes_to_the_next_attempt(play: Play, runs: Runs, clock: Clock) -> None:
    attempt = await play.run(safety="pure", retry={**NOW, "maxAttempts": 2})
    await runs.open(attempt, "charge", reconciles=True)
    clock.advance(61)
    await play.sweep()
    again = await runs.again(safety="pure")
    assert [(s["name"], s["status"], s["final"], s["reconciles"]) for s in again["steps"]] == [("charge", "started", False, True)]
    clock.advance(61)  # the last attempt ends inside it as well: nobody will ask any more
    await play.sweep()
    task = await play.get(attempt["taskId"])
    assert (task["status"], task["failure"]["details"]["step"]) == ("outcome-unknown", "charge")


async def test_a_step_may_start_again_and_end(play: Play, runs: Runs, clock: Clock) -> None:
    attempt = await play.run(safety="pure", retry=NOW)
    await runs.open(attempt, "charge", reconciles=True)
    assert (await runs.open(attempt, "charge", reconciles=True))["duplicate"] is True
    clock.advance(61)
    await play.sweep()
    attempt = await runs.again(safety="pure")
    assert (await runs.open(attempt, "charge", reconciles=True))["duplicate"] is False
    await runs.step(attempt, "charge", output=1)
    assert (await play.complete(attempt, "retryable", error={"code": "X"}, retryAfterSeconds=0))["taskStatus"] == "queued"


async def test_reconcile_of_a_handler_is_asked_by_the_next_claim(play: Play, runs: Runs, clock: Clock) -> None:
    first = await play.submit(leaseSeconds=10, retry=NOW)
    attempt = await runs.again(safety="non-idempotent", reconciles=True)
    assert attempt["reconcile"] is None
    clock.advance(11)
    await play.sweep()
    assert (await play.get(first["id"]))["status"] == "queued"
    again = await runs.again(safety="non-idempotent", reconciles=True)
    assert again["reconcile"] == {"attemptId": attempt["attemptId"], "reason": "LEASE_EXPIRED"}
    await play.release(again, started=False)
    again = await runs.again(safety="non-idempotent", reconciles=True)
    assert again["reconcile"]["attemptId"] == attempt["attemptId"]  # nothing was asked yet
    await play.release(again, started=True)
    last = await runs.again(safety="non-idempotent", reconciles=True)
    assert last["reconcile"] == {"attemptId": again["attemptId"], "reason": "RELEASED"}
    await play.complete(last, "retryable", error={"code": "X"}, retryAfterSeconds=0)
    # Its hook may not have got an answer: what was to be found out still is.
    assert (await runs.again(safety="non-idempotent", reconciles=True))["reconcile"] == last["reconcile"]


async def test_the_last_attempt_that_found_nothing_out_leaves_it_unknown(play: Play, runs: Runs, clock: Clock) -> None:
    for said in ("retryable", "cancelled"):
        await play.submit(leaseSeconds=10, timeoutSeconds=15, retry={**NOW, "maxAttempts": 2})
        await play.release(await runs.again(safety="non-idempotent", reconciles=True), started=True)
        for left in (True, False):
            attempt = await runs.again(safety="non-idempotent", reconciles=True)
            assert attempt["reconcile"]["reason"] == "RELEASED"
            clock.advance(15 if said == "cancelled" else 0)
            told = await play.complete(attempt, said, error={"code": "LATER", "message": "the bank is shut"})
            assert told["taskStatus"] == ("queued" if left else "outcome-unknown")
        task = await play.get(attempt["taskId"])
        assert task["failure"]["code"] == ("LATER" if said == "retryable" else "RELEASED_UNSAFE")


async def test_limits_are_told_and_lose_nothing(play: Play, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    from interlock_core import steps

    attempt = await play.run()
    answer = await runs.step_raw(attempt, "big", output="x" * (256 * 1024))
    assert (answer.status_code, answer.json()["code"]) == (413, "PAYLOAD_TOO_LARGE")
    monkeypatch.setattr(steps, "MOST_BYTES", 100)
    assert (await runs.step_raw(attempt, "s", output="x" * 100)).json()["code"] == "LIMIT_EXCEEDED"
    await runs.step(attempt, "s", output="x" * 50)
    monkeypatch.setattr(steps, "MOST_STEPS", 1)
    assert (await runs.step_raw(attempt, "t", output=1)).json()["code"] == "LIMIT_EXCEEDED"
    assert (await runs.child_raw(attempt, "c")).json()["code"] == "LIMIT_EXCEEDED"
    assert (await runs.step(attempt, "s", output=2))["duplicate"] is True  # a known one is still told
    assert (await play.complete(attempt))["taskStatus"] == "succeeded"


async def test_what_does_not_fit_into_the_claim_is_read_by_pages(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    for n in range(12):
        await runs.step(attempt, f"s{n}", output="x" * 200_000)
    await play.complete(attempt, "retryable", error={"code": "X"}, retryAfterSeconds=0)
    again = await runs.again()
    names = [step["name"] for step in again["steps"]]
    assert names == [f"s{n}" for n in range(5)]
    path = f"/v1/tasks/{again['taskId']}/attempts/{again['attemptId']}/steps"
    lease = {"X-Fence": str(again["fence"]), "X-Lease-Token": again["leaseToken"]}
    cursor = again["stepsCursor"]
    while cursor:
        answer = (await play.http.worker.get(path, params={"cursor": cursor}, headers=lease)).json()
        names += [step["name"] for step in answer["items"]]
        cursor = answer["nextCursor"]
    assert names == [f"s{n}" for n in range(12)]
    stale = await play.http.worker.get(path, headers={"X-Fence": "1", "X-Lease-Token": attempt["leaseToken"]})
    assert (stale.status_code, stale.json()["code"]) == (409, "STALE_ATTEMPT")
    assert (await play.http.worker.get(path)).json()["code"] == "INVALID_REQUEST"


async def test_orphaned_steps_are_journalled_with_the_completion(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    await runs.step(attempt, "old", output=1)
    await play.complete(attempt, orphanedSteps=["old"])
    events = (await play.http.producer.get(f"/v1/tasks/{attempt['taskId']}/journal")).json()["items"]
    assert [(e["kind"], e["data"]) for e in events][-2:] == [("steps-orphaned", {"steps": ["old"]}), ("succeeded", {})]


async def test_a_name_is_one_thing(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    await runs.step(attempt, "a", output=1)
    await runs.child(attempt, "b")
    assert (await runs.child_raw(attempt, "a")).json()["code"] == "INVALID_REQUEST"
    assert (await runs.step_raw(attempt, "b")).json()["errors"][0]["pointer"] == "/name"


async def test_include_shows_steps_and_children_without_their_values(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    await runs.step(attempt, "a", output=1)
    await runs.child(attempt, "b")
    task = (await play.http.producer.get(f"/v1/tasks/{attempt['taskId']}?include=steps,children")).json()
    assert [(s["name"], s["kind"], "output" in s) for s in task["steps"]] == [("a", "step", False), ("b", "child", False)]
    assert [(c["name"], c["status"], "result" in c) for c in task["children"]] == [("b", "queued", False)]


class TestResolve:
    """A person tells what became of a step, or lets the hook be asked again."""

    async def unknown(self, play: Play, runs: Runs, *names: str) -> dict[str, Any]:
        attempt = await play.run(safety="pure")
        for name in names:
            await runs.open(attempt, name)
        await play.complete(attempt, "unknown", error={"code": "LOST", "message": "m"}, step=names[0])
        return attempt

    async def test_succeeded_stores_the_output_and_lets_the_task_go_on(self, play: Play, runs: Runs) -> None:
        attempt = await self.unknown(play, runs, "charge")
        task = await play.resolve(attempt["taskId"], "succeeded", attempt["attemptId"], step="charge", result={"id": 7})
        assert task["status"] == "queued"
        again = await runs.again(safety="pure")
        assert [(s["name"], s["final"], s["output"]) for s in again["steps"]] == [("charge", True, {"id": 7})]
        repeat = await play.resolve(attempt["taskId"], "succeeded", attempt["attemptId"], step="charge", result={"id": 7})
        assert repeat["duplicate"] is True

    async def test_failed_is_a_final_failure_and_requeue_runs_it_again(self, play: Play, runs: Runs) -> None:
        attempt = await self.unknown(play, runs, "charge")
        await play.resolve(attempt["taskId"], "failed", attempt["attemptId"], step="charge")
        (step,) = (await runs.again(safety="pure"))["steps"]
        assert (step["status"], step["final"], step["error"]["code"]) == ("failed", True, "RESOLVED_FAILED")
        attempt = await self.unknown(play, runs, "charge")
        await play.resolve(attempt["taskId"], "requeue", attempt["attemptId"], step="charge")
        (step,) = (await runs.again(safety="pure"))["steps"]
        assert (step["status"], step["final"]) == ("failed", False)

    async def test_another_open_step_keeps_it_unknown(self, play: Play, runs: Runs) -> None:
        attempt = await self.unknown(play, runs, "a", "b")
        task = await play.resolve(attempt["taskId"], "succeeded", attempt["attemptId"], step="a", result=1)
        assert (task["status"], task["failure"]["details"]["step"]) == ("outcome-unknown", "b")
        task = await play.resolve(attempt["taskId"], "succeeded", attempt["attemptId"], step="b", result=2)
        assert task["status"] == "queued"

    async def test_requeue_of_the_task_closes_its_open_steps(self, play: Play, runs: Runs) -> None:
        attempt = await self.unknown(play, runs, "a", "b")
        assert (await play.resolve(attempt["taskId"], "requeue", attempt["attemptId"]))["status"] == "queued"
        again = await runs.again(safety="pure")
        assert [(s["status"], s["final"]) for s in again["steps"]] == [("failed", False)] * 2
        assert (await play.complete(again, "retryable", error={"code": "X"}, retryAfterSeconds=0))["taskStatus"] == "queued"

    async def test_reconcile_keeps_them_open_to_be_asked_for(self, play: Play, runs: Runs) -> None:
        attempt = await self.unknown(play, runs, "a")
        assert (await play.resolve(attempt["taskId"], "reconcile", attempt["attemptId"]))["status"] == "queued"
        (step,) = (await runs.again(safety="pure"))["steps"]
        assert (step["status"], step["final"]) == ("started", False)

    async def test_reconcile_of_a_handler(self, play: Play, runs: Runs) -> None:
        attempt = await play.run(safety="non-idempotent")
        await play.complete(attempt, "unknown", error={"code": "LOST", "message": "m"})
        await play.resolve(attempt["taskId"], "reconcile", attempt["attemptId"])
        again = await runs.again(safety="non-idempotent", reconciles=True)
        assert again["reconcile"] == {"attemptId": attempt["attemptId"], "reason": "RESOLVED"}

    async def test_no_such_step_and_nonsense_are_told(self, play: Play, runs: Runs) -> None:
        attempt = await self.unknown(play, runs, "a")
        answer = await play.resolve_raw(attempt["taskId"], "succeeded", attempt["attemptId"], step="b")
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (400, "/step")
        answer = await play.resolve_raw(attempt["taskId"], "reconcile", attempt["attemptId"], step="a")
        assert answer.json()["code"] == "INVALID_REQUEST"
        answer = await play.resolve_raw(attempt["taskId"], "succeeded", "00000000-0000-7000-8000-000000000000", step="a")
        assert answer.json()["code"] == "TASK_NOT_UNKNOWN"


async def test_work_that_a_hook_was_to_be_asked_for_is_unknown_when_nobody_comes(play: Play, runs: Runs, clock: Clock) -> None:
    attempt = await play.run(safety="pure", retry=NOW)
    await runs.open(attempt, "charge", reconciles=True)
    clock.advance(61)
    await play.sweep()
    clock.advance(90_000)
    await play.sweep()
    task = await play.get(attempt["taskId"])
    assert (task["status"], task["failure"]["code"]) == ("outcome-unknown", "WORKER_WAIT_LIMIT")


async def test_a_non_idempotent_handler_cannot_suspend(play: Play, runs: Runs) -> None:
    attempt = await play.run(safety="non-idempotent")
    assert refused(await runs.suspend(attempt, afterSeconds=1)) == "INVALID_REQUEST"
    assert (await play.complete(attempt))["taskStatus"] == "succeeded"
