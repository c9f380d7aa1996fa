"""Waits, signals and children: whatever ends a wait, no wake-up is lost (docs/protocol.md, steps, waits, signals, children)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from support.clock import Clock
from support.play import Play, refused
from support.runs import Runs


async def wait_reason(play: Play, task_id: str) -> str:
    reason: str = (await play.get(task_id))["waiting"]["reason"]
    return reason


async def test_a_sleep_frees_the_slot_and_its_key_and_goes_on_by_itself(play: Play, runs: Runs, clock: Clock) -> None:
    attempt = await play.run(concurrency={"key": "k", "limit": 1}, retry={"maxAttempts": 1})
    assert (await runs.suspend(attempt, "nap", afterSeconds=120))["taskStatus"] == "waiting"
    assert await wait_reason(play, attempt["taskId"]) == "sleeping"
    other = await play.run(concurrency={"key": "k", "limit": 1})
    await play.complete(other)
    assert await play.claim() == []
    clock.advance(121)
    again = await runs.again()  # the claim itself ends the wait: no sweep, no stream
    assert [(s["name"], s["kind"], s["output"]) for s in again["steps"]] == [("nap", "wait", {"timedOut": True})]
    assert again["attemptNumber"] == 1  # a suspension is not counted
    assert await play.kinds(attempt["taskId"]) == ["submitted", "claimed", "suspended", "resumed", "claimed"]


async def test_a_sleep_makes_no_wait_for_a_worker_below_zero(play: Play, runs: Runs, clock: Clock) -> None:
    async def waits() -> dict[str, float | None]:
        clock.advance(120)
        await play.sweep()
        view = (await play.http.producer.get("/v1/task-types/demo/hello/1")).json()
        seconds: dict[str, float | None] = view["waitSeconds"]
        return seconds

    await runs.suspend(await play.run(), "nap", afterSeconds=60)
    clock.advance(61)
    await play.complete(await runs.again())
    assert await waits() == {"p50": None, "p95": None}  # when it was first due is not known any more
    await play.complete(await play.run())
    assert all(second is not None and 0 <= second < 60 for second in (await waits()).values())


async def test_the_poll_interval_ends_with_the_sleep(play: Play, runs: Runs) -> None:
    await runs.suspend(await play.run(), "nap", afterSeconds=3)
    answer = await play.http.worker.post("/v1/claims", json=play.claim_body())
    assert 0.2 <= answer.json()["pollAfterSeconds"] <= 3


async def test_until_an_instant_and_the_past(play: Play, runs: Runs, clock: Clock) -> None:
    at = (clock.now() + timedelta(hours=1)).isoformat().replace("+00:00", "Z")
    attempt = await play.run()
    assert (await runs.suspend(attempt, "t", until=at))["taskStatus"] == "waiting"
    clock.advance(3601)
    assert (await play.sweep())["woken"] == 1
    again = await runs.again()
    assert (await runs.suspend(again, "past", until=at))["taskStatus"] == "queued"
    assert (await runs.suspend(again, "past", until=at)) == {
        "attemptId": again["attemptId"],
        "taskStatus": "queued",
        "duplicate": True,
    }


async def test_a_long_sleep_survives_sweeps_and_retention(play: Play, runs: Runs, clock: Clock) -> None:
    from interlock_core import leases
    from interlock_core.settings import Settings

    attempt = await play.run()
    await runs.suspend(attempt, "month", afterSeconds=30 * 86_400)
    for _ in range(3):
        clock.advance(9 * 86_400)
        await play.sweep()
        await leases.retain(play.http._app.state.database, Settings())
    assert (await play.get(attempt["taskId"]))["status"] == "waiting"
    clock.advance(4 * 86_400)
    assert (await runs.again())["steps"][0]["name"] == "month"


async def test_a_signal_ends_the_wait_with_its_payload(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    await runs.suspend(attempt, "ok", signal="verified")
    assert await wait_reason(play, attempt["taskId"]) == "signal"
    assert (await runs.signal(attempt["taskId"], "other", 1, "a"))["taskStatus"] == "waiting"
    assert (await runs.signal(attempt["taskId"], "verified", {"by": "mail"}, "b"))["taskStatus"] == "queued"
    (step,) = (await runs.again())["steps"]
    assert step["output"] == {"signal": {"by": "mail"}}


async def test_a_signal_that_came_first_ends_the_wait_at_once(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    await runs.signal(attempt["taskId"], "verified", False)
    assert await runs.suspend(attempt, "ok", signal="verified") == {
        "attemptId": attempt["attemptId"],
        "taskStatus": "queued",
        "duplicate": False,
    }
    again = await runs.again()
    assert again["steps"][0]["output"] == {"signal": False}
    assert (await runs.suspend(again, "next", signal="verified"))["taskStatus"] == "waiting"  # consumed once


async def test_signals_are_taken_in_their_order_each_once(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    for n in range(3):
        await runs.signal(attempt["taskId"], "n", n, f"key-{n}")
    for n in range(3):
        await runs.suspend(attempt, f"wait-{n}", signal="n")
        attempt = await runs.again()
    assert [step["output"] for step in attempt["steps"]] == [{"signal": n} for n in range(3)]


async def test_a_signal_key_names_one_signal(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    first = await runs.signal_raw(attempt["taskId"], "n", {"a": 1})
    assert (first.status_code, first.json()["duplicate"]) == (201, False)
    again = await runs.signal_raw(attempt["taskId"], "n", {"a": 1.0})
    assert (again.status_code, again.json()["duplicate"], again.json()["seq"]) == (200, True, first.json()["seq"])
    for name, payload in (("n", {"a": 2}), ("m", {"a": 1})):
        assert (await runs.signal_raw(attempt["taskId"], name, payload)).json()["code"] == "IDEMPOTENCY_CONFLICT"
    await play.complete(attempt)
    assert (await runs.signal(attempt["taskId"], "n", {"a": 1}))["duplicate"] is True  # whatever the status
    late = await runs.signal_raw(attempt["taskId"], "n", 1, "late")
    assert (late.status_code, late.json()["code"]) == (409, "TASK_FINISHED")
    assert (await runs.signal_raw("00000000-0000-7000-8000-000000000000", "n")).status_code == 404


async def test_no_more_than_a_thousand_signals_are_kept(play: Play, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    from interlock_core import waits

    monkeypatch.setattr(waits, "MOST_SIGNALS", 2)
    attempt = await play.run()
    for n in range(2):
        await runs.signal(attempt["taskId"], "n", n, f"key-{n}")
    refusal = await runs.signal_raw(attempt["taskId"], "n", 2, "key-2")
    assert (refusal.status_code, refusal.json()["code"]) == (422, "LIMIT_EXCEEDED")
    await runs.suspend(attempt, "w", signal="n")
    await runs.signal(attempt["taskId"], "n", 2, "key-2")


@pytest.mark.parametrize("early", [True, False])
async def test_a_signal_in_time_wins_and_a_late_one_is_kept_though_nobody_looked(
    play: Play, runs: Runs, clock: Clock, early: bool
) -> None:
    attempt = await play.run()
    await runs.suspend(attempt, "w", signal="other", afterSeconds=100)
    await runs.signal(attempt["taskId"], "other", "in time") if early else None
    clock.advance(101)
    if not early:
        assert (await runs.signal(attempt["taskId"], "other", "late"))["taskStatus"] == "queued"
    again = await runs.again()
    assert again["steps"][0]["output"] == ({"signal": "in time"} if early else {"timedOut": True})
    if not early:
        assert (await runs.suspend(again, "next", signal="other"))["taskStatus"] == "queued"
        assert (await runs.again())["steps"][1]["output"] == {"signal": "late"}


async def test_children_are_submitted_once_and_their_results_come_back(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    ids = [await runs.child(attempt, name) for name in ("a", "b", "c")]
    assert (await runs.child_raw(attempt, "a")).json() == {"taskId": ids[0], "duplicate": True}
    assert (await runs.suspend(attempt, "all", children=["c", "a", "b"]))["taskStatus"] == "waiting"
    assert await wait_reason(play, attempt["taskId"]) == "children"
    await runs.end_child(result={"n": 1.50})
    await runs.end_child("failed", error={"code": "BAD", "message": "m"})
    assert (await play.get(attempt["taskId"]))["status"] == "waiting"
    await play.cancel(ids[2])
    again = await runs.again()
    ends = again["steps"][3]["output"]["children"]
    assert [(e["name"], e["taskId"], e["status"]) for e in ends] == [
        ("c", ids[2], "cancelled"),
        ("a", ids[0], "succeeded"),
        ("b", ids[1], "failed"),
    ]
    assert (ends[1]["result"], ends[2]["failure"]["code"]) == ({"n": 1.50}, "BAD")
    child = await play.get(ids[0])
    assert (child["parentId"], child["effectScope"]) == (attempt["taskId"], ids[0])
    listed = (await play.http.producer.get("/v1/tasks", params={"parentId": attempt["taskId"]})).json()["items"]
    assert {item["id"] for item in listed} == set(ids)


async def test_children_that_ended_before_the_wait_end_it_at_once(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    await runs.child(attempt, "a")
    await runs.end_child(result=1)
    assert (await runs.suspend(attempt, "w", children=["a"]))["taskStatus"] == "queued"


async def test_an_unknown_child_ends_no_wait_until_it_is_resolved(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    child = await runs.child(attempt, "a")
    await runs.suspend(attempt, "w", children=["a"])
    held = await runs.again(type="demo/child")
    await play.complete(held, "unknown", error={"code": "LOST", "message": "m"})
    assert (await play.get(attempt["taskId"]))["status"] == "waiting"
    await play.resolve(child, "succeeded", held["attemptId"], result="paid")
    assert (await runs.again())["steps"][1]["output"]["children"][0]["result"] == "paid"


async def test_the_time_limit_of_children_counts_also_where_nobody_looked(play: Play, runs: Runs, clock: Clock) -> None:
    attempt = await play.run()
    await runs.child(attempt, "a")
    await runs.suspend(attempt, "w", children=["a"], afterSeconds=50)
    clock.advance(51)
    await runs.end_child(result=1)
    assert (await runs.again())["steps"][1]["output"] == {"timedOut": True}


@pytest.mark.slow
async def test_two_hundred_results_arrive_by_pages(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    names = [f"c{n}" for n in range(200)]
    for name in names:
        await runs.child(attempt, name)
    await runs.suspend(attempt, "all", children=names)
    while held := await play.claim(type="demo/child", slots=100):
        for one in held:
            await play.complete(one, result={"of": one["input"]["of"], "pad": "x" * 20_000})
    again = await runs.again()
    wait = again["steps"][-1] if again["steps"][-1]["kind"] == "wait" else None
    assert wait is not None
    assert [sorted(end) for end in wait["output"]["children"][:2]] == [
        ["name", "status", "taskId"]
    ] * 2  # too much for one answer
    path = f"/v1/tasks/{again['taskId']}/attempts/{again['attemptId']}/children"
    lease = {"X-Fence": str(again["fence"]), "X-Lease-Token": again["leaseToken"]}
    found: dict[str, Any] = {}
    cursor: str | None = None
    while cursor or not found:
        answer = (
            await play.http.worker.get(path, params={"limit": 200} | ({"cursor": cursor} if cursor else {}), headers=lease)
        ).json()
        found |= {child["name"]: child["result"]["of"] for child in answer["items"]}
        cursor = answer["nextCursor"]
    assert found == {name: name for name in names}


async def test_a_wait_for_nobody_is_refused_and_the_attempt_goes_on(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    assert refused(await runs.suspend(attempt, "w", children=["nobody"])) == "INVALID_REQUEST"
    assert refused(await play.complete(attempt, "suspended")) == "INVALID_REQUEST"
    assert refused(await play.complete(attempt, "suspended", wait={"name": "w"})) == "INVALID_REQUEST"
    assert refused(await play.complete(attempt, "succeeded", wait={"name": "w", "afterSeconds": 1})) == "INVALID_REQUEST"
    assert (await play.complete(attempt))["taskStatus"] == "succeeded"


async def test_cancelling_a_parent_asks_its_children_but_not_the_detached(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    queued, detached = await runs.child(attempt, "a"), await runs.child(attempt, "d", detached=True, priority=-1)
    held = await runs.again(type="demo/child")
    assert held["taskId"] == queued
    grandchild = await runs.child(held, "g", type="demo/grandchild")
    running = await runs.child(attempt, "r", priority=5)
    other = await runs.again(type="demo/child")
    assert other["taskId"] == running
    await runs.suspend(held, "w", children=["g"])
    await runs.suspend(attempt, "w", children=["a", "r"])
    await play.cancel(attempt["taskId"])
    states = {name: (await play.get(task))["status"] for name, task in
              {"a": queued, "d": detached, "g": grandchild, "r": running}.items()}  # fmt: skip
    assert states == {"a": "cancelled", "d": "queued", "g": "cancelled", "r": "running"}
    assert (await play.heartbeat(other))["stop"] == "cancel"
    assert (await play.complete(other, "cancelled"))["taskStatus"] == "cancelled"


async def test_a_suspended_handler_that_was_to_cancel_is_cancelled(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    await play.cancel(attempt["taskId"])
    assert (await runs.suspend(attempt, "w", afterSeconds=5))["taskStatus"] == "cancelled"


async def test_a_waiting_task_is_cancelled_at_once(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    await runs.suspend(attempt, "w", signal="never")
    assert (await play.cancel(attempt["taskId"]))["status"] == "cancelled"
    assert refused(await runs.suspend(attempt, "other", afterSeconds=1)) == "STALE_ATTEMPT"


async def test_the_101st_suspension_without_a_new_step_is_counted(play: Play, runs: Runs, database: Any) -> None:
    attempt = await play.run(retry={"maxAttempts": 1})
    await runs.signal(attempt["taskId"], "s", 1)
    await runs.suspend(attempt, "w", signal="s")
    for _ in range(100):
        attempt = await runs.again()
        assert (await runs.suspend(attempt, "w", signal="s"))["taskStatus"] == "queued"  # stored already: nothing new
    attempt = await runs.again()
    assert (await runs.suspend(attempt, "w", signal="s"))["taskStatus"] == "failed"
    failure = (await play.get(attempt["taskId"]))["failure"]
    assert (failure["code"], failure["details"]["last"]["code"]) == ("ATTEMPTS_EXHAUSTED", "SUSPENDED")


class TestRerun:
    """From a step: what was stored before its first event is kept."""

    async def finished(self, play: Play, runs: Runs) -> str:
        attempt = await play.run()
        await runs.step(attempt, "a", output=1)
        await runs.child(attempt, "kid")
        await runs.open(attempt, "b")
        await runs.step(attempt, "c", output=3)
        await runs.step(attempt, "b", output=2)  # first event before c's, outcome after
        await runs.end_child(result="k")
        await runs.suspend(attempt, "w", children=["kid"])
        await play.complete(await runs.again())
        task_id: str = attempt["taskId"]
        return task_id

    @pytest.mark.parametrize(
        ("step", "kept"),
        [("a", []), ("kid", ["a"]), ("b", ["a", "kid"]), ("c", ["a", "kid"]), ("w", ["a", "kid", "c", "b"])],
    )
    async def test_it_keeps_exactly_what_was_there_before(self, play: Play, runs: Runs, step: str, kept: list[str]) -> None:
        task_id = await self.finished(play, runs)
        answer = await play.http.producer.post(f"/v1/tasks/{task_id}/rerun", json={"fromStep": step})
        assert answer.status_code == 201, answer.text
        again = await runs.again()
        assert (again["taskId"], again["rerunOf"]) == (answer.json()["id"], task_id)
        assert [s["name"] for s in again["steps"]] == kept
        await play.kinds(again["taskId"])
        if "kid" in kept:
            path = f"/v1/tasks/{again['taskId']}/children"
            assert (await play.http.producer.get(path)).json()["items"][0]["result"] == "k"
            assert (await runs.suspend(again, "w2", children=["kid"]))["taskStatus"] == "queued"

    async def test_no_such_step_and_an_unsettled_child_are_told(self, play: Play, runs: Runs) -> None:
        task_id = await self.finished(play, runs)
        answer = await play.http.producer.post(f"/v1/tasks/{task_id}/rerun", json={"fromStep": "nobody"})
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (400, "/fromStep")
        attempt = await play.run()
        await runs.child(attempt, "slow")
        await runs.step(attempt, "later", output=1)
        await play.complete(attempt)
        answer = await play.http.producer.post(f"/v1/tasks/{attempt['taskId']}/rerun", json={"fromStep": "later"})
        assert answer.json()["code"] == "TASK_NOT_FINISHED"
        assert "'slow'" in answer.json()["detail"]


async def test_a_child_is_kept_while_its_parent_or_a_rerun_of_it_may_read_it(play: Play, runs: Runs, clock: Clock) -> None:
    from interlock_core import leases
    from interlock_core.settings import Settings

    database, settings = play.http._app.state.database, Settings()
    attempt = await play.run()
    child = await runs.child(attempt, "kid")
    await runs.end_child(result="k")
    await runs.step(attempt, "last", output=1)
    clock.advance(8 * 86_400)
    await leases.retain(database, settings)
    assert (await play.get(child))["status"] == "succeeded"
    await play.complete(attempt)
    rerun = (await play.http.producer.post(f"/v1/tasks/{attempt['taskId']}/rerun", json={"fromStep": "last"})).json()
    clock.advance(8 * 86_400)
    await leases.retain(database, settings)
    assert (await play.get(child))["status"] == "succeeded"
    await play.cancel(rerun["id"])
    clock.advance(8 * 86_400)
    await leases.retain(database, settings)
    assert (await play.http.producer.get(f"/v1/tasks/{child}")).status_code == 404
    assert await database_rows(database) == (0, 0)


async def database_rows(database: Any) -> tuple[int, int]:
    """(steps, signals) that are left."""
    async with database.connection() as connection:
        row = await (
            await connection.execute("SELECT (SELECT count(*) FROM steps) AS steps, (SELECT count(*) FROM signals) AS signals")
        ).fetchone()
    return int(row[0]), int(row[1])
