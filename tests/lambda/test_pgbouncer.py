"""Behind PgBouncer in transaction mode (case B34): nothing that the functions do needs a session."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from interlock_core.db import Database
from interlock_core.migrate import migrate
from interlock_core.settings import Settings
from service import _load
from support.play import Play, ids
from support.pooler import Pooler
from template import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.in_process, pytest.mark.timeout(300)]

CLIENTS, REPEATS = 10, 50


@pytest.fixture
def settings(database_url: str) -> Settings:
    return Settings(database_url=database_url, prepare_statements=False)


@pytest.fixture
async def database(pooler: Pooler, database_url: str) -> AsyncIterator[Database]:
    """As many connections as clients; behind them the pooler lends ten sessions by transaction."""
    opened = Database(pooler.url(database_url), size=CLIENTS, prepare=False)
    yield opened
    await opened.close()


async def _rounds(play: Play, client: int) -> None:
    """One client's calls, each kind of them `REPEATS` times."""
    http = play.http
    for number in range(REPEATS):
        kind = f"demo/c{client}"
        task = await play.submit(type=kind, idempotencyKey=f"{client}-{number}", concurrency={"key": f"K{client}", "limit": 1})
        (attempt,) = await play.claim(type=kind, instance=f"i{client}", claim_id=f"{client}-{number}")
        beat = {"workerId": "tester", "instanceId": f"i{client}", "attempts": [{**ids(attempt), "progress": {"percent": 1}}]}
        answers = [
            await http.worker.post("/v1/attempts/heartbeat", json=beat),
            await http.producer.get(f"/v1/tasks/{task['id']}?include=attempts"),
            await http.producer.get(f"/v1/tasks/{task['id']}/journal"),
            await http.worker.post("/v1/attempts/complete", json={"completions": [{**ids(attempt), "outcome": "succeeded"}]}),
            await http.operator.get(f"/v1/tasks?type={kind}"),
            await http.operator.get("/v1/doctor"),
        ]
        assert [answer.status_code for answer in answers] == [200] * len(answers), [answer.text[:300] for answer in answers]


async def test_b34_every_route_through_a_transaction_pooler_with_a_schema_change_in_the_middle(
    play: Play, database: Database, database_url: str, settings: Settings
) -> None:
    clients = [asyncio.create_task(_rounds(play, client)) for client in range(CLIENTS)]
    with psycopg.connect(database_url, autocommit=True) as direct:
        while direct.execute("SELECT count(*) FROM tasks").fetchone()[0] < CLIENTS * REPEATS // 2:  # type: ignore[index]
            await asyncio.sleep(0.05)
        direct.execute("ALTER TABLE tasks ADD COLUMN added integer")
        await asyncio.gather(*clients)
        assert direct.execute("SELECT count(*) FROM tasks WHERE status = 'succeeded'").fetchone() == (CLIENTS * REPEATS,)
        told: dict[str, Any] = (await play.http.operator.get("/v1/doctor")).json()
        assert '"preparedStatements":false' in json.dumps(told, separators=(",", ":"))
        for name in ("sweep", "retention"):
            for _ in range(2):
                await _load(ROOT / "functions" / name).run(database, settings)
        left = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
        assert direct.execute(left).fetchone() == (0,)


def test_b34_migrations_through_a_transaction_pooler_leave_no_lock(pooler: Pooler, postgres: Any) -> None:
    postgres.create_database("pooled_migrations")
    url = pooler.url(postgres.url("pooled_migrations"))
    assert migrate(url, ROOT / "migrations")[0] == "0001_core.sql"
    assert migrate(url, ROOT / "migrations") == []
    with psycopg.connect(postgres.url("pooled_migrations"), autocommit=True) as direct:
        assert direct.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() == (0,)
