"""Watched tasks are read by their primary keys, beside any number of others, and only where their journals have grown (B40)."""

from __future__ import annotations

import pytest

from interlock_core import watching
from sql.explained import Explained
from sql.rows import Rows


@pytest.mark.parametrize("analyzed", [True, False], ids=["analyzed", "never-analyzed"])
async def test_b40_watching_reads_grown_journals_by_primary_keys_only(rows: Rows, explained: Explained, analyzed: bool) -> None:
    rows.all("ALTER TABLE tasks SET (autovacuum_enabled = false)")
    rows.all("ALTER TABLE journal SET (autovacuum_enabled = false)")
    rows.fill(10_000, journal_seq="5")
    rows.all(
        """INSERT INTO journal (task_id, seq, at, kind, data)
           SELECT id, g, now(), 'log', repeat('x', 100) FROM tasks, generate_series(1, 5) g"""
    )
    if analyzed:
        rows.all("ANALYZE tasks, journal")
    ids = [str(task_id) for (task_id,) in rows.all("SELECT id FROM tasks LIMIT 200")]
    found = await watching.events(explained, [(name, 5) for name in ids[1:]] + [(ids[0], 3)], 100, 1_000_000)
    assert [(str(row.id), row.seq) for row in found] == [(ids[0], 4), (ids[0], 5)]
    plan = explained.plan("watching.events")
    assert plan.indexes == {"tasks_pkey", "journal_pkey"}
    assert plan.scanned <= {"asked", "found"}, plan.scanned
    assert plan.blocks < 1000


async def test_one_answer_is_bounded_and_always_gets_on(rows: Rows, explained: Explained) -> None:
    rows.fill(3, journal_seq="4")
    rows.all(
        """INSERT INTO journal (task_id, seq, at, kind, data)
           SELECT id, g, now(), 'log', repeat('x', 1000) FROM tasks, generate_series(1, 4) g"""
    )
    ids = sorted(str(task_id) for (task_id,) in rows.all("SELECT id FROM tasks"))
    found = await watching.events(explained, [(name, 0) for name in ids], 3, 10)
    assert [(str(row.id), row.journal_seq, row.seq) for row in found] == [(ids[0], 4, 1), (ids[1], 4, None), (ids[2], 4, None)]
    found = await watching.events(explained, [(name, 0) for name in ids], 3, 4500)
    assert [row.seq for row in found] == [1, 2, 3, 1, 2, None]
    gone = "00000000-0000-7000-8000-000000000000"
    (row,) = await watching.events(explained, [(gone, 0)], 3, 10)
    assert (str(row.id), row.status, row.seq) == (gone, None, None)
    (row,) = await watching.events(explained, [(ids[0], 4)], 3, 10, always=True)
    assert (row.status, row.journal_seq, row.seq) == ("queued", 4, None)


async def test_b40_a_look_at_projects_reads_what_runs_and_who_was_seen_lately(rows: Rows, explained: Explained) -> None:
    rows.all("ALTER TABLE tasks SET (autovacuum_enabled = false)")
    rows.fill(20_000, status="'succeeded'", finished_at="app_now()")
    rows.all(
        """INSERT INTO instances (project, worker_id, instance_id, pool, last_seen)
           SELECT 'test', 'w', 'i' || n, 'default', app_now() - n * interval '1 minute' FROM generate_series(1, 5000) n"""
    )
    rows.all("ANALYZE tasks, instances")
    (row,) = await watching.pulse(explained, ["test"], 1000, 45)
    assert row.running == []
    plan = explained.plan("watching.pulse")
    assert {"tasks_running", "instances_seen"} <= plan.indexes
    assert not {"tasks", "instances"} & plan.scanned
    assert plan.blocks < 200
