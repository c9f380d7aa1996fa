"""What a request and a task cost, counted: round trips, rows, commits (never timed)."""

from __future__ import annotations

from typing import Any

import pytest

from interlock_core.db import Database
from sql.counters import flush_counters
from sql.rows import Rows
from support.play import Play, ids


async def _trips(play: Play, database: Database, call: Any) -> int:
    before = database.round_trips
    answer = await call
    assert answer.status_code < 300, answer.text
    return database.round_trips - before


@pytest.fixture
async def warm(play: Play) -> Play:
    """Both keys were just verified, and are remembered."""
    attempt = await play.run()
    await play.complete(attempt, result=1)
    return play


async def test_each_request_is_one_round_trip(warm: Play, database: Database) -> None:
    http = warm.http
    assert await _trips(warm, database, warm.submit_raw()) == 1
    assert await _trips(warm, database, warm.submit_raw(idempotencyKey="k")) == 1
    batch = {"tasks": [{"type": "demo/hello", "schemaVersion": 1, "input": n, "idempotencyKey": f"b{n}"} for n in range(100)]}
    assert await _trips(warm, database, http.producer.post("/v1/tasks/batch", json=batch)) == 1
    assert await _trips(warm, database, http.worker.post("/v1/claims", json=warm.claim_body(slots=5))) == 1
    attempts = await warm.claim(slots=10)
    beat = {"workerId": "tester", "instanceId": "one", "attempts": [ids(a) for a in attempts]}
    assert await _trips(warm, database, http.worker.post("/v1/attempts/heartbeat", json=beat)) == 1
    beat["attempts"] = [{**ids(a), "progress": {"percent": 1}, "logs": [{"seq": 1, "message": "x"}]} for a in attempts]
    assert await _trips(warm, database, http.worker.post("/v1/attempts/heartbeat", json=beat)) == 1
    done = {"completions": [{**ids(a), "outcome": "succeeded", "result": 1} for a in attempts[:9]]}
    assert await _trips(warm, database, http.worker.post("/v1/attempts/complete", json=done)) == 1
    assert await _trips(warm, database, http.producer.get(f"/v1/tasks/{attempts[0]['taskId']}")) == 1
    assert await _trips(warm, database, http.worker.post("/v1/claims", json=warm.claim_body(type="demo/none"))) == 1


async def test_a_hint_a_repeat_or_a_conflict_costs_one_more(warm: Play, database: Database) -> None:
    http = warm.http
    (attempt, other) = [(await warm.run()) for _ in range(2)]
    again = {"completions": [{**ids(attempt), "outcome": "retryable", "error": {"code": "BUSY"}}]}
    assert await _trips(warm, database, http.worker.post("/v1/attempts/complete", json=again)) == 2  # a retry is hinted
    assert await _trips(warm, database, http.worker.post("/v1/attempts/complete", json=again)) == 2  # a repeat is explained
    assert await _trips(warm, database, http.worker.post("/v1/attempts/release", json={"attempts": [ids(other)]})) == 2
    await warm.submit(idempotencyKey="k")
    before = database.round_trips
    assert (await warm.submit_raw(idempotencyKey="k", input=2)).status_code == 409
    assert database.round_trips - before == 2


async def test_a_completion_that_claims_is_two_round_trips(warm: Play, database: Database) -> None:
    attempt = await warm.run()
    await warm.submit()
    body = {"completions": [{**ids(attempt), "outcome": "succeeded"}], "claim": warm.claim_body()}
    assert await _trips(warm, database, warm.http.worker.post("/v1/attempts/complete", json=body)) == 2


WRITTEN = (
    "SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::integer FROM pg_stat_user_tables WHERE relname <> 'service'"
)
COMMITS = "SELECT xact_commit::integer FROM pg_stat_database WHERE datname = current_database()"


async def _life(play: Play, count: int, **fields: Any) -> None:
    """`count` tasks, each stored, claimed and completed, in batches."""
    plain = {"type": "demo/hello", "schemaVersion": 1, "input": {"a": 1}}
    tasks = [plain | {name: f"{value}{n}" for name, value in fields.items()} for n in range(count)]
    assert (await play.http.producer.post("/v1/tasks/batch", json={"tasks": tasks})).status_code == 201
    attempts = await play.claim(slots=count)
    assert len(attempts) == count
    body = {"completions": [{**ids(a), "outcome": "succeeded", "result": 1} for a in attempts]}
    answer = await play.http.worker.post("/v1/attempts/complete", json=body)
    assert {item["taskStatus"] for item in answer.json()["completions"]} == {"succeeded"}


@pytest.mark.parametrize(("fields", "most"), [({}, 6), ({"idempotencyKey": "k"}, 7)])
async def test_a_plain_task_is_six_rows_and_its_key_one_more(
    warm: Play, rows: Rows, database: Database, fields: dict[str, str], most: int
) -> None:
    await flush_counters(database)
    before = rows.value(WRITTEN)
    await _life(warm, 10, **fields)
    await flush_counters(database)
    written = rows.value(WRITTEN) - before
    # Beside the tasks' rows stand those of the one claim: what it remembers, and its instance now and then.
    assert 10 * most <= written <= 10 * most + 3
    assert written <= 10 * 7 + 3


async def test_a_batch_of_tasks_is_a_few_commits(warm: Play, rows: Rows, database: Database) -> None:
    await flush_counters(database)
    before = rows.value(COMMITS)
    await _life(warm, 100)
    await flush_counters(database)
    # submit and its hint, the claim, the completion and its hint, and the two flushes of this test with their reading
    assert rows.value(COMMITS) - before <= 5 + 4


async def test_a_renewal_is_a_heap_only_update(warm: Play, rows: Rows, database: Database) -> None:
    attempt = await warm.run()
    counts = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'tasks'"
    await flush_counters(database)
    ((updated, hot),) = rows.all(counts)
    for _ in range(5):
        await warm.heartbeat(attempt)
    await flush_counters(database)
    ((updated_then, hot_then),) = rows.all(counts)
    assert updated_then - updated == hot_then - hot == 5


async def test_an_empty_claim_writes_next_to_nothing(warm: Play, rows: Rows, database: Database) -> None:
    await warm.claim()
    await flush_counters(database)
    before = rows.value(WRITTEN)
    for _ in range(10):
        assert await warm.claim() == []
    await flush_counters(database)
    assert rows.value(WRITTEN) - before <= 20  # the claim's own memory, and the rest that its instance is told to take
