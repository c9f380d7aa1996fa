"""Schedules over HTTP: putting, reading, pausing, triggering, and what fires (protocol.md §8)."""

from __future__ import annotations

from support.timetable import Timetable


async def test_a_schedule_fires_a_task_at_its_instant(timetable: Timetable) -> None:
    answer = await timetable.put_raw(cron="0 12 * * *", timeZone="Europe/Berlin", input={"n": 1}, tags={"a": "b"}, priority=7)
    assert answer.status_code == 201
    schedule = answer.json()
    assert schedule["nextDueAt"] == "2026-03-02T11:00:00.000000Z"
    assert len(schedule["nextFirings"]) == 5
    assert (await timetable.fire())["fired"] == 0
    assert (await timetable.tick(1800))["fired"] == 1
    assert (await timetable.fire())["fired"] == 0
    [task] = await timetable.tasks()
    assert (task["dueAt"], task["scheduleName"], task["scheduleOwner"]) == ("2026-03-02T11:00:00.000000Z", "nightly", None)
    assert (task["priority"], task["tags"], task["status"]) == (7, {"a": "b"}, "queued")
    after = await timetable.get()
    assert after["nextDueAt"] == "2026-03-03T11:00:00.000000Z"
    assert after["lastFiring"]["taskId"] == task["id"]
    assert (after["fired"], after["missed"], after["input"]) == (1, 0, {"n": 1})
