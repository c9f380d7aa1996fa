"""What commits between a statement's snapshot and its lock is seen: each statement waits at its clock until somebody has written.

A statement reads its clock after its snapshot was taken, so a clock that waits holds it in exactly that moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from interlock_core import leases
from interlock_core.db import Step
from sql.rows import Rows
from support.clock import Clock
from support.play import Play
from support.waiting import wait_until_async

GATED = (
    "CREATE OR REPLACE FUNCTION app_now() RETURNS timestamptz LANGUAGE plpgsql AS"
    " $$ BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN (SELECT clock_timestamp() + shift FROM test_clock); END $$"
)
WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
GROUPS = '[{"project": "test", "type": "demo/hello", "schema_version": 1, "pool": "default"}]'
CANCELLED = "UPDATE tasks SET status = 'cancelled', hold = NULL, finished_at = clock_timestamp()"


@pytest.fixture
def meanwhile(play: Play, clock: Clock, rows: Rows, database_url: str) -> Callable[[Step, str], Any]:
    """Runs a step, writes while it waits at its clock, and gives its rows."""

    async def run(step: Step, written: str) -> list[Any]:
        rows.all(GATED)
        with psycopg.connect(database_url, autocommit=True) as gate:
            gate.execute("SELECT pg_advisory_lock(7)")
            running = asyncio.ensure_future(play.http._app.state.database.one(step))
            await wait_until_async(lambda: rows.value(WAITING) == 1)
            rows.all(written)
            gate.execute("SELECT pg_advisory_unlock(7)")
            found: list[Any] = await running
            return found

    return run


async def test_b20_a_cancel_during_the_settling_of_a_lease_is_seen(play: Play, clock: Clock, rows: Rows, meanwhile: Any) -> None:
    attempt = await play.run(retry={"initialDelaySeconds": 0})
    clock.advance(61)
    (row,) = await meanwhile(leases.expire_sql.lapsed(groups=GROUPS), "UPDATE tasks SET cancel_requested = true")
    assert row.status == "cancelled"
    assert rows.kinds(attempt["taskId"]) == ["submitted", "claimed", "lease-expired", "cancelled"]


async def test_b04_a_renewal_during_the_settling_of_a_lease_is_seen(play: Play, clock: Clock, rows: Rows, meanwhile: Any) -> None:
    attempt = await play.run()
    clock.advance(61)
    renewed = "UPDATE tasks SET lease_expires_at = lease_expires_at + interval '1 minute'"
    assert await meanwhile(leases.expire_sql.lapsed(groups=GROUPS), renewed) == []
    assert rows.task(attempt["taskId"])["status"] == "running"


async def test_b20_a_cancel_during_a_promotion_is_seen(play: Play, clock: Clock, rows: Rows, meanwhile: Any) -> None:
    task = await play.submit(delaySeconds=10, concurrency={"key": "K", "limit": 1})
    clock.advance(11)
    assert await meanwhile(leases.promote_sql.due(groups=GROUPS), CANCELLED) == []
    assert (rows.task(task["id"])["status"], rows.task(task["id"])["hold"]) == ("cancelled", None)


async def test_b20_a_start_during_the_check_of_start_deadlines_is_seen(
    play: Play, clock: Clock, rows: Rows, meanwhile: Any
) -> None:
    task = await play.submit(startDeadlineSeconds=10)
    clock.advance(11)
    assert await meanwhile(leases.late_sql.settle(), "UPDATE tasks SET started_at = clock_timestamp()") == []
    assert rows.task(task["id"])["status"] == "queued"


async def test_b20_a_cancel_during_the_check_of_the_wait_limit_is_seen(
    play: Play, clock: Clock, rows: Rows, meanwhile: Any
) -> None:
    task = await play.submit()
    clock.advance(90_000)
    assert await meanwhile(leases.wait_sql.settle(groups=GROUPS, limit_seconds=86_400.0), CANCELLED) == []
    assert rows.kinds(task["id"]) == ["submitted"]


async def test_b39_a_key_that_was_taken_again_during_retention_keeps_its_task(
    play: Play, clock: Clock, rows: Rows, meanwhile: Any
) -> None:
    attempt = await play.run(idempotencyKey="k")
    await play.complete(attempt, result=1)
    clock.advance(8 * 86_400)
    other = "UPDATE idempotency SET task_id = gen_random_uuid(), expires_at = expires_at + interval '9 days'"
    (row,) = await meanwhile(leases.retention_sql.delete(keep_seconds=60.0, limit=10), other)
    assert row.tasks == 1
    assert rows.value("SELECT count(*) FROM idempotency") == 1, "the key of a newer task went with an older one"
