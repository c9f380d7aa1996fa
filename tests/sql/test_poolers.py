"""Behind a pooler that hands out backends per transaction: nothing is kept in a session (B34), and a burst has a bound (B35)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest
from psycopg import sql

from interlock_core import leases
from interlock_core.db import Database, statements
from interlock_core.errors import Problem
from interlock_core.settings import Settings
from sql.rows import Rows
from support.clock import Clock
from support.play import Play
from support.waiting import wait_until_async

SESSION = "SELECT count(*) FROM pg_settings WHERE source = 'session' AND name NOT IN ('application_name', 'client_encoding')"


@pytest.fixture
async def unprepared(database_url: str) -> AsyncIterator[Database]:
    """One backend, on which nothing is prepared."""
    opened = Database(database_url, size=1, prepare=False)
    yield opened
    await opened.close()


async def test_b34_a_session_keeps_nothing_between_transactions(
    play: Play, clock: Clock, rows: Rows, unprepared: Database
) -> None:
    """No prepared statement, no session setting, no lock and no listener outlives its transaction on the one backend."""
    play.http._app.state.database = unprepared
    for n in range(3):
        attempt = await play.run(idempotencyKey=f"k{n}", concurrency={"key": "K", "limit": 1})
        await play.heartbeat(attempt, progress={"percent": 1})
        await play.complete(attempt, result=1)
        other = await play.run()
        await play.cancel(other["taskId"])
        await play.release(other)
        rows.all(f"ALTER TABLE tasks ADD COLUMN added_{n} integer")  # a schema change in the middle breaks no plan
        await play.get(attempt["taskId"])
    clock.advance(61)
    for _ in range(2):
        await leases.sweep(unprepared, Settings())
        await leases.retain(unprepared, Settings())
    async with unprepared.connection() as connection:
        left = (
            "(SELECT count(*) FROM pg_prepared_statements) AS prepared, (SELECT count(*) FROM pg_listening_channels()) AS heard"
        )
        cursor = await connection.execute(f"SELECT {left}, ({SESSION}) AS settings")
        assert tuple(await cursor.fetchone() or ()) == (0, 0, 0)
    assert rows.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0


async def test_b34_prepared_statements_survive_a_schema_change(play: Play, rows: Rows) -> None:
    for n in range(3):
        attempt = await play.run(idempotencyKey=f"k{n}")
        rows.all(f"ALTER TABLE tasks ADD COLUMN added_{n} integer")
        answer = await play.http.producer.get(f"/v1/tasks/{attempt['taskId']}")
        assert answer.status_code == 200, answer.text
        assert (await play.complete(attempt, result=1))["taskStatus"] == "succeeded"


async def test_b35_a_burst_of_cold_environments_stays_within_the_connections_there_are(
    play: Play, rows: Rows, database_url: str
) -> None:
    await play.http._app.state.database.close()
    if not rows.all("SELECT FROM pg_roles WHERE rolname = 'burst'"):
        rows.all("CREATE ROLE burst LOGIN PASSWORD 'burst'")
    rows.all("GRANT ALL ON ALL TABLES IN SCHEMA public TO burst")
    name = sql.Identifier(rows.connection.info.dbname)
    rows.connection.execute(sql.SQL("ALTER DATABASE {} CONNECTION LIMIT 20").format(name))
    url = f"postgresql://burst:burst@{database_url.rpartition('@')[2]}"
    with psycopg.connect(database_url, autocommit=True) as listener:
        listener.execute("LISTEN interlock")

        async def submit(n: int) -> int:
            cold = Database(url, size=1)  # an environment of its own
            answer = 200
            try:
                await cold.one(statements("tasks").view(project="test", ids=[]))
            except Problem as refusal:
                answer = refusal.status
            peak.append(rows.value("SELECT count(*) FROM pg_stat_activity WHERE usename = 'burst'"))
            await cold.close()
            return answer

        peak: list[int] = []
        found = await asyncio.gather(*(submit(n) for n in range(60)))
        assert set(found) <= {200, 503}
        assert found.count(200) >= 10
        assert max(peak) <= 20
        assert listener.execute("SELECT 1").fetchone() == (1,)  # the one that listens was never pushed out
    await wait_until_async(lambda: rows.value("SELECT count(*) FROM pg_stat_activity WHERE usename = 'burst'") == 0)
    assert (await play.submit_raw()).status_code == 201
    rows.connection.execute(sql.SQL("ALTER DATABASE {} CONNECTION LIMIT -1").format(name))
