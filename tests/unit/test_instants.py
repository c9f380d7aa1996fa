"""When schedules are due, over zones that change at midnight, by half an hour, and by a whole day."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from itertools import pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock_core import instants
from interlock_core.instants import Every, NoRule, coming, cron, due


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def upcoming(expression: str, zone: str, start: str, count: int = 4) -> list[str]:
    return [instant.strftime("%m-%d %H:%M") for instant in coming(cron(expression, zone), at(start), count)]


# expression, zone, from, the next instants in UTC
FIXED = [
    # Berlin leaps over 02:00-03:00: due at the first instant after the gap, which is 03:00 local
    ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00Z", ["03-29 01:00", "03-30 00:30", "03-31 00:30", "04-01 00:30"]),
    ("0,30 2 * * *", "Europe/Berlin", "2026-03-28T12:00Z", ["03-29 01:00", "03-30 00:00", "03-30 00:30", "03-31 00:00"]),
    ("*/15 2-3 * * *", "Europe/Berlin", "2026-03-28T12:00Z", ["03-29 01:00", "03-29 01:15", "03-29 01:30", "03-29 01:45"]),
    ("30 2 * * *", "America/New_York", "2026-03-07T12:00Z", ["03-08 07:00", "03-09 06:30", "03-10 06:30", "03-11 06:30"]),
    # 02:30 comes twice in Berlin: the first time
    ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00Z", ["10-25 00:30", "10-26 01:30", "10-27 01:30", "10-28 01:30"]),
    ("*/20 2 * * *", "Europe/Berlin", "2026-10-24T12:00Z", ["10-25 00:00", "10-25 00:20", "10-25 00:40", "10-26 01:00"]),
    ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:30Z", ["10-26 01:30", "10-27 01:30", "10-28 01:30", "10-29 01:30"]),
    ("30 2 * * *", "Europe/Berlin", "2026-10-25T01:10Z", ["10-26 01:30", "10-27 01:30", "10-28 01:30", "10-29 01:30"]),
    ("30 1 * * *", "America/New_York", "2026-10-31T12:00Z", ["11-01 05:30", "11-02 06:30", "11-03 06:30", "11-04 06:30"]),
    # Lord Howe changes by half an hour: 02:00 to 02:30, and back from 02:00 to 01:30
    ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00Z", ["10-03 15:30", "10-04 15:15", "10-05 15:15", "10-06 15:15"]),
    ("45 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00Z", ["10-03 15:45", "10-04 15:45", "10-05 15:45", "10-06 15:45"]),
    ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T00:00Z", ["04-04 14:45", "04-05 15:15", "04-06 15:15", "04-07 15:15"]),
    # Cuba leaps from midnight to one o'clock and later repeats the first hour of a day
    ("0 0 * * *", "America/Havana", "2026-03-07T06:00Z", ["03-08 05:00", "03-09 04:00", "03-10 04:00", "03-11 04:00"]),
    ("30 0 * * *", "America/Havana", "2026-03-07T06:00Z", ["03-08 05:00", "03-09 04:30", "03-10 04:30", "03-11 04:30"]),
    ("30 0 * * *", "America/Havana", "2026-10-31T06:00Z", ["11-01 04:30", "11-02 05:30", "11-03 05:30", "11-04 05:30"]),
    # Beirut leaps over midnight too and repeats the last hour of the day before
    ("0 0 * * *", "Asia/Beirut", "2026-03-28T00:00Z", ["03-28 22:00", "03-29 21:00", "03-30 21:00", "03-31 21:00"]),
    ("30 23 * * *", "Asia/Beirut", "2026-10-24T00:00Z", ["10-24 20:30", "10-25 21:30", "10-26 21:30", "10-27 21:30"]),
    # Samoa had no 30 December 2011 at all
    ("0 9 * * *", "Pacific/Apia", "2011-12-29T00:00Z", ["12-29 19:00", "12-30 10:00", "12-30 19:00", "12-31 19:00"]),
    ("0 9 * * *", "Pacific/Apia", "2011-12-30T09:59Z", ["12-30 10:00", "12-30 19:00", "12-31 19:00", "01-01 19:00"]),
]


@pytest.mark.parametrize(("expression", "zone", "start", "wanted"), FIXED)
def test_fixed_hours_fire_once_per_local_time(expression: str, zone: str, start: str, wanted: list[str]) -> None:
    assert upcoming(expression, zone, start) == wanted


ELAPSED = [
    ("30 * * * *", "Europe/Berlin", "2026-03-29T00:00Z", ["03-29 00:30", "03-29 01:30", "03-29 02:30", "03-29 03:30"]),
    ("30 * * * *", "Europe/Berlin", "2026-10-25T00:00Z", ["10-25 00:30", "10-25 01:30", "10-25 02:30", "10-25 03:30"]),
    # of every second hour, the one that is leapt over does not come, and the one that comes twice fires twice
    ("0 */2 * * *", "Europe/Berlin", "2026-03-28T22:30Z", ["03-28 23:00", "03-29 02:00", "03-29 04:00", "03-29 06:00"]),
    ("0 */2 * * *", "Europe/Berlin", "2026-10-24T21:30Z", ["10-24 22:00", "10-25 00:00", "10-25 01:00", "10-25 03:00"]),
    ("*/30 * * * *", "Europe/Berlin", "2026-03-29T00:10Z", ["03-29 00:30", "03-29 01:00", "03-29 01:30", "03-29 02:00"]),
    ("15 * * * *", "Australia/Lord_Howe", "2026-10-03T14:00Z", ["10-03 14:45", "10-03 16:15", "10-03 17:15", "10-03 18:15"]),
    ("45 * * * *", "Australia/Lord_Howe", "2026-04-04T14:00Z", ["04-04 14:45", "04-04 15:15", "04-04 16:15", "04-04 17:15"]),
    # a walk by whole hours would leap over these two
    ("15 */3 * * *", "Australia/Lord_Howe", "2026-10-03T14:00Z", ["10-03 16:15", "10-03 19:15", "10-03 22:15", "10-04 01:15"]),
    ("15 */2 * * *", "Australia/Lord_Howe", "2026-04-04T14:00Z", ["04-04 15:45", "04-04 17:45", "04-04 19:45", "04-04 21:45"]),
    ("0 * * * *", "America/Havana", "2026-03-08T03:30Z", ["03-08 04:00", "03-08 05:00", "03-08 06:00", "03-08 07:00"]),
    ("0 */2 * * *", "America/Havana", "2026-03-08T03:30Z", ["03-08 06:00", "03-08 08:00", "03-08 10:00", "03-08 12:00"]),
    ("0 */2 * * *", "America/Havana", "2026-11-01T03:30Z", ["11-01 04:00", "11-01 05:00", "11-01 07:00", "11-01 09:00"]),
    ("0 * * * *", "Asia/Beirut", "2026-10-24T19:30Z", ["10-24 20:00", "10-24 21:00", "10-24 22:00", "10-24 23:00"]),
    ("0 * * * *", "Asia/Kathmandu", "2026-05-05T00:00Z", ["05-05 00:15", "05-05 01:15", "05-05 02:15", "05-05 03:15"]),
    ("0 */12 * * *", "Pacific/Apia", "2011-12-30T00:00Z", ["12-30 10:00", "12-30 22:00", "12-31 10:00", "12-31 22:00"]),
]


@pytest.mark.parametrize(("expression", "zone", "start", "wanted"), ELAPSED)
def test_starred_hours_follow_elapsed_time(expression: str, zone: str, start: str, wanted: list[str]) -> None:
    assert upcoming(expression, zone, start) == wanted


ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Havana", "Asia/Beirut", "Africa/Casablanca", "UTC"]
MINUTE = timedelta(minutes=1)
MINUTES = [("0", {0}), ("30", {30}), ("*/15", {0, 15, 30, 45}), ("7,45", {7, 45}), ("*", set(range(60)))]
HOURS = [("*", set(range(24))), ("*/2", set(range(0, 24, 2))), ("*/3", set(range(0, 24, 3))), ("*/5", {0, 5, 10, 15, 20})]


@settings(max_examples=80, deadline=None)
@given(
    zone=st.sampled_from(ZONES),
    minute=st.sampled_from(MINUTES),
    hour=st.sampled_from(HOURS),
    days=st.integers(0, 729),
    minutes=st.integers(0, 1439),
)
def test_elapsed_time_is_every_minute_whose_local_time_matches(
    zone: str, minute: tuple[str, set[int]], hour: tuple[str, set[int]], days: int, minutes: int
) -> None:
    start = at("2026-01-01T00:00Z") + timedelta(days=days, minutes=minutes)
    end = start + timedelta(hours=30)
    every = [start + n * MINUTE for n in range(1, 30 * 60 + 1)]
    local = [instant.astimezone(ZoneInfo(zone)) for instant in every]
    wanted = [instant for instant, there in zip(every, local, strict=True) if there.minute in minute[1] and there.hour in hour[1]]
    rule = cron(f"{minute[0]} {hour[0]} * * *", zone)
    assert list(takewhile(lambda instant: instant <= end, rule.after(start))) == wanted


@settings(max_examples=60, deadline=None)
@given(
    zone=st.sampled_from(ZONES),
    minute=st.integers(0, 59),
    hour=st.integers(0, 23),
    days=st.integers(0, 729),
)
def test_a_fixed_time_fires_once_a_day_and_never_twice_the_same(zone: str, minute: int, hour: int, days: int) -> None:
    start = at("2026-01-01T12:00Z") + timedelta(days=days)
    there = ZoneInfo(zone)
    found = coming(cron(f"{minute} {hour} * * *", zone), start, 40)
    assert all(earlier < later for earlier, later in pairwise(found))
    dates = [instant.astimezone(there).date() for instant in found]
    assert [later - earlier for earlier, later in pairwise(dates)] == [timedelta(days=1)] * 39
    for instant in found:
        assert coming(cron(f"{minute} {hour} * * *", zone), instant - timedelta(seconds=0.5), 1) == [instant]


WRONG = [
    *("0 0 30 2 *", "0 0 31 4 *", "0 0 31 2,4,6,9,11 *", "*/0 * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *"),
    *("* * * 13 *", "* * * 0 *", "* * * * 8", "* * * *", "* * * * * *", "0 0 L * *", "0 0 15W * *", "0 0 ? * 1", "0 0 * * 5#2"),
    *(
        "0 0 * * 5L",
        "@daily",
        "",
        "a b c d e",
        "5-1 * * * *",
        "* * * FOO *",
        "*/ * * * *",
        "1,,2 * * * *",
        "-1 * * * *",
        "１ * * * *",
    ),
    *("0 0 * * MONDAY", "0 0 JAN * *", "1//2 * * * *", "0 0 29 2 *;"),
]


@pytest.mark.parametrize("expression", WRONG)
def test_an_expression_that_is_none_or_never_comes_is_refused_at_once(expression: str) -> None:
    began = time.perf_counter()
    with pytest.raises(NoRule):
        cron(expression, "Europe/Berlin")
    assert time.perf_counter() - began < 0.05


@pytest.mark.parametrize(
    "zone",
    [
        "America/New_Yrok",
        "UTC+3",
        "",
        "EST5EDT/../x",
        "x" * 300,
        "../etc/passwd",
        "/UTC",
        "posix/UTC",
        "right/UTC",
        "America",
        "\x00",
    ],
)
def test_a_zone_that_is_none_is_refused(zone: str) -> None:
    with pytest.raises(NoRule, match="time zone"):
        instants.zone(zone)


def test_names_and_both_sundays() -> None:
    sundays = upcoming("0 0 * * 0", "UTC", "2026-01-01T00:00Z")
    assert sundays == ["01-04 00:00", "01-11 00:00", "01-18 00:00", "01-25 00:00"]
    for same in ("0 0 * * 7", "0 0 * * SUN", "0 0 * * sun", "0 0 * * 7-7"):
        assert upcoming(same, "UTC", "2026-01-01T00:00Z") == sundays
    assert upcoming("0 0 1 JAN-MAR *", "UTC", "2026-01-01T00:00Z") == ["02-01 00:00", "03-01 00:00", "01-01 00:00", "02-01 00:00"]
    assert upcoming("0 0 * * mon-fri", "UTC", "2026-01-02T00:00Z", 2) == ["01-05 00:00", "01-06 00:00"]


def test_a_range_of_one_is_that_one_whatever_its_step() -> None:
    """As in the crontab manual; `a/n` alone goes on to the end of the field."""
    start = "2026-01-01T00:00Z"
    for ranged, plain in (
        ("57-57/2 5 * * *", "57 5 * * *"),
        ("0 20-20/2,8 * * *", "0 20,8 * * *"),
        ("0 0 * mar-MAR/3 *", "0 0 * 3 *"),
        ("0 0 * * 2-2/2", "0 0 * * 2"),
    ):
        assert upcoming(ranged, "UTC", start, 5) == upcoming(plain, "UTC", start, 5)
    assert upcoming("50/5 5 * * *", "UTC", start, 3) == ["01-01 05:50", "01-01 05:55", "01-02 05:50"]
    with pytest.raises(NoRule):
        cron("9-9/0 * * * *", "UTC")


def test_either_day_field_unless_one_starts_with_a_star() -> None:
    def count(expression: str) -> int:
        year = takewhile(lambda instant: instant.year == 2026, cron(expression, "UTC").after(at("2025-12-31T23:59Z")))
        return sum(1 for _ in year)

    assert count("0 0 13 * 5") == 61  # the thirteenths, and the Fridays
    assert count("0 0 13 * *") == 12
    assert count("0 0 * * 5") == 52
    assert count("0 0 */2 * 5") == sum(
        (at("2026-01-01T00:00Z") + timedelta(n)).weekday() == 4 and (at("2026-01-01T00:00Z") + timedelta(n)).day % 2 == 1
        for n in range(365)
    )
    # the fifteenths that are a Sunday, Tuesday, Thursday or Saturday
    assert upcoming("0 7 15 * */2", "UTC", "2026-01-01T00:00Z") == ["01-15 07:00", "02-15 07:00", "03-15 07:00", "08-15 07:00"]


def test_leap_days_come_over_the_century() -> None:
    found = coming(cron("0 0 29 2 *", "Europe/Berlin"), at("2026-01-01T00:00Z"), 3)
    assert [instant.year for instant in found] == [2028, 2032, 2036]
    assert [i.year for i in coming(cron("0 0 29 2 *", "UTC"), at("2092-03-01T00:00Z"), 2)] == [2096, 2104]
    # a 29 February that is a Sunday: forty years apart over the year 2100
    assert [i.year for i in coming(cron("0 0 29 2 */7", "UTC"), at("2088-03-01T00:00Z"), 1)] == [2128]


def test_what_is_due_of_an_interval() -> None:
    rule = Every(10, at("2026-01-01T00:00:03Z"))
    assert coming(rule, rule.anchor, 2) == [at("2026-01-01T00:00:13Z"), at("2026-01-01T00:00:23Z")]
    assert coming(rule, at("2025-01-01T00:00Z"), 1) == [at("2026-01-01T00:00:13Z")]
    assert due(rule, at("2026-01-01T00:00:13Z"), at("2026-01-01T00:00:33Z")) == (
        [at("2026-01-01T00:00:13Z"), at("2026-01-01T00:00:23Z"), at("2026-01-01T00:00:33Z")],
        0,
        at("2026-01-01T00:00:43Z"),
    )
    latest, before, ahead = due(rule, at("2026-01-01T00:00:13Z"), at("2027-01-01T00:00:03Z"))
    assert (len(latest), before, latest[-1], ahead) == (
        1000,
        3_153_600 - 1000,
        at("2027-01-01T00:00:03Z"),
        at("2027-01-01T00:00:13Z"),
    )


def test_fractions_of_an_interval_do_not_drift() -> None:
    rule = Every(1.1, at("2026-01-01T00:00Z"))
    assert coming(rule, at("2026-01-01T00:01:49Z"), 1) == [at("2026-01-01T00:01:50Z")]


@pytest.mark.parametrize(
    ("days", "before"), [(0.25, 0), (7, 10_081 - 1000), (60, instants.MOST_COUNTED - 1000), (4000, instants.MOST_COUNTED - 1000)]
)
def test_what_is_due_of_a_long_backlog_is_its_end(days: float, before: int) -> None:
    now = at("2026-05-01T00:00:30Z")
    first = now - timedelta(days=days) - timedelta(seconds=30)
    latest, passed, ahead = due(cron("* * * * *", "Europe/Berlin"), first, now)
    assert (latest[-1], passed, ahead) == (at("2026-05-01T00:00Z"), before, at("2026-05-01T00:01Z"))
    assert len(latest) == min(1000, int(days * 1440) + 1)
    assert all(later - earlier == MINUTE for earlier, later in pairwise(latest))


def test_the_end_of_the_calendar_ends_a_schedule() -> None:
    assert coming(cron("0 0 1 1 *", "UTC"), at("9999-06-01T00:00Z")) == []
    assert coming(Every(86_400, at("8999-12-31T00:00Z")), at("8999-12-31T00:00Z")) == []
