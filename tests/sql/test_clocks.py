"""Only the database's clock decides, whatever zone its role lives in and whatever the processes believe (B14); back-off (B17)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest
from psycopg import sql

from interlock_core import hints, ids
from interlock_core.settings import Settings
from sql.rows import Rows
from support.clock import Clock
from support.play import Play


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.fixture
def database_url(database_url: str) -> str:
    """A database whose role lives in Kolkata, half an hour off everybody else."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        role, name = connection.info.user, connection.info.dbname
        connection.execute(
            sql.SQL("ALTER ROLE {} IN DATABASE {} SET timezone = 'Asia/Kolkata'").format(
                sql.Identifier(role), sql.Identifier(name)
            )
        )
    return database_url


async def test_b14_delays_and_due_times_keep_their_meaning(play: Play, clock: Clock, rows: Rows) -> None:
    assert rows.value("SHOW timezone") == "Asia/Kolkata"
    clock.hold()
    now = clock.now()
    delayed = await play.submit(delaySeconds=90)
    assert delayed["createdAt"].endswith("Z")
    assert at(delayed["createdAt"]) == now
    assert at(delayed["dueAt"]) == now + timedelta(seconds=90)
    instant = (now + timedelta(seconds=120)).astimezone(UTC)
    for zone in (UTC, timezone(timedelta(hours=-7)), timezone(timedelta(hours=5, minutes=45))):
        task = await play.submit(runAt=instant.astimezone(zone).isoformat())
        assert at(task["dueAt"]) == instant
    clock.advance(89.999)
    assert await play.claim(slots=10) == []
    clock.advance(0.001)
    (attempt,) = await play.claim(slots=10)
    assert (attempt["taskId"], at(attempt["leaseExpiresAt"])) == (delayed["id"], clock.now() + timedelta(seconds=60))
    clock.advance(29)
    assert await play.claim(slots=10) == []
    clock.advance(1)
    assert len(await play.claim(slots=10)) == 3


async def test_b14_leases_retries_deadlines_and_cut_offs_keep_their_length(play: Play, clock: Clock) -> None:
    clock.hold()
    attempt = await play.run(retry={"initialDelaySeconds": 40, "jitter": 0}, startDeadlineSeconds=3600)
    clock.advance(60 - 0.001)
    assert (await play.sweep())["lapsed"] == 0
    await play.heartbeat(attempt, progress={"percent": 1})
    clock.advance(60)
    assert (await play.sweep())["lapsed"] == 1
    view = await play.get(attempt["taskId"])
    assert at(view["dueAt"]) == clock.now() + timedelta(seconds=40)
    assert at(view["progress"]["at"]) == clock.now() - timedelta(seconds=60)
    cut = (clock.now() - timedelta(seconds=60)).astimezone(timezone(timedelta(hours=-3))).isoformat()
    for name, found in (("createdAfter", 0), ("createdBefore", 1)):
        answer = await play.http.producer.get("/v1/tasks", params={name: cut})
        assert len(answer.json()["items"]) == found, name


async def test_b14_retention_keeps_its_length(play: Play, clock: Clock) -> None:
    from interlock_core import leases

    clock.hold()
    attempt = await play.run()
    await play.complete(attempt, result=1)
    database = play.http._app.state.database
    clock.advance(7 * 86_400)
    assert (await leases.retain(database, Settings()))["tasks"] == 0
    clock.advance(0.001)
    assert (await leases.retain(database, Settings()))["tasks"] == 1


@pytest.mark.parametrize("minutes", [10, -10])
async def test_b14_a_process_whose_clock_is_wrong_decides_nothing(
    play: Play, clock: Clock, monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    """The process's clock serves ids and the timing of hints, and may be off by minutes."""
    real = ids.time.time_ns
    monkeypatch.setattr(ids.time, "time_ns", lambda: real() + minutes * 60 * 10**9)

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) + timedelta(minutes=minutes)

    monkeypatch.setattr(hints, "datetime", Shifted)
    clock.hold()
    first = await play.run()
    later = await play.submit(delaySeconds=60)
    soon = await play.submit(runAt=(clock.now() + timedelta(seconds=30)).isoformat())
    assert at(later["dueAt"]) - at(later["createdAt"]) == timedelta(seconds=60)
    assert await play.claim(slots=5) == []
    assert (await play.sweep())["lapsed"] == 0
    clock.advance(30)
    assert [a["taskId"] for a in await play.claim(slots=5)] == [soon["id"]]
    clock.advance(30)
    assert [a["taskId"] for a in await play.claim(slots=5, instance="two")] == [later["id"]]
    assert (await play.get(first["taskId"]))["status"] == "queued"  # its lease of 60 seconds is over, to the second
    newest_first = (await play.http.producer.get("/v1/tasks")).json()["items"]
    assert [t["id"] for t in newest_first][-1] == first["taskId"]


def test_b17_backoff_stays_within_its_cap(rows: Rows) -> None:
    for n in (1, 2, 40, 64, 1100, 2_147_483_647):
        for chance in (0.0, 0.5, 0.9999999):
            seconds = rows.value("SELECT backoff_seconds(%s::integer, 1, 2, 3600, 0.2, %s)", n, chance)
            assert 0 < seconds <= 3600
            assert n != 1 or 0.8 <= seconds <= 1
            assert n < 40 or seconds >= 0.8 * 3600


def test_b17_backoff_at_the_edges_of_its_policy(rows: Rows) -> None:
    """(initial delay, multiplier, longest delay) of attempt 1100."""
    edges = {(0, 2, 3600): 0, (10, 2, 0): 0, (10, 1, 3600): 10, (10, 1000, 1e9): 1e9, (100, 2, 50): 50, (1e-9, 1.5, 3e8): 3e8}
    for policy, expected in edges.items():
        seconds = rows.value("SELECT backoff_seconds(1100, %s, %s, %s, 0, 0)", *policy)
        assert seconds == pytest.approx(expected, rel=1e-9), policy


async def test_b17_a_late_attempt_is_retried_within_the_cap(play: Play, clock: Clock, rows: Rows) -> None:
    clock.hold()
    attempt = await play.run(retry={"maxAttempts": 10_000, "initialDelaySeconds": 1, "multiplier": 2, "maxDelaySeconds": 3600})
    rows.all("UPDATE tasks SET attempts = 1099")
    assert (await play.complete(attempt, "retryable", error={"code": "BUSY"}))["taskStatus"] == "queued"
    due = at((await play.get(attempt["taskId"]))["dueAt"])
    assert timedelta(seconds=0.8 * 3600) <= due - clock.now() <= timedelta(seconds=3600)
