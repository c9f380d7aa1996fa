"""Many who fire at once, deaths in between, ends whose follow-up was lost; and the plans."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from interlock_core import ends, firings, leases, previous, testpoint
from interlock_core.db import Database
from interlock_core.errors import Unavailable
from interlock_core.settings import Settings
from service import load_scheduled
from sql.explained import Explained
from sql.rows import Rows
from support.play import Play
from support.timetable import Timetable

SETTINGS = Settings()


async def test_three_tickers_with_clocks_three_seconds_apart_fire_200_ticks_once_each(
    timetable: Timetable, rows: Rows, database_url: str
) -> None:
    await timetable.put(everySeconds=1)
    await timetable.put("minutely", cron="* * * * *", timeZone="Australia/Lord_Howe")
    rows.all(
        "CREATE OR REPLACE FUNCTION app_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL RESTRICTED RETURN"
        " (SELECT held + shift FROM test_clock) + coalesce(current_setting('test.apart', true)::integer, 0) * interval '1 second'"
    )
    tickers = [Database(f"{database_url}?options=-c%20test.apart%3D{apart}", size=2) for apart in (-3, 0, 3)]
    for _ in range(50):
        timetable.clock.advance(4)
        await asyncio.gather(*(firings.fire_due(ticker, SETTINGS) for ticker in tickers))
    for ticker in tickers:
        await ticker.close()
    due = Counter(str(row[0]) for row in rows.all("SELECT due_at FROM tasks WHERE schedule_name = 'nightly' ORDER BY due_at"))
    assert set(due.values()) == {1}
    assert 200 <= len(due) <= 203  # the foremost clock is three seconds ahead
    span = rows.value("SELECT max(due_at) - min(due_at) FROM tasks WHERE schedule_name = 'nightly'")
    assert span.total_seconds() == len(due) - 1
    assert rows.value("SELECT count(*) FROM tasks WHERE schedule_name = 'minutely'") == 3
    assert rows.value("SELECT count(*) FROM firings WHERE outcome <> 'fired'") == 0
    assert rows.value("SELECT fired FROM schedules WHERE name = 'nightly'") == len(due)


async def test_ten_tickers_at_once_fire_each_of_many_schedules_once(timetable: Timetable, rows: Rows, database_url: str) -> None:
    await timetable.put(everySeconds=60, overlap="skip")
    rows.all(
        "INSERT INTO schedules SELECT (jsonb_populate_record(s, jsonb_build_object('name', 'n' || n))).*"
        " FROM schedules s, generate_series(1, 450) n"
    )
    timetable.clock.advance(60)
    done = await asyncio.gather(*(timetable.fire() for _ in range(10)))
    assert sum(count["fired"] for count in done) == 451
    assert rows.value("SELECT count(*) FROM tasks") == 451
    assert rows.value("SELECT count(*) FROM schedules WHERE next_due_at > app_now()") == 451


@pytest.mark.parametrize("name", ["firings.due", "firings.lock", "firings.fire"])
async def test_a_ticker_that_dies_fires_nothing_by_half(
    timetable: Timetable, rows: Rows, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    await timetable.put(everySeconds=60)
    timetable.clock.advance(60)

    async def die() -> None:
        testpoint.armed.pop(name)
        rows.all(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND state = 'idle in transaction'"
        )

    monkeypatch.setitem(testpoint.armed, name, die)
    with pytest.raises(Unavailable):
        await timetable.fire()
    counts = "SELECT (SELECT count(*) FROM tasks), (SELECT count(*) FROM firings), (SELECT fired FROM schedules)"
    assert rows.all(counts) == [(0, 0, 0)]
    assert (await timetable.fire())["fired"] == 1
    assert rows.all(counts) == [(1, 1, 1)]


async def test_a_schedule_that_somebody_holds_is_left_to_them(timetable: Timetable, rows: Rows) -> None:
    await timetable.put("held", everySeconds=60)
    await timetable.put("free", everySeconds=60)
    timetable.clock.advance(60)
    with rows.connection.transaction():
        rows.all("SELECT FROM schedules WHERE name = 'held' FOR UPDATE")
        assert (await timetable.fire())["fired"] == 1
    assert (await timetable.fire())["fired"] == 1


async def test_a_change_between_looking_and_firing_wins(
    timetable: Timetable, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was planned is carried out only on the schedule that it was planned for."""
    await timetable.put(everySeconds=60)
    timetable.clock.advance(60)
    for change in ("paused_at = app_now(), revision = revision + 1", "paused_at = NULL, revision = revision + 1"):

        async def alter(text: str = change) -> None:
            testpoint.armed.pop("firings.due.committed")
            rows.all(f"UPDATE schedules SET {text}")

        monkeypatch.setitem(testpoint.armed, "firings.due.committed", alter)
        await timetable.fire()
        assert rows.value("SELECT count(*) FROM tasks") == 0
    assert (await timetable.fire())["fired"] == 1


async def test_an_end_whose_follow_up_was_lost_is_found_by_the_sweep(
    timetable: Timetable, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    await timetable.put(everySeconds=60, overlap="cancel-previous", leaseSeconds=3600)
    await timetable.tick(60)
    [attempt] = await play.claim()
    await timetable.tick(60)

    async def crash(*_: object, **__: object) -> int:
        raise Unavailable("crashed")

    with monkeypatch.context() as patch:
        patch.setattr(previous, "release", crash)
        await play.complete(attempt)
    assert await play.claim() == []
    assert (await timetable.fire())["released"] == 1
    assert len(await play.claim()) == 1
    assert ends.previous is previous


async def test_a_request_to_cancel_that_was_lost_is_made_by_the_sweep(
    timetable: Timetable, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    await timetable.put(everySeconds=60, overlap="cancel-previous", leaseSeconds=3600)
    await timetable.tick(60)
    [attempt] = await play.claim()
    timetable.clock.advance(60)

    async def crash(*_: object, **__: object) -> int:
        raise Unavailable("crashed")

    with monkeypatch.context() as patch:
        patch.setattr(firings, "_supersede", crash)
        with pytest.raises(Unavailable):
            await timetable.fire()
    assert (await play.get(attempt["taskId"]))["cancelRequested"] is False
    assert (await timetable.fire())["superseded"] == 1
    assert (await play.heartbeat(attempt))["stop"] == "cancel"


async def test_the_old_one_ends_while_the_new_one_is_fired(
    timetable: Timetable, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends after the database saw it running and before the waiting task could be seen: nobody waits for ever."""
    await timetable.put(everySeconds=60, overlap="cancel-previous", leaseSeconds=3600)
    await timetable.tick(60)
    [attempt] = await play.claim()
    timetable.clock.advance(60)
    ended = []

    async def end() -> None:
        testpoint.armed.pop("firings.fire")
        ended.append(await play.complete(attempt))

    monkeypatch.setitem(testpoint.armed, "firings.fire", end)
    assert (await timetable.fire())["fired"] == 1
    assert ended[0]["taskStatus"] == "succeeded"
    assert len(await play.claim()) == 1


async def test_two_that_end_at_once_let_one_in(timetable: Timetable, play: Play, rows: Rows) -> None:
    await timetable.put(cron="0 12 * * *", leaseSeconds=3600)
    for _ in range(2):
        await timetable.act("trigger")
    attempts = await play.claim(slots=2)
    await timetable.put(cron="0 12 * * *", leaseSeconds=3600, overlap="skip")
    await timetable.act("trigger")
    await timetable.act("trigger")
    await asyncio.gather(*(play.complete(attempt) for attempt in attempts))
    assert rows.value("SELECT count(*) FROM tasks WHERE status = 'queued' AND hold IS NULL") == 1
    assert rows.value("SELECT count(*) FROM tasks WHERE hold = 'previous'") == 1


async def test_fired_work_is_hinted_at(timetable: Timetable, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    async def tell(_: Database, text: str) -> None:
        told.append(text)

    monkeypatch.setattr("interlock_core.hints.tell", tell)
    await timetable.put("a", everySeconds=60)
    await timetable.put("b", everySeconds=60, pool="gpu", concurrency={"key": "K", "limit": 1})
    await timetable.tick(60)
    assert told == ['{"p":"test","ready":[["demo/hello@1","default",1,0.0],["demo/hello@1","gpu",1,0.0]]}']


async def test_an_idle_pass_is_a_few_looks(timetable: Timetable) -> None:
    await timetable.put(everySeconds=3600)
    database = timetable.http._app.state.database
    await timetable.fire()
    before = database.round_trips
    await timetable.fire()
    assert database.round_trips - before == 5


@pytest.mark.parametrize("analyzed", [True, False])
async def test_firing_reads_what_is_due_and_nothing_else(
    timetable: Timetable, play: Play, rows: Rows, explained: Explained, analyzed: bool
) -> None:
    """Beside 3,000 schedules of the future, 5,000 settled tasks of one and as many firings."""
    await timetable.put("due", everySeconds=60, overlap="cancel-previous", leaseSeconds=3600)
    rows.all("ALTER TABLE tasks SET (autovacuum_enabled = false)")
    rows.all(
        "INSERT INTO schedules SELECT (jsonb_populate_record(s, jsonb_build_object('name', 'n' || n,"
        " 'next_due_at', app_now() + interval '1 month'))).* FROM schedules s, generate_series(1, 3000) n"
    )
    rows.fill(5_000, status="'succeeded'", finished_at="app_now()", schedule_name="'due'")
    rows.all(
        "INSERT INTO firings SELECT 'test', '', 'due', app_now() - n * interval '1 minute', app_now(), 'missed', NULL, 0"
        " FROM generate_series(1, 5000) n"
    )
    if analyzed:
        rows.all("ANALYZE tasks; ANALYZE schedules; ANALYZE firings")
    timetable.clock.advance(60)
    await firings.fire_due(explained, SETTINGS)
    [attempt] = await play.claim()
    timetable.clock.advance(60)
    await firings.fire_due(explained, SETTINGS)
    await firings.ahead(explained)
    await leases.look(explained)
    await play.complete(attempt)
    timetable.http._app.state.database = explained
    await timetable.get("due")
    names = [
        "firings.due",
        "firings.fire",
        "firings.ahead",
        "sweep.look",
        "firings.zones",
        "previous.waiting",
        "previous.superseded",
        "previous.release",
        "schedules.find",
    ]
    wrong = []
    for name in names:
        plan = explained.plan(name)
        if plan.scanned & {"schedules", "firings"} or plan.rows > 60 or plan.blocks > 200:
            wrong.append((name, plan.scanned, plan.indexes, plan.rows, plan.widest, plan.blocks))
    assert wrong == [], wrong
    assert "schedules_due" in explained.plan("firings.due").indexes


async def test_the_sweep_function_fires(timetable: Timetable) -> None:
    await timetable.put(everySeconds=60)
    timetable.clock.advance(60)
    [sweep] = [job for job in load_scheduled() if job.name == "sweep"]
    done = await sweep.run(timetable.http._app.state.database, SETTINGS)
    assert done["schedules"]["fired"] == 1
    assert leases.SWEEP_SECONDS + firings.SECONDS < 55
