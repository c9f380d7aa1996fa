"""The faults of other schedulers, with a moved clock: what is shown beforehand, what fires, what the journal says (B70-B75)."""

from __future__ import annotations

import time
from typing import Any

import psycopg
import pytest

from support.timetable import Timetable, read

Json = dict[str, Any]


async def seen(timetable: Timetable, name: str) -> list[str]:
    """The due instants that fired, as the tasks and as their journals tell them: the same ones."""
    tasks = await timetable.tasks(name)
    told = []
    for task in tasks:
        events = read(await timetable.http.producer.get(f"/v1/tasks/{task['id']}/journal"))["items"]
        told.append(events[0]["data"]["dueAt"])
    assert told == [task["dueAt"] for task in tasks]
    return [instant[5:16] for instant in told]


async def run_through(timetable: Timetable, start: str, seconds: float, step: float, **fields: Any) -> list[str]:
    """Puts a schedule at `start`, lets time pass in steps, firing at each; what fired is what was shown beforehand."""
    timetable.clock.hold_at(start)
    shown = [instant[5:16] for instant in (await timetable.put("case", **fields))["nextFirings"]]
    await timetable.fire()
    for _ in range(int(seconds / step)):
        await timetable.tick(step)
    fired = await seen(timetable, "case")
    assert fired[: len(shown)] == shown[: len(fired)]
    await timetable.http.producer.delete("/v1/schedules/case")
    return fired


async def test_b70_an_hour_that_comes_twice_fires_each_half_hour_once(timetable: Timetable) -> None:
    rule = {"cron": "30 * * * *", "timeZone": "Europe/Helsinki"}
    assert await run_through(timetable, "2026-10-25T00:00:00Z", 3 * 3600, 600, **rule) == [
        "10-25T00:30",
        "10-25T01:30",
        "10-25T02:30",
    ]


async def test_b70_every_minute_goes_on_through_the_second_of_two_equal_hours(timetable: Timetable) -> None:
    rule = {"cron": "* * * * *", "timeZone": "America/New_York"}
    fired = await run_through(timetable, "2026-11-01T06:30:15Z", 180, 60, **rule)
    assert fired == ["11-01T06:31", "11-01T06:32", "11-01T06:33"]


@pytest.mark.parametrize(
    ("cron", "zone", "start", "wanted"),
    [
        ("30 1 * * *", "America/New_York", "2026-11-01T04:00:00Z", ["11-01T05:30", "11-02T06:30"]),  # twice: the first time
        ("30 2 * * *", "America/New_York", "2026-03-08T05:00:00Z", ["03-08T07:00", "03-09T06:30"]),  # never: after the gap
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00:00Z", ["10-03T15:30", "10-04T15:15"]),
        ("0 0 * * *", "America/Havana", "2026-03-08T00:00:00Z", ["03-08T05:00", "03-09T04:00"]),
        ("0 0 * * *", "Asia/Beirut", "2026-03-28T12:00:00Z", ["03-28T22:00", "03-29T21:00"]),
    ],
)
async def test_b70_a_daily_time_fires_once_a_day_whatever_the_clock_does(
    timetable: Timetable, cron: str, zone: str, start: str, wanted: list[str]
) -> None:
    assert await run_through(timetable, start, 36 * 3600, 150 * 12, cron=cron, timeZone=zone) == wanted


async def test_b72_a_bad_zone_is_refused(timetable: Timetable) -> None:
    for zone in ("America/New_Yrok", "UTC+3", "", "EST5EDT/../x", "x" * 300):
        answer = await timetable.put_raw(cron="* * * * *", timeZone=zone)
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST"), zone
        assert answer.json()["errors"][0]["pointer"] == "/timeZone"


async def test_b72_bad_rows_stop_no_good_one_and_are_shown(timetable: Timetable, database_url: str) -> None:
    bad = {
        "zone-misspelt": "time_zone = 'America/New_Yrok'",
        "zone-gone": "time_zone = 'Europe/Atlantis'",
        "broken": "cron = '* * *'",
        "never": "cron = '0 0 31 4 *'",
    }
    for name in ("good-1", *bad, "good-2", "good-3"):
        await timetable.put(name, cron="* * * * *", timeZone="Europe/Berlin")
    with psycopg.connect(database_url, autocommit=True) as connection:
        for name, change in bad.items():
            connection.execute(f"UPDATE schedules SET {change} WHERE name = %s", [name])
    for _ in range(3):
        await timetable.tick(60)
    for name in ("good-1", "good-2", "good-3"):
        assert await timetable.due(name) == ["2026-03-02T10:31", "2026-03-02T10:32", "2026-03-02T10:33"]
    doctor = read(await timetable.http.operator.get("/v1/doctor"))
    assert {found["name"] for found in doctor["brokenSchedules"]} == set(bad)
    for name in bad:
        shown = await timetable.get(name)
        assert (shown["nextFirings"], shown["fired"]) == ([], 0)
        assert shown["error"]["message"]
    listed = read(await timetable.http.producer.get("/v1/schedules"))["items"]
    assert [item["name"] for item in listed if item["error"]] == sorted(bad)


async def test_b73_impossible_dates_are_refused_at_once(timetable: Timetable) -> None:
    await timetable.put(cron="* * * * *")
    for cron in ("0 0 30 2 *", "0 0 31 4 *", "*/0 * * * *", "60 * * * *", "* * * *", "* * * * * * *"):
        began = time.perf_counter()
        answer = await timetable.put_raw(cron=cron)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (400, "/cron"), cron
        assert time.perf_counter() - began < 0.5  # of a busy machine; 0.05 of the rule by itself in test_instants


async def test_b73_leap_days_come_over_the_century_and_stop_nothing(timetable: Timetable) -> None:
    rule = {"cron": "0 0 29 2 *", "timeZone": "UTC"}
    assert (await timetable.put("leap", **rule))["nextDueAt"] == "2028-02-29T00:00:00.000000Z"
    timetable.clock.hold_at("2096-03-01T00:00:00Z")
    assert (await timetable.put("late", **rule))["nextDueAt"] == "2104-02-29T00:00:00.000000Z"
    timetable.clock.hold_at("2028-02-29T11:59:30Z")
    others = {
        "daily": "0 12 * * *",
        "monthly": "0 12 29 * *",
        "yearly": "0 12 1 3 *",
        "weekly": "0 12 * * 2",
        "minutely": "* * * * *",
    }
    for name, cron in others.items():
        await timetable.put(name, cron=cron)
    await timetable.fire()
    await timetable.tick(60)
    assert [name for name in others if await timetable.due(name)] == ["daily", "monthly", "weekly", "minutely"]
    assert (await timetable.get("yearly"))["nextFirings"][0] == "2028-03-01T12:00:00.000000Z"
    assert (await timetable.get("leap"))["nextDueAt"] == "2032-02-29T00:00:00.000000Z"


async def test_b74_six_hours_off_are_one_run_and_the_rest_is_told(timetable: Timetable) -> None:
    await timetable.put("minutely", cron="* * * * *")
    await timetable.put("hourly", cron="15 * * * *")
    await timetable.put("soon", cron="31 16 * * *")
    await timetable.fire()
    await timetable.tick(6 * 3600)
    shown = await timetable.get("minutely")
    assert (shown["fired"], shown["missed"], shown["nextDueAt"]) == (1, 359, "2026-03-02T16:31:00.000000Z")
    assert await timetable.due("minutely") == ["2026-03-02T16:30"]
    assert (await timetable.due("hourly"), (await timetable.get("hourly"))["missed"]) == (["2026-03-02T16:15"], 5)
    await timetable.tick(60)
    assert await timetable.due("soon") == ["2026-03-02T16:31"]  # others are not delayed


async def test_b74_an_edit_and_a_resume_fire_nothing_of_the_past(timetable: Timetable) -> None:
    await timetable.put("edited", cron="* * * * *")
    await timetable.put("paused", cron="* * * * *")
    await timetable.act("pause", "paused")
    await timetable.fire()
    timetable.clock.advance(6 * 3600)
    edited = await timetable.put("edited", cron="*/5 * * * *")
    assert (edited["fired"], edited["missed"], edited["nextDueAt"]) == (1, 359, "2026-03-02T16:35:00.000000Z")
    resumed = await timetable.act("resume", "paused")
    assert (resumed["fired"], resumed["nextDueAt"]) == (0, "2026-03-02T16:31:00.000000Z")
    assert (await timetable.fire())["fired"] == 0


async def test_b75_zero_and_seven_are_sunday(timetable: Timetable) -> None:
    for cron in ("0 0 * * 0", "0 0 * * 7", "0 0 * * SUN"):
        shown = (await timetable.put("sunday", cron=cron))["nextFirings"]
        assert [instant[:10] for instant in shown] == ["2026-03-08", "2026-03-15", "2026-03-22", "2026-03-29", "2026-04-05"]
    assert (await timetable.put("sunday", cron="* * * * 7"))["nextDueAt"] == "2026-03-08T00:00:00.000000Z"


async def test_b75_day_fields_are_either_unless_one_starts_with_a_star(timetable: Timetable) -> None:
    day = 86_400
    fired = await run_through(timetable, "2025-12-31T12:00:00Z", 365 * day, 73 * day, cron="0 0 13 * 5", catchUp="all")
    assert len(fired) == 61
    assert fired[:4] == ["01-02T00:00", "01-09T00:00", "01-13T00:00", "01-16T00:00"]
    shown = (await timetable.put("both", cron="0 7 15 * */2"))["nextFirings"]
    assert [instant[:10] for instant in shown] == ["2027-04-15", "2027-05-15", "2027-06-15", "2027-07-15", "2027-08-15"]
