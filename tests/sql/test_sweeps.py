"""Two sweeps at once, and a row that an idle session holds (B04)."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from interlock_core import leases
from interlock_core.settings import Settings
from sql.conftest import MakeDatabase
from sql.rows import Rows
from support.clock import Clock
from support.play import Play
from support.waiting import wait_until

LAPSED = ["submitted", "claimed", "lease-expired"]


async def _lapse(play: Play, clock: Clock, count: int) -> list[str]:
    """Tasks whose leases have just ended without a report."""
    task = {"type": "demo/hello", "schemaVersion": 1, "input": {}, "retry": {"initialDelaySeconds": 0}}
    answer = await play.http.producer.post("/v1/tasks/batch", json={"tasks": [task] * count})
    assert answer.status_code == 201, answer.text
    assert len(await play.claim(slots=count)) == count
    clock.advance(61)
    return [item["id"] for item in answer.json()["items"]]


async def test_b04_two_sweeps_at_once_requeue_each_task_once(
    play: Play, clock: Clock, rows: Rows, database_url: str, open_database: MakeDatabase
) -> None:
    ids = await _lapse(play, clock, 100)
    held, settings = ids[17], Settings()
    with psycopg.connect(database_url) as idle:
        idle.execute("SELECT FROM tasks WHERE id = %s FOR UPDATE", [held])  # and no commit: idle in transaction
        first, second = await asyncio.gather(leases.sweep(open_database(), settings), leases.sweep(open_database(), settings))
        assert first["lapsed"] + second["lapsed"] == 99
        assert {kind for task in ids if task != held for kind in [tuple(rows.kinds(task))]} == {tuple(LAPSED)}
        assert rows.all("SELECT DISTINCT attempts FROM tasks WHERE id <> %s", held) == [(1,)]
        third = await leases.sweep(open_database(), settings)
        assert (third["lapsed"], third["skipped"]) == (0, 1)
        assert rows.kinds(held) == ["submitted", "claimed"]

        # What ends such a session is the role's own time-out; here it is shortened for the session that idles.
        idle_seconds = rows.value("SHOW idle_in_transaction_session_timeout")
        assert idle_seconds == "10s"
        idle.execute("SET LOCAL idle_in_transaction_session_timeout = '100ms'")
        wait_until(lambda: rows.value("SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'") == 0)
        with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
            idle.execute("SELECT 1")
    fourth = await leases.sweep(open_database(), settings)
    assert (fourth["lapsed"], fourth["skipped"]) == (1, 0)
    assert rows.kinds(held) == LAPSED
    claimed = [attempt for _ in range(2) for attempt in await play.claim(slots=100)]
    assert sorted(a["taskId"] for a in claimed) == sorted(ids)
    assert {a["attemptNumber"] for a in claimed} == {2}


async def test_b04_the_role_of_the_service_has_its_timeouts(rows: Rows) -> None:
    shown = [rows.value(f"SHOW {name}") for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")]
    assert shown == ["20s", "5s", "10s"]


async def test_b03_a_type_that_no_live_worker_serves_is_requeued_under_its_own_policy(
    play: Play, clock: Clock, rows: Rows
) -> None:
    task = await play.submit(type="gone/for.ever", retry={"maxAttempts": 7, "initialDelaySeconds": 30, "jitter": 0})
    assert len(await play.claim(type="gone/for.ever")) == 1
    rows.all("DELETE FROM instances")
    clock.hold()
    clock.advance(61)
    assert (await play.sweep())["lapsed"] == 1
    assert (await play.sweep())["lapsed"] == 0
    view = await play.get(task["id"])
    assert (view["status"], view["attempts"]) == ("queued", 1)
    assert rows.value("SELECT extract(epoch FROM due_at - app_now())::integer FROM tasks") == 30
