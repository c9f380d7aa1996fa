"""Bulk writes that meet the same rows in opposite orders: no deadlock reaches a client, and each task goes whole (B37)."""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import replace
from typing import Any

import pytest

from interlock_core import leases
from interlock_core.settings import Settings
from sql.rows import Rows
from support.clock import Clock
from support.play import Play, ids

DEADLOCKS = "SELECT deadlocks::integer FROM pg_stat_database WHERE datname = current_database()"
FINE = {"STALE_ATTEMPT", "UNAVAILABLE", "RATE_LIMITED"}


@pytest.mark.parametrize("rounds", [12, pytest.param(120, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
async def test_b37_opposite_orders_do_not_deadlock(play: Play, rows: Rows, clock: Clock, rounds: int) -> None:
    chance = random.Random(37)
    settings = replace(Settings(), retention_seconds=0)
    database = play.http._app.state.database
    keys = itertools.count()

    async def submit() -> None:
        tasks = [
            {
                "type": "demo/hello",
                "schemaVersion": 1,
                "input": {},
                "retry": {"initialDelaySeconds": 0, "maxAttempts": 2},
                "concurrency": {"key": f"K{n % 5}", "limit": 4},
                "idempotencyKey": f"k{next(keys)}",
            }
            for n in range(20)
        ]
        chance.shuffle(tasks)
        answer = await play.http.producer.post("/v1/tasks/batch", json={"tasks": tasks})
        assert answer.status_code == 201, answer.text

    async def report(kind: str, name: str, attempts: list[dict[str, Any]], **fields: Any) -> None:
        body = {"workerId": "tester", "instanceId": "one", name: [{**ids(a), **fields} for a in attempts]}
        answer = await play.http.worker.post(f"/v1/attempts/{kind}", json=body)
        assert answer.status_code == 200, answer.text
        for item in answer.json()[name]:
            assert "error" not in item or item["error"]["code"] in FINE, item

    async def cancel(task: str) -> None:
        answer = await play.cancel_raw(task)
        assert answer.status_code in (200, 404, 409), answer.text

    await submit()
    for _ in range(rounds):
        await submit()
        attempts = [a for name in ("one", "two") for a in await play.claim(slots=30, instance=name)]
        overlap = attempts[: len(attempts) * 2 // 3], attempts[len(attempts) // 3 :]
        clock.advance(61 if chance.random() < 0.5 else 1)
        await asyncio.gather(
            report("heartbeat", "attempts", overlap[0], progress={"percent": 1}),
            report("heartbeat", "attempts", overlap[1][::-1]),
            report("complete", "completions", overlap[1][::-1][:10], outcome="succeeded", result=1),
            report("complete", "completions", overlap[0][:10], outcome="retryable", error={"code": "BUSY"}),
            report("release", "attempts", attempts[::3]),
            leases.sweep(database, settings),
            leases.sweep(database, settings),
            leases.retain(database, settings),
            leases.retain(database, settings),
            play.claim(slots=10, instance="three"),
            submit(),
            *(cancel(a["taskId"]) for a in chance.sample(attempts, min(5, len(attempts)))),
        )
    assert rows.value(DEADLOCKS) == 0
    torn = rows.all("SELECT t.id FROM tasks t WHERE (SELECT count(*) FROM journal j WHERE j.task_id = t.id) <> t.journal_seq")
    assert torn == []
    assert rows.value("SELECT count(*) FROM journal j WHERE NOT EXISTS (SELECT FROM tasks t WHERE t.id = j.task_id)") == 0
    # A recovery takes its key back even above the limit; nothing here recovers after its successor was let in.
    over = rows.all(
        "SELECT concurrency_key, count(*) FROM tasks WHERE status = 'running'"
        " GROUP BY 1, concurrency_limit HAVING count(*) > concurrency_limit"
    )
    assert over == []
