"""What the stream reads beside many settled and delayed rows: the plans, and the truth of what it says."""

from __future__ import annotations

from typing import Any

import pytest

from interlock_core import wakes
from sql.explained import Explained
from sql.rows import Rows
from sql.test_plans import SIZES, TYPES, _check, _fill

RUNNING = {
    "status": "'running'",
    "attempt_id": "gen_random_uuid()",
    "token_hash": "'\\x00'",
    "worker_id": "'w'",
    "instance_id": "'i-' || n",
    "claim_id": "'c'",
}


def _groups(*types: str, leases: bool = True, most: int = 200) -> list[dict[str, Any]]:
    return [
        {"n": n, "project": "test", "type": name, "schema_version": 1, "pool": "default", "most": most, "leases": leases}
        for n, name in enumerate(types)
    ]


@pytest.mark.parametrize(("settled", "delayed", "analyzed"), SIZES)
async def test_b40_a_look_reads_the_moments_of_its_groups_and_nothing_else(
    rows: Rows, explained: Explained, settled: int, delayed: int, analyzed: bool
) -> None:
    _fill(rows, settled, delayed, analyzed)
    rows.fill(20, **RUNNING, type="'type/n' || n", lease_expires_at="app_now() + interval '1 minute'")
    names = [f"type/n{n}" for n in range(TYPES)]
    found = await wakes.outlook(explained, _groups(*names))
    assert sum(row.claimable for row in found) == 10
    await wakes.outlook(explained, _groups(*names, leases=False))
    await wakes.full(explained, [("test", "w", f"i-{n}") for n in range(100)])
    await wakes.cancels(explained, ["test"])
    await wakes.gone(explained, ["k"])
    plan = explained.plan("wakes.outlook")
    assert {"tasks_ready", "tasks_due"} <= plan.indexes
    assert "tasks_running" not in plan.indexes, "leases are not read by the quick look"
    _check(explained, ("wakes.outlook", "wakes.full", "wakes.cancels", "wakes.gone"), rows=200, blocks=700)


async def test_a_look_says_what_is_claimable_and_when_more_will_be(rows: Rows, explained: Explained) -> None:
    rows.fill(3, type="'a/ready'")
    rows.fill(250, type="'a/many'")
    rows.fill(2, type="'a/due'", hold="'due'", due_at="app_now() - interval '1 second'")
    rows.fill(1, type="'a/due'", hold="'due'", due_at="app_now() + interval '30 seconds'")
    rows.fill(1, type="'a/later'", hold="'due'", due_at="app_now() + interval '90 seconds'")
    rows.fill(5, type="'a/blocked'", hold="'concurrency'", concurrency_key="'k'", concurrency_limit="1")
    rows.fill(1, **RUNNING, type="'a/lapsed'", lease_expires_at="app_now() - interval '5 seconds'")
    rows.fill(1, **RUNNING, type="'a/lapsed'", lease_expires_at="app_now() + interval '20 seconds'")
    rows.fill(1, type="'a/ready'", pool="'gpu'")
    rows.fill(1, type="'a/ready'", schema_version="2")
    rows.fill(1, type="'a/ready'", project="'another'")
    names = ("a/ready", "a/many", "a/due", "a/later", "a/blocked", "a/lapsed", "a/nothing")
    found = {names[row.n]: row for row in await wakes.outlook(explained, _groups(*names))}
    assert {name: row.claimable for name, row in found.items()} == dict(zip(names, (3, 200, 2, 0, 0, 1, 0), strict=True))
    assert {name for name, row in found.items() if row.lapsed} == {"a/lapsed"}
    assert 28 < found["a/due"].due_in <= 30
    assert 88 < found["a/later"].due_in <= 90
    assert 18 < found["a/lapsed"].lease_in <= 20
    assert found["a/nothing"].due_in is found["a/nothing"].lease_in is None
    quick = {names[row.n]: row for row in await wakes.outlook(explained, _groups(*names, leases=False))}
    assert quick["a/lapsed"].claimable == 0
    assert quick["a/lapsed"].lease_in is None


async def test_full_workers_are_those_that_are_known_to_be(rows: Rows, explained: Explained) -> None:
    rows.all(
        "INSERT INTO instances (project, worker_id, instance_id, pool, slots, draining)"
        " VALUES ('test', 'w', 'i-1', 'default', 1, false), ('test', 'w', 'i-2', 'default', 2, false),"
        " ('test', 'w', 'i-3', 'default', 2, true), ('other', 'w', 'i-4', 'default', 0, false)"
    )
    rows.fill(2, **RUNNING, lease_expires_at="app_now() + interval '1 minute'")  # one for i-1, one for i-2
    asked = [("test", "w", f"i-{n}") for n in range(1, 6)]
    assert await wakes.full(explained, asked) == {("test", "w", "i-1"), ("test", "w", "i-3")}
