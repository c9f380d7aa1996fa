"""What fires, and what does not: overlap, catch-up, triggers, bad schedules (protocol.md §8)."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg

from support.play import Play
from support.timetable import Timetable, read

Json = dict[str, Any]
HOUR = 3600.0


async def outcomes(timetable: Timetable) -> list[tuple[str, str]]:
    """(due instant to the minute, outcome) of every firing, in order."""
    async with timetable.http._app.state.database.connection() as connection:
        cursor = await connection.execute("SELECT rfc3339(due_at), outcome FROM firings ORDER BY due_at, owner, name")
        return [(row[0][11:16], row[1]) for row in await cursor.fetchall()]


async def test_overlap_allow_lets_them_run_beside_each_other(timetable: Timetable, play: Play) -> None:
    await timetable.put(everySeconds=60)
    await timetable.tick(60)
    await timetable.tick(60)
    assert len(await play.claim(slots=5)) == 2


async def test_overlap_skip_leaves_out_an_instant_while_an_earlier_task_has_not_ended(timetable: Timetable, play: Play) -> None:
    await timetable.put(everySeconds=60, overlap="skip", leaseSeconds=3600)
    assert (await timetable.tick(60))["fired"] == 1
    assert (await timetable.tick(60))["skipped"] == 1  # still queued
    [attempt] = await play.claim()
    assert (await timetable.tick(60))["skipped"] == 1  # running
    await play.complete(attempt, "unknown", error={"code": "X", "message": "x"})
    assert (await timetable.tick(60))["skipped"] == 1  # unknown: it has not ended
    await play.resolve(attempt["taskId"], "failed", attempt["attemptId"])
    assert (await timetable.tick(60))["fired"] == 1
    assert await timetable.due() == ["2026-03-02T10:31", "2026-03-02T10:35"]
    schedule = await timetable.get()
    assert (schedule["fired"], schedule["skipped"]) == (2, 3)
    assert await outcomes(timetable) == [(f"10:3{n}", o) for n, o in enumerate(["fired", *["skipped"] * 3, "fired"], 1)]


async def test_cancel_previous_cancels_what_nobody_runs_at_once(timetable: Timetable, play: Play) -> None:
    await timetable.put(everySeconds=60, overlap="cancel-previous")
    await timetable.tick(60)
    await timetable.tick(60)
    first, second = await timetable.tasks()
    assert (first["status"], second["status"]) == ("cancelled", "queued")
    assert [attempt["taskId"] for attempt in await play.claim(slots=5)] == [second["id"]]


async def test_cancel_previous_waits_until_the_old_one_has_ended(timetable: Timetable, play: Play) -> None:
    await timetable.put(everySeconds=60, overlap="cancel-previous", leaseSeconds=3600)
    await timetable.tick(60)
    [attempt] = await play.claim()
    await timetable.tick(60)
    first, second = await timetable.tasks()
    assert (first["status"], first["cancelRequested"]) == ("running", True)
    assert second["waiting"]["reason"] == "previous-running"
    assert await play.claim(slots=5) == []
    counted = read(await timetable.http.operator.get("/v1/task-types/demo/hello/1"))
    assert (counted["queued"], counted["running"], counted["oldestDueAgeSeconds"]) == (1, 1, None)
    assert read(await timetable.http.operator.get("/v1/doctor"))["queueDepth"] == 1
    await timetable.tick(60)  # the one that waited gives way to the next
    first, second, third = await timetable.tasks()
    assert (second["status"], third["waiting"]["reason"]) == ("cancelled", "previous-running")
    assert (await play.heartbeat(attempt))["stop"] == "cancel"
    assert (await play.complete(attempt, "cancelled"))["taskStatus"] == "cancelled"
    assert [claimed["taskId"] for claimed in await play.claim(slots=5)] == [third["id"]]


async def test_every_end_lets_the_next_one_in(timetable: Timetable, play: Play) -> None:
    """A failure, a release, a lapsed lease, a cancel, a resolve, a start deadline: each is followed by the next task."""
    http = timetable.http

    async def end_by(how: str, attempt: Json) -> None:
        if how == "failed":
            await play.complete(attempt, "failed", error={"code": "X", "message": "x"})
        elif how == "released":  # its cancel was requested: a release ends it
            assert (await play.release(attempt))["taskStatus"] == "cancelled"
        elif how == "lapsed":
            timetable.clock.advance(100)
            await play.sweep()
        elif how == "resolved":
            await play.complete(attempt, "unknown", error={"code": "X", "message": "x"})
            assert await play.claim(type=f"demo/{how}") == []  # unknown is not ended
            await play.resolve(attempt["taskId"], "succeeded", attempt["attemptId"], result=1)

    for how in ("failed", "released", "lapsed", "resolved"):
        await timetable.put(how, everySeconds=60, overlap="cancel-previous", type=f"demo/{how}", leaseSeconds=90)
        await timetable.tick(60)
        [attempt] = await play.claim(type=f"demo/{how}")
        await timetable.tick(60)
        assert (await timetable.tasks(how))[-1]["waiting"]["reason"] == "previous-running"
        await end_by(how, attempt)
        [after] = await play.claim(type=f"demo/{how}")
        assert after["taskId"] == (await timetable.tasks(how))[-1]["id"], how
        await http.producer.delete(f"/v1/schedules/{how}")


async def test_a_waiting_task_with_a_concurrency_key_comes_to_its_gate(timetable: Timetable, play: Play) -> None:
    await timetable.put(everySeconds=60, overlap="cancel-previous", concurrency={"key": "K", "limit": 1})
    await timetable.tick(60)
    [attempt] = await play.claim()
    await timetable.tick(60)
    other = await play.submit(type="demo/other", concurrency={"key": "K", "limit": 1}, priority=100)
    await play.complete(attempt)
    [holder] = await play.claim(type="demo/other")
    assert holder["taskId"] == other["id"]
    assert (await timetable.tasks())[-1]["waiting"]["reason"] == "concurrency-limit"
    await play.complete(holder)
    assert len(await play.claim()) == 1


async def test_fired_tasks_of_a_key_run_one_by_one(timetable: Timetable, play: Play) -> None:
    await timetable.put(everySeconds=60, concurrency={"key": "K", "limit": 1})
    await timetable.tick(60)
    await timetable.tick(60)
    [attempt] = await play.claim(slots=5)
    assert await play.claim(slots=5) == []
    await play.complete(attempt)
    assert len(await play.claim(slots=5)) == 1


async def test_after_downtime_the_last_one_is_caught_up_and_the_others_are_counted(timetable: Timetable) -> None:
    await timetable.put(cron="* * * * *")
    await timetable.tick(60)
    done = await timetable.tick(6 * HOUR)
    assert (done["fired"], done["missed"]) == (1, 0)
    schedule = await timetable.get()
    assert (schedule["fired"], schedule["missed"], schedule["lastFiring"]["missed"]) == (2, 359, 359)
    assert schedule["nextDueAt"] == "2026-03-02T16:32:00.000000Z"
    assert await timetable.due() == ["2026-03-02T10:31", "2026-03-02T16:31"]
    [_, task] = await timetable.tasks()
    events = read(await timetable.http.producer.get(f"/v1/tasks/{task['id']}/journal"))["items"]
    assert events[0]["data"]["missed"] == 359


async def test_catch_up_none_goes_on_with_the_next_instant(timetable: Timetable) -> None:
    await timetable.put(cron="* * * * *", catchUp="none")
    await timetable.tick(60)
    done = await timetable.tick(6 * HOUR)
    assert (done["fired"], done["missed"]) == (0, 1)
    schedule = await timetable.get()
    assert (schedule["fired"], schedule["missed"], schedule["nextDueAt"]) == (1, 360, "2026-03-02T16:32:00.000000Z")
    assert (schedule["lastFiring"]["outcome"], schedule["lastFiring"]["missed"]) == ("missed", 359)
    assert (await timetable.tick(60))["fired"] == 1


async def test_catch_up_all_fires_each_up_to_a_thousand(timetable: Timetable) -> None:
    await timetable.put("hours", cron="0 * * * *", catchUp="all")
    await timetable.put("minutes", cron="* * * * *", catchUp="all")
    await timetable.tick(60)
    done = await timetable.tick(20 * HOUR)
    assert done["fired"] == 1000 + 20
    assert len(await timetable.due("hours")) == 20
    schedule = await timetable.get("minutes")
    assert (schedule["fired"], schedule["missed"]) == (1001, 200)
    assert (await timetable.fire())["fired"] == 0


async def test_what_is_merely_late_is_fired_each(timetable: Timetable) -> None:
    """The sweep comes every minute: what came due between two of them was not missed, whatever the policy is."""
    for policy in ("none", "last", "all"):
        await timetable.put(policy, everySeconds=20, catchUp=policy)
    await timetable.fire()
    assert (await timetable.tick(60))["fired"] == 9
    assert (await timetable.tick(60))["fired"] == 9
    assert (await timetable.get("none"))["missed"] == 0


async def test_catching_up_obeys_overlap(timetable: Timetable) -> None:
    await timetable.put("skip", everySeconds=60, catchUp="all", overlap="skip")
    await timetable.put("cancel", everySeconds=60, catchUp="all", overlap="cancel-previous")
    await timetable.tick(60)
    done = await timetable.tick(HOUR)
    assert (done["fired"], done["skipped"]) == (1, 60 + 59)
    assert [task["status"] for task in await timetable.tasks("skip")] == ["queued"]
    assert [task["status"] for task in await timetable.tasks("cancel")] == ["cancelled", "queued"]


async def test_a_clock_that_goes_back_fires_nothing_twice(timetable: Timetable) -> None:
    await timetable.put(everySeconds=60)
    await timetable.tick(60)
    await timetable.tick(60)
    timetable.clock.advance(-600)
    await timetable.http.producer.delete("/v1/schedules/nightly")
    await timetable.put(everySeconds=60)  # made again at another time: other instants, the old ones stay dealt with
    for _ in range(13):
        await timetable.tick(60)
    due = await timetable.due()
    assert len(due) == len(set(due)) == 13
    assert due[-1] == "2026-03-02T10:35"


async def test_requiring_a_worker_refuses_the_firing_and_says_so(timetable: Timetable, play: Play) -> None:
    await timetable.put("registered", everySeconds=60, requireWorker="registered")
    await timetable.put("online", everySeconds=60, requireWorker="online")
    await timetable.tick(60)
    assert [(await timetable.get(name))["lastFiring"]["outcome"] for name in ("registered", "online")] == ["refused"] * 2
    await timetable.put("one-by-one", everySeconds=10, requireWorker="registered", overlap="skip")
    await timetable.tick(30)  # three instants at once: none of them stands behind another that never came
    found = await timetable.get("one-by-one")
    assert (found["lastFiring"]["outcome"], found["skipped"]) == ("refused", 0)
    await timetable.http.producer.delete("/v1/schedules/one-by-one")
    handlers = [{"type": "demo/hello", "schemaVersion": 1, "effectSafety": "pure"}]
    timetable.clock.advance(30)
    await timetable.http.worker.put("/v1/workers/w", json={"instanceId": "i", "handlers": handlers})
    assert (await timetable.tick(30))["fired"] == 2
    timetable.clock.advance(HOUR)
    await timetable.fire()
    assert [(await timetable.get(name))["lastFiring"]["outcome"] for name in ("registered", "online")] == ["fired", "refused"]


async def test_the_start_deadline_counts_from_the_due_instant(timetable: Timetable, play: Play) -> None:
    await timetable.put(cron="0 11 * * *", startDeadlineSeconds=600)
    await timetable.fire()
    await timetable.tick(2 * HOUR)
    await play.sweep()
    [task] = await timetable.tasks()
    assert (task["status"], task["failure"]["code"]) == ("failed", "START_DEADLINE_EXCEEDED")


async def test_a_trigger_makes_one_task_per_key_and_moves_no_instant(timetable: Timetable) -> None:
    before = await timetable.put(cron="0 12 * * *", input={"x": 1})
    await timetable.act("pause")
    answers = await asyncio.gather(
        *(timetable.http.producer.post("/v1/schedules/nightly/trigger", json={"idempotencyKey": "once"}) for _ in range(5))
    )
    assert sorted(answer.status_code for answer in answers) == [200] * 4 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    first = next(answer.json() for answer in answers if answer.status_code == 201)
    assert (first["scheduleName"], first["input"], first["idempotencyKey"]) == ("nightly", {"x": 1}, "once")
    assert (first["duplicate"], first["deduplicated"]) == (False, False)
    assert all(a.json()["duplicate"] and a.json()["deduplicated"] for a in answers if a.status_code == 200)
    assert (await timetable.act("trigger"))["id"] != (await timetable.act("trigger"))["id"]
    after = await timetable.get()
    assert (after["nextDueAt"], after["fired"], after["lastFiring"]) == (before["nextDueAt"], 0, None)
    await timetable.put("other", cron="0 12 * * *")
    other = await timetable.http.producer.post("/v1/schedules/other/trigger", json={"idempotencyKey": "once"})
    assert (other.status_code, other.json()["code"]) == (409, "IDEMPOTENCY_CONFLICT")


async def test_a_trigger_waits_for_what_runs_unless_overlap_is_allowed(timetable: Timetable, play: Play) -> None:
    await timetable.put(cron="0 12 * * *", overlap="skip", leaseSeconds=3600)
    first = await timetable.act("trigger")
    [attempt] = await play.claim()
    second, third = await timetable.act("trigger"), await timetable.act("trigger")
    assert (second["waiting"]["reason"], third["waiting"]["reason"]) == ("previous-running", "previous-running")
    assert (await play.get(first["id"]))["cancelRequested"] is False
    await play.complete(attempt)
    [attempt] = await play.claim(slots=5)
    assert attempt["taskId"] == second["id"]
    await play.complete(attempt)
    assert [a["taskId"] for a in await play.claim(slots=5)] == [third["id"]]


async def test_a_bad_schedule_is_set_aside_shown_and_looked_at_again(timetable: Timetable, database_url: str) -> None:
    await timetable.put("bad", everySeconds=60)
    await timetable.put("good", everySeconds=60)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("UPDATE schedules SET options = '[' WHERE name = 'bad'")
    done = await timetable.tick(60)
    assert (done["fired"], done["broken"]) == (1, 1)
    bad = await timetable.get("bad")
    assert (bad["nextDueAt"], bad["nextFirings"]) == (None, [])
    assert bad["error"]["at"] == "2026-03-02T10:31:00.000000Z"
    doctor = read(await timetable.http.operator.get("/v1/doctor"))
    assert [(s["owner"], s["name"]) for s in doctor["brokenSchedules"]] == [(None, "bad")]
    assert (await timetable.tick(30))["broken"] == 0
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "UPDATE schedules SET options = (SELECT options FROM schedules WHERE name = 'good') WHERE name = 'bad'"
        )
    assert (await timetable.tick(60))["fired"] == 2
    assert (await timetable.get("bad"))["error"] is None
    assert read(await timetable.http.operator.get("/v1/doctor"))["brokenSchedules"] == []


async def test_putting_a_bad_schedule_again_heals_it(timetable: Timetable, database_url: str) -> None:
    await timetable.put(cron="0 12 * * *", timeZone="Europe/Berlin")
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("UPDATE schedules SET time_zone = 'Mars/Base'")
    assert (await timetable.fire())["broken"] == 1  # before anything is due
    healed = await timetable.put(cron="0 12 * * *", timeZone="Europe/Berlin")
    assert (healed["error"], healed["nextDueAt"]) == (None, "2026-03-02T11:00:00.000000Z")


async def test_firings_are_forgotten_with_settled_tasks(timetable: Timetable) -> None:
    from interlock_core import firings
    from interlock_core.settings import Settings

    await timetable.put(everySeconds=60)
    await timetable.tick(60)
    database = timetable.http._app.state.database
    assert await firings.forget(database, Settings()) == 0
    timetable.clock.advance(8 * 86_400)
    assert await firings.forget(database, Settings()) == 1
    assert (await timetable.get())["lastFiring"] is None


async def test_a_task_that_waits_does_not_wait_for_what_came_after_it(timetable: Timetable, play: Play) -> None:
    """The schedule allows overlap by now: what it fires since would keep the one that waits out for good."""
    await timetable.put(everySeconds=60, overlap="cancel-previous", leaseSeconds=3600)
    await timetable.tick(60)
    [old] = await play.claim()
    await timetable.tick(60)
    waits = (await timetable.tasks())[-1]
    assert waits["waiting"]["reason"] == "previous-running"
    await timetable.put(everySeconds=60, leaseSeconds=3600)
    await timetable.tick(60)
    [later] = await play.claim(slots=5)
    await play.complete(old)
    assert (await play.get(later["taskId"]))["status"] == "running"
    assert [claimed["taskId"] for claimed in await play.claim(slots=5)] == [waits["id"]]


async def test_a_task_that_waits_asks_only_those_before_it_to_end(timetable: Timetable, play: Play) -> None:
    await timetable.put(everySeconds=60, overlap="cancel-previous", leaseSeconds=3600)
    await timetable.tick(60)
    [old] = await play.claim()
    await timetable.tick(60)
    await timetable.put(everySeconds=60, leaseSeconds=3600)
    await timetable.tick(60)
    [later] = await play.claim(slots=5)
    await timetable.put(everySeconds=60, overlap="cancel-previous", leaseSeconds=3600)
    await timetable.fire()
    asked = [(await play.get(attempt["taskId"]))["cancelRequested"] for attempt in (old, later)]
    assert asked == [True, False]
