"""A sweep stays for a schedule that is due within its time: it fires on time, and costs what it stays (docs/operations.md)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import psycopg
import pytest

from interlock_core import firings
from interlock_core.db import Database, Row, Step
from interlock_core.settings import Settings, SettingsError
from service import _load
from support.play import Play
from support.timetable import Timetable
from template import ROOT, read_template

pytestmark = pytest.mark.in_process


class Counting(Database):
    """Counts statements."""

    statements = 0

    async def run(self, *steps: Step, notify: Step | None = None) -> list[list[Row]]:
        self.statements += len(steps) + (notify is not None)
        return await super().run(*steps, notify=notify)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Counting]:
    opened = Counting(database_url)
    yield opened
    await opened.close()


class Sweeps:
    """Runs of the function on a clock that only they move."""

    def __init__(self, timetable: Timetable, database: Counting, stay: float) -> None:
        self._run = _load(ROOT / "functions" / "sweep").run
        self._timetable = timetable
        self.database = database
        self.settings = Settings(sweep_stay_seconds=stay)
        self.stayed = 0.0

    async def run(self) -> dict[str, Any]:
        """One; the seconds that it stayed are added to `stayed`."""
        found: dict[str, Any] = await self._run(self.database, self.settings, self._pause)
        return found

    async def every_minute(self, minutes: int) -> list[dict[str, Any]]:
        """As EventBridge would: a minute from the beginning of one to the next."""
        found = []
        for _ in range(minutes):
            before = self.stayed
            found.append(await self.run())
            self._timetable.clock.advance(60 - (self.stayed - before))
        return found

    async def _pause(self, seconds: float) -> None:
        assert seconds > 0
        self.stayed += seconds
        self._timetable.clock.advance(seconds)


async def lateness(timetable: Timetable) -> list[float]:
    """Of each task of the schedule: seconds from its instant to its being there."""
    tasks = await timetable.tasks()
    return [(datetime.fromisoformat(task["createdAt"]) - datetime.fromisoformat(task["dueAt"])).total_seconds() for task in tasks]


async def test_without_staying_a_schedule_fires_with_the_next_run(timetable: Timetable, database: Counting) -> None:
    timetable.clock.advance(37)  # the sweep runs 37 s after each full minute
    sweeps = Sweeps(timetable, database, 0)
    await timetable.put(cron="*/5 * * * *")
    await sweeps.every_minute(11)
    assert await lateness(timetable) == [37, 37]
    assert sweeps.stayed == 0


async def test_a_run_stays_for_what_is_due_before_the_next_and_for_nothing_else(timetable: Timetable, database: Counting) -> None:
    timetable.clock.advance(37)
    sweeps = Sweeps(timetable, database, 60)
    await timetable.put(cron="*/5 * * * *")
    found = await sweeps.every_minute(60)
    late = await lateness(timetable)
    assert len(late) == 12
    assert max(late) < 0.05
    assert sum(run.get("onTime", 0) for run in found) == 12
    assert 12 * 23 < sweeps.stayed < 12 * 23.1


async def test_a_run_that_stays_fires_every_instant_of_its_time(timetable: Timetable, database: Counting) -> None:
    sweeps = Sweeps(timetable, database, 60)
    await timetable.put(everySeconds=7)
    await sweeps.every_minute(3)
    late = await lateness(timetable)
    assert len(late) == 3 * 60 // 7
    assert max(late) < 1.1  # of the instant at which one run ends, the next one says it
    assert 0 < sweeps.stayed <= 181


async def test_an_idle_run_is_one_statement_whether_it_stays_or_not(timetable: Timetable, database: Counting) -> None:
    sweeps = Sweeps(timetable, database, 60)
    await timetable.put(everySeconds=3600)
    await sweeps.run()  # the first of a new service keeps its books
    timetable.clock.advance(300)
    database.statements = 0
    assert await sweeps.run() == {"idle": True}
    assert (database.statements, sweeps.stayed) == (1, 0)
    await timetable.act("pause")
    timetable.clock.advance(3290)
    assert await sweeps.run() == {"idle": True}  # a paused schedule is not stayed for
    await timetable.put("other", everySeconds=30)
    database.statements = 0
    assert await sweeps.run() == {"idle": True, "onTime": 1}
    assert database.statements < 40


async def test_a_busy_run_stays_too(timetable: Timetable, play: Play, database: Counting) -> None:
    sweeps = Sweeps(timetable, database, 60)
    await play.submit()
    await timetable.put(everySeconds=45)
    found = await sweeps.run()
    assert (found["idle"], found["onTime"]) == (False, 1)
    assert max(await lateness(timetable)) < 0.05


async def test_a_schedule_that_somebody_else_holds_is_asked_for_once_a_second(
    timetable: Timetable, database: Counting, database_url: str
) -> None:
    sweeps = Sweeps(timetable, database, 10)
    await timetable.put(everySeconds=3)
    with psycopg.connect(database_url) as holder:
        holder.execute("SELECT FROM schedules FOR UPDATE")
        found = await sweeps.run()
    assert found["onTime"] == 0
    assert sweeps.stayed <= 11


async def test_a_slow_sweep_is_no_downtime(timetable: Timetable) -> None:
    """In the profile *zero* it runs every five minutes: what came due between two runs is late, and not missed."""
    settings = Settings.from_environment({"INTERLOCK_SERVER_SWEEP_SECONDS": "rate(5 minutes)"})
    assert settings.sweep_seconds == 300
    await timetable.fire()
    await timetable.put(everySeconds=60, catchUp="none")
    for _ in range(2):
        timetable.clock.advance(300)
        done = await firings.fire_due(timetable.http._app.state.database, settings)
        assert (done["fired"], done["missed"]) == (5, 0)


@pytest.mark.parametrize("text", ["rate(5 weeks)", "rate(x minutes)", "cron(0 * * * ? *)", "5 minutes"])
def test_another_interval_is_no_setting(text: str) -> None:
    with pytest.raises(SettingsError, match="SWEEP_SECONDS"):
        Settings.from_environment({"INTERLOCK_SERVER_SWEEP_SECONDS": text})


def test_the_template_tells_the_sweep_how_often_it_runs_and_how_long_it_stays() -> None:
    document = read_template()
    function = document["Resources"]["SweepFunction"]["Properties"]
    told = document["Globals"]["Function"]["Environment"]["Variables"]["INTERLOCK_SERVER_SWEEP_SECONDS"]
    assert told == function["Events"]["Regularly"]["Properties"]["ScheduleExpression"]
    stays = {name: int(profile["SweepStay"]) for name, profile in document["Mappings"]["Profiles"].items()}
    assert stays == {"zero": 0, "small": 60, "ha": 60}
    assert max(stays.values()) + 15 <= function["Timeout"]
