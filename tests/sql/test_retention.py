"""Retention of a backlog far larger than one transaction may be (B39)."""

from __future__ import annotations

import pytest

from interlock_core import leases
from interlock_core.db import Statement
from interlock_core.settings import Settings
from sql.explained import Explained
from sql.rows import Rows
from support.play import Play

OLD = {
    "status": "'succeeded'",
    "created_at": "app_now() - interval '9 days'",
    "finished_at": "app_now() - interval '8 days' - n * interval '1 second'",
}


def _fill(rows: Rows, count: int, events: int) -> None:
    rows.fill(count, **OLD)
    rows.all(
        f"INSERT INTO journal (task_id, seq, at, kind) SELECT id, s, created_at, 'log' FROM tasks, generate_series(1, {events}) s"
    )


@pytest.mark.parametrize(
    ("count", "events"), [(5_000, 3), pytest.param(100_000, 5, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
async def test_b39_every_run_shrinks_the_backlog_whatever_its_size(play: Play, rows: Rows, count: int, events: int) -> None:
    _fill(rows, count, events)
    kept = await play.run()
    await play.complete(kept, result=1)
    database = play.http._app.state.database
    await database.one(Statement("limit", "SELECT set_config('statement_timeout', '2s', false)", prepare=False)())
    left, runs = count, 0
    while left:
        done = await leases.retain(database, Settings(), seconds=0.5, batch=500)
        now = rows.value("SELECT count(*) FROM tasks") - 1
        assert done["tasks"] == left - now >= 500
        assert done["events"] == events * done["tasks"]
        left, runs = now, runs + 1
    assert runs >= 1
    assert rows.value("SELECT count(*) FROM journal") == rows.value("SELECT journal_seq FROM tasks")
    assert rows.value("SELECT retained_at > app_now() - interval '1 minute' FROM service") is True
    assert (await play.get(kept["taskId"]))["result"] == 1


async def test_b39_a_run_that_is_cut_keeps_what_it_did(play: Play, rows: Rows) -> None:
    _fill(rows, 1_000, 1)
    done = await leases.retain(play.http._app.state.database, Settings(), seconds=0, batch=100)
    assert done["tasks"] <= 100  # its time was over at once
    rows.all("UPDATE tasks SET status = 'outcome-unknown', finished_at = NULL WHERE id IN (SELECT id FROM tasks LIMIT 7)")
    while (await leases.retain(play.http._app.state.database, Settings(), batch=100))["tasks"]:
        pass
    assert rows.all("SELECT status, count(*) FROM tasks GROUP BY 1") == [("outcome-unknown", 7)]  # kept until it is resolved


async def test_b39_a_batch_reads_what_it_deletes_and_no_more(rows: Rows, explained: Explained) -> None:
    _fill(rows, 8_000, 3)
    rows.all("ANALYZE tasks, journal")
    done = await leases.retain(explained, Settings(), seconds=0.001, batch=500)
    assert done["tasks"] >= 500
    plan = explained.plan("retention.delete")
    assert not plan.scanned & {"tasks", "journal", "idempotency"}
    assert "tasks_finished" in plan.indexes
    assert plan.rows <= 2_000
