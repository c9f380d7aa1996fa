"""One key's backlog, its delayed work and many claimers at once (B07)."""

from __future__ import annotations

import asyncio

import pytest

from interlock_core.db import Database
from sql.counters import flush_counters
from sql.explained import Explained
from sql.rows import Rows
from support.clock import Clock
from support.play import Play

K = {"concurrency": {"key": "K", "limit": 1}}


async def test_b07_a_task_due_later_does_not_stand_before_one_due_now(play: Play) -> None:
    await play.submit(**K, delaySeconds=3600)
    now = await play.submit(**K)
    assert [a["taskId"] for a in await play.claim(slots=5)] == [now["id"]]


async def test_b07_one_due_later_gets_in_when_its_time_comes(play: Play, clock: Clock) -> None:
    later = await play.submit(**K, delaySeconds=3600, priority=9)
    now = await play.submit(**K)
    attempt = (await play.claim())[0]
    clock.advance(3601)
    await play.heartbeat(attempt)
    assert await play.claim(slots=5, instance="two") == []
    await play.complete(attempt, result=1)
    assert [a["taskId"] for a in await play.claim(slots=5)] == [later["id"]]
    assert (await play.get(now["id"]))["status"] == "succeeded"


async def test_b07_a_cancelled_ready_task_lets_the_next_one_in(play: Play) -> None:
    first, second = await play.submit(**K), await play.submit(**K)
    await play.cancel(first["id"])
    assert [a["taskId"] for a in await play.claim()] == [second["id"]]


async def test_b07_each_task_counts_the_holders_against_its_own_limit(play: Play) -> None:
    wide = [await play.submit(concurrency={"key": "K", "limit": 3}, priority=-1) for _ in range(4)]
    narrow = await play.submit(**K)
    first = await play.claim(slots=10)
    assert [a["taskId"] for a in first] == [narrow["id"], wide[0]["id"], wide[1]["id"]]
    await play.complete(first[0], result=1)
    assert [a["taskId"] for a in await play.claim(slots=10)] == [wide[2]["id"]]
    late = await play.submit(**K, priority=50)
    await play.complete(first[1], result=1)
    assert [a["taskId"] for a in await play.claim(slots=10)] == [wide[3]["id"]]  # two hold it: too many for a limit of 1
    assert (await play.get(late["id"]))["waiting"]["reason"] == "concurrency-limit"


async def test_b07_the_sweep_admits_what_a_crash_left_out(play: Play, rows: Rows) -> None:
    first, second = await play.submit(**K), await play.submit(**K)
    rows.all("UPDATE tasks SET hold = 'concurrency'")
    assert await play.claim() == []
    assert (await play.sweep())["admitted"] == 1
    assert (await play.sweep())["admitted"] == 0
    assert [a["taskId"] for a in await play.claim(slots=2)] == [first["id"]]
    assert (await play.get(second["id"]))["status"] == "queued"


def _fill_key(rows: Rows, count: int) -> None:
    rows.all("INSERT INTO concurrency_keys VALUES ('test', 'K') ON CONFLICT DO NOTHING")
    rows.fill(count, hold="'concurrency'", concurrency_key="'K'", concurrency_limit="1")
    rows.all("VACUUM ANALYZE tasks")


async def test_b07_a_blocked_backlog_stays_out_of_the_way(play: Play, rows: Rows) -> None:
    await play.submit(**K)
    assert len(await play.claim(slots=10)) == 1
    _fill_key(rows, 5000)
    other = await play.submit(concurrency={"key": "L", "limit": 1})
    free = await play.submit()
    assert sorted(a["taskId"] for a in await play.claim(slots=2)) == sorted([other["id"], free["id"]])
    assert await play.claim(slots=10) == []


async def _pages(database: Database, rows: Rows) -> int:
    """Pages of tasks that were touched until now."""
    await flush_counters(database)
    return int(
        rows.value(
            "SELECT heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read FROM pg_statio_user_tables WHERE relname = 'tasks'"
        )
    )


async def _cost(play: Play, database: Database, rows: Rows) -> float:
    """Pages that a claim and a completion touch, one after the other on a key with a backlog."""
    await play.complete((await play.claim())[0], result=1)  # plans and caches are warm
    before = await _pages(database, rows)
    for _ in range(20):
        (attempt,) = await play.claim(slots=2)
        await play.complete(attempt, result=1)
    return (await _pages(database, rows) - before) / 20


async def test_b07_claims_stay_flat_as_the_backlog_of_a_key_doubles(play: Play, database: Database, rows: Rows) -> None:
    rows.all("ALTER TABLE tasks SET (autovacuum_enabled = false)")  # what it reads would be counted too
    await play.submit(**K)
    _fill_key(rows, 3000)
    small = await _cost(play, database, rows)
    _fill_key(rows, 3000)
    large = await _cost(play, database, rows)
    assert large <= 1.2 * small, (small, large)
    assert large < 400, large


async def test_b07_the_plans_of_a_claim_beside_a_blocked_backlog(play: Play, rows: Rows, explained: Explained) -> None:
    await play.submit(**K)
    await play.claim()
    _fill_key(rows, 5000)
    play.http._app.state.database = explained
    assert await play.claim(slots=10) == []
    assert explained.plan("claim.pick").rows < 100
    assert explained.plan("claim.lock_keys").rows < 100
    assert "tasks" not in explained.plan("claim.pick").scanned


@pytest.mark.parametrize("count", [36, pytest.param(300, marks=pytest.mark.slow)])
async def test_b07_twelve_claimers_on_one_key_never_run_two(play: Play, rows: Rows, count: int) -> None:
    task = {"type": "demo/hello", "schemaVersion": 1, "input": {}, **K}
    answer = await play.http.producer.post("/v1/tasks/batch", json={"tasks": [task] * count})
    assert answer.status_code == 201, answer.text
    freed = asyncio.Condition()  # the claimers poll: each of them again when something has ended
    running: set[str] = set()
    done = ending = 0

    async def work(name: str) -> None:
        nonlocal done, ending
        while done < count:
            attempts = await play.claim(slots=3, instance=name)
            running.update(a["taskId"] for a in attempts)
            assert len(running) <= 1
            for attempt in attempts:
                running.discard(attempt["taskId"])
                ending += 1
                assert (await play.complete(attempt, result=1))["taskStatus"] == "succeeded"
                ending -= 1
                done += 1
            async with freed:
                if attempts:
                    freed.notify(count if done == count else 4)
                elif done < count and (running or ending):
                    await freed.wait()

    await asyncio.wait_for(asyncio.gather(*(work(f"claimer-{n}") for n in range(12))), 60)
    assert rows.all("SELECT status, count(*) FROM tasks GROUP BY 1") == [("succeeded", count)]
    overlaps = rows.value(
        "SELECT count(*) FROM tasks a JOIN tasks b ON a.id < b.id"
        " AND (a.attempt_started_at, a.finished_at) OVERLAPS (b.attempt_started_at, b.finished_at)"
    )
    assert overlaps == 0


async def test_b07_a_late_start_does_not_stand_before_another_key(play: Play, clock: Clock) -> None:
    await play.submit(**K, startDeadlineSeconds=5, priority=9)
    other = await play.submit(concurrency={"key": "L", "limit": 1})
    clock.advance(6)
    assert [a["taskId"] for a in await play.claim(slots=1)] == [other["id"]]
