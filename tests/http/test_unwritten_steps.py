"""Step cases that nobody had written down: absence is not null, names are literal, and a race has one outcome (docs/faults.md, B84)."""

from __future__ import annotations

import asyncio
import json
import unicodedata
from typing import Any

import pytest

from support.clock import Clock
from support.play import Json, Play, ids
from support.runs import Runs

NOW = {"jitter": 0, "initialDelaySeconds": 0}
AGAIN: Json = {"error": {"code": "X", "message": "m"}, "retryAfterSeconds": 0}
EMPTY: dict[str, Any] = {"null": None, "text": "", "zero": 0, "no": False, "list": [], "object": {}}


async def post(play: Play, attempt: Json, what: str, text: str) -> Any:
    """A call of an attempt whose body is this text, with the lease put in front."""
    path = f"/v1/tasks/{attempt['taskId']}/attempts/{attempt['attemptId']}/{what}"
    body = json.dumps(ids(attempt))[:-1] + ", " + text + "}"
    return await play.http.worker.post(path, content=body.encode(), headers={"content-type": "application/json"})


async def rerun(play: Play, task_id: str, **fields: Any) -> Json:
    answer = await play.http.producer.post(f"/v1/tasks/{task_id}/rerun", json=fields)
    assert answer.status_code == 201, answer.text
    found: Json = answer.json()
    return found


def outputs(attempt: Json) -> dict[str, Any]:
    """The outputs by name; a step without one is not in there."""
    return {step["name"]: step["output"] for step in attempt["steps"] if "output" in step}


async def test_b84_empty_outputs_are_kept_over_a_crash_and_a_rerun_from_the_next_step(
    play: Play, runs: Runs, clock: Clock
) -> None:
    attempt = await play.run(retry=NOW)
    for name, value in EMPTY.items():
        await runs.step(attempt, name, output=value)
    clock.advance(61)
    await play.sweep()
    again = await runs.again()
    assert outputs(again) == EMPTY
    for name, value in EMPTY.items():  # computed again all the same: the first one stands
        assert (await runs.step(again, name, output="second"))["output"] == value
    await runs.step(again, "next", output=1)
    await play.complete(again)
    await rerun(play, again["taskId"], fromStep="next")
    kept = await runs.again()
    assert outputs(kept) == EMPTY
    assert all(step["final"] for step in kept["steps"])


async def test_b84_an_output_that_is_not_given_is_null_and_no_gap(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    assert (await runs.step(attempt, "s"))["output"] is None
    assert (await runs.steps(attempt["taskId"]))["s"]["output"] is None
    assert (await runs.step(attempt, "s", output=5))["output"] is None  # it was there, and it was null


async def test_b84_a_failure_without_words_is_a_failure_and_has_no_output(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    for name, error in {"nothing": None, "empty": {}, "text": "boom", "number": 7}.items():
        stored = await runs.step(attempt, name, "failed", error=error, final=True, output="not this")
        assert (stored["status"], stored["final"], "output" in stored) == ("failed", True, False)
        assert stored["error"]["code"] == "FAILED"
        assert stored["error"]["message"]
    good = await runs.step(attempt, "good", output=1, error={"code": "NOT", "message": "this"})
    assert (good["output"], "error" in good) == (1, False)


async def test_b84_a_null_payload_is_a_signal_and_no_time_out(play: Play, runs: Runs, clock: Clock) -> None:
    attempt = await play.run()
    await runs.suspend(attempt, "w", signal="go", afterSeconds=10)
    await runs.signal(attempt["taskId"], "go", None)
    again = await runs.again()
    assert outputs(again) == {"w": {"signal": None}}
    await runs.suspend(again, "late", signal="go", afterSeconds=10)
    clock.advance(11)
    assert outputs(await runs.again())["late"] == {"timedOut": True}


@pytest.mark.parametrize("result", [None, "", 0, False])
async def test_b84_an_empty_result_of_a_child_is_a_result(play: Play, runs: Runs, result: Any) -> None:
    attempt = await play.run()
    child = await runs.child(attempt, "kid")
    await runs.suspend(attempt, "w", children=["kid"])
    await runs.end_child(result=result)
    end = {"name": "kid", "taskId": child, "status": "succeeded", "result": result, "failure": None}
    assert outputs(await runs.again())["w"] == {"children": [end]}


async def test_b84_a_step_resolved_without_a_result_has_a_null_one(play: Play, runs: Runs) -> None:
    attempt = await play.run(safety="pure")
    await runs.open(attempt, "charge")
    await play.complete(attempt, "unknown", error={"code": "LOST", "message": "m"})
    await play.resolve(attempt["taskId"], "succeeded", attempt["attemptId"], step="charge")
    (step,) = (await runs.again(safety="pure"))["steps"]
    assert (step["final"], step["output"]) == (True, None)


NAMES = ["__proto__", "constructor", "10", "9", "A", "a", "a/b?c=d#e", "%2F", " a", "😀", "x" * 255, "null", "é"]


async def test_b84_names_are_literal_and_keep_their_order(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    names = [*NAMES, unicodedata.normalize("NFD", "é")]
    for n, name in enumerate(names):
        assert (await runs.step(attempt, name, output=n))["duplicate"] is False
    await play.complete(attempt, "retryable", **AGAIN)
    again = await runs.again()
    assert [(step["name"], step["output"]) for step in again["steps"]] == [(name, n) for n, name in enumerate(names)]
    for name in ("", " ", "x" * 256, "tab\t", "\u0000"):
        assert (await runs.step_raw(again, name)).json()["errors"][0]["pointer"] == "/name"


async def test_b84_a_value_that_cannot_be_kept_is_refused_by_its_place_and_the_step_stays_free(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    deep = "[" * 70 + "]" * 70
    for value in ("NaN", "1e999", '{"a": 1, "a": 2}', '"\\ud800"', deep):
        answer = await post(play, attempt, "steps", f'"name": "s", "status": "succeeded", "output": {value}')
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_JSON"), value
        assert value == deep or answer.json()["errors"][0]["pointer"].startswith("/output"), value
    assert await runs.steps(attempt["taskId"]) == {}
    assert (await runs.step(attempt, "s", output="good"))["duplicate"] is False


async def test_b84_size_is_bytes_and_the_last_one_counts(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    letters = (256 * 1024 - 2) // 2  # two bytes each, and two quotes
    fits = await post(play, attempt, "steps", f'"name": "fits", "status": "succeeded", "output": "{"é" * letters}"')
    assert fits.status_code == 200
    over = await post(play, attempt, "steps", f'"name": "over", "status": "succeeded", "output": "{"é" * letters}x"')
    assert (over.status_code, over.json()["code"]) == (413, "PAYLOAD_TOO_LARGE")


async def test_b84_text_of_a_failure_never_makes_the_report_fail(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    error = {"code": "E" * 300, "message": "zero \u0000 " + "x" * 20_000, "details": {"name": "\u0000", "big": 10**40}}
    stored = (await runs.step(attempt, "s", "failed", error=error))["error"]
    assert len(stored["code"]) <= 255
    assert stored["message"].startswith("zero � x")
    assert stored["message"].endswith("…[truncated]")
    assert stored["details"] == {"name": "�", "big": str(10**40)}


async def test_b84_one_step_told_twenty_times_at_once_is_stored_once(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    told = await asyncio.gather(*(runs.step(attempt, "s", output=n) for n in range(20)))
    assert len({step["output"] for step in told}) == 1
    assert [step["duplicate"] for step in told].count(False) == 1
    assert (await play.kinds(attempt["taskId"])).count("step") == 1


async def test_b84_many_steps_and_children_at_once_have_one_place_each(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    await asyncio.gather(
        *(runs.step(attempt, f"s{n}", output=n) for n in range(10)), *(runs.child(attempt, f"c{n}") for n in range(10))
    )
    await play.complete(attempt, "retryable", **AGAIN)
    again = await runs.again()
    seqs = [step["seq"] for step in again["steps"]]
    assert seqs == list(range(3, 23))
    assert {name: value for name, value in outputs(again).items() if name[0] == "s"} == {f"s{n}": n for n in range(10)}
    assert len(await runs.children(attempt["taskId"])) == 10


async def test_b84_a_step_that_meets_the_end_of_its_attempt_is_stored_before_it_or_refused(play: Play, runs: Runs) -> None:
    for n in range(8):
        attempt = await play.run()
        calls = [runs.step_raw(attempt, "s", output=1), play.complete(attempt)]
        first, second = await asyncio.gather(*(calls if n % 2 else reversed(calls)))
        answer = first if n % 2 else second
        kinds = await play.kinds(attempt["taskId"])
        assert kinds[-1] == "succeeded"
        assert (answer.status_code, "step" in kinds) in ((200, True), (409, False))
        assert bool(await runs.steps(attempt["taskId"])) is (answer.status_code == 200)


async def test_b84_a_replaced_attempt_neither_closes_nor_opens_its_successors_step(play: Play, runs: Runs, clock: Clock) -> None:
    old = await play.run(safety="pure", leaseSeconds=10, retry=NOW)
    await runs.step(old, "charge", "started", effectSafety="idempotent")
    clock.advance(11)
    new = await runs.again(safety="pure", instance="two")
    await runs.open(new, "charge")
    for status in ("started", "succeeded", "failed"):
        assert (await runs.step_raw(old, "charge", status)).json()["code"] == "STALE_ATTEMPT"
    assert (await runs.steps(old["taskId"]))["charge"]["status"] == "started"
    assert (await play.release(new, started=True))["taskStatus"] == "outcome-unknown"


async def test_b84_an_outcome_that_comes_late_takes_the_unknown_back(play: Play, runs: Runs, clock: Clock) -> None:
    attempt = await play.run(safety="pure", leaseSeconds=10)
    await runs.open(attempt, "charge")
    clock.advance(11)
    await play.sweep()
    assert (await play.get(attempt["taskId"]))["failure"]["details"]["step"] == "charge"
    await runs.step(attempt, "charge", output="paid")  # the process was frozen, not dead
    task = await play.get(attempt["taskId"])
    assert (task["status"], task["failure"], task["attempts"]) == ("running", None, 0)
    assert (await play.complete(attempt, "retryable", **AGAIN))["taskStatus"] == "queued"  # nothing is open any more


async def test_b84_what_a_person_found_stands_against_a_late_report_of_the_step(play: Play, runs: Runs, clock: Clock) -> None:
    attempt = await play.run(safety="pure", leaseSeconds=10)
    await runs.open(attempt, "charge")
    clock.advance(11)
    await play.sweep()
    await play.resolve(attempt["taskId"], "failed", attempt["attemptId"], step="charge")
    assert (await runs.step_raw(attempt, "charge", output="paid")).json()["code"] == "STALE_ATTEMPT"
    (step,) = (await runs.again(safety="pure"))["steps"]
    assert (step["status"], step["error"]["code"]) == ("failed", "RESOLVED_FAILED")


async def test_b84_a_step_is_stored_also_where_a_cancel_was_asked_for(play: Play, runs: Runs) -> None:
    attempt = await play.run(safety="pure")
    await runs.open(attempt, "charge")
    await play.cancel(attempt["taskId"])
    await runs.step(attempt, "charge", output="paid")
    await runs.child(attempt, "kid")
    assert (await play.complete(attempt, "cancelled"))["taskStatus"] == "cancelled"
    assert (await runs.steps(attempt["taskId"]))["charge"]["output"] == "paid"
    assert (await runs.children(attempt["taskId"]))["kid"]["status"] == "cancelled"


async def test_b84_a_crash_inside_a_safe_step_counts_no_try_and_names_no_step(play: Play, runs: Runs, clock: Clock) -> None:
    attempt = await play.run(safety="pure", leaseSeconds=10, retry=NOW)
    await runs.step(attempt, "look", "started")
    clock.advance(11)
    (step,) = (await runs.again(safety="pure"))["steps"]
    assert (step["status"], step["tries"]) == ("started", 0)
    other = await play.run(safety="non-idempotent", leaseSeconds=10)
    await runs.step(other, "look", "started", effectSafety="pure")
    clock.advance(11)
    await play.sweep()
    failure = (await play.get(other["taskId"]))["failure"]  # the handler's own effect is in doubt, not the step's
    assert (failure["code"], failure["details"]) == ("LEASE_EXPIRED", None)


async def test_b84_a_step_takes_the_stricter_word_of_claim_and_registration(play: Play, runs: Runs, clock: Clock) -> None:
    handler = {"type": "demo/hello", "schemaVersion": 1, "effectSafety": "non-idempotent", "reconciles": True}
    body = {"instanceId": "one", "slots": 1, "handlers": [handler]}
    assert (await play.http.worker.put("/v1/workers/tester", json=body)).status_code == 200
    await play.submit(retry=NOW)
    attempt = await runs.again(safety="pure", reconciles=True)
    assert (await runs.step(attempt, "charge", "started"))["effectSafety"] == "non-idempotent"
    clock.advance(61)
    await play.sweep()
    assert (await play.get(attempt["taskId"]))["failure"]["details"]["step"] == "charge"


async def test_b84_tries_go_on_over_attempts_and_over_a_rerun(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    await runs.step(attempt, "s", "failed", error={"code": "E"}, tries=1)
    await play.complete(attempt, "retryable", **AGAIN)
    again = await runs.again()
    assert again["steps"][0]["tries"] == 1
    assert (await runs.step(again, "s", "failed", error={"code": "E"}, tries=1))["duplicate"] is True  # the answer was lost
    assert (await runs.step(again, "s", "failed", error={"code": "E"}, tries=2, final=True))["tries"] == 2
    await runs.step(again, "next", output=1)
    await play.complete(again)
    await rerun(play, again["taskId"], fromStep="next")
    kept = await runs.again()
    assert [(s["status"], s["final"], s["tries"], s["error"]["code"]) for s in kept["steps"]] == [("failed", True, 2, "E")]
    await play.complete(kept)
    await rerun(play, again["taskId"], fromStep="s")
    assert (await runs.again())["steps"] == []  # its failure was final for that task, not for this one


async def test_b84_a_rerun_of_a_rerun_keeps_steps_waits_and_scope(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    await runs.step(attempt, "a", output=None)
    await runs.signal(attempt["taskId"], "go", {"n": 1})
    await runs.suspend(attempt, "w", signal="go")
    attempt = await runs.again()
    await runs.step(attempt, "b", output=2)
    await play.complete(attempt)
    first = await rerun(play, attempt["taskId"], fromStep="b", keepEffectKeys=True)
    held = await runs.again()
    await runs.step(held, "b", output="other")
    await play.complete(held)
    second = await rerun(play, first["id"], fromStep="b", keepEffectKeys=True)
    held = await runs.again()
    assert (held["taskId"], held["effectScope"]) == (second["id"], attempt["taskId"])
    assert outputs(held) == {"a": None, "w": {"signal": {"n": 1}}}
    await play.complete(held)
    third = await rerun(play, attempt["taskId"], fromStep="w")
    held = await runs.again()
    assert (held["effectScope"], outputs(held)) == (third["id"], {"a": None})
    assert (await runs.suspend(held, "w", signal="go"))["taskStatus"] == "waiting"  # signals are not copied


async def test_b84_orphaned_steps_are_read_leniently(play: Play, runs: Runs) -> None:
    for given in ("nonsense", {"a": 1}, 7, [], [1, None]):
        attempt = await play.run()
        assert (await play.complete(attempt, orphanedSteps=given))["taskStatus"] == "succeeded"
        assert "steps-orphaned" not in await play.kinds(attempt["taskId"])
    attempt = await play.run()
    await play.complete(attempt, orphanedSteps=["never", 1, "stored", "x" * 300])
    event = (await play.http.producer.get(f"/v1/tasks/{attempt['taskId']}/journal")).json()["items"][-2]
    assert event["data"]["steps"][:2] == ["never", "stored"]
