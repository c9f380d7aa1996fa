"""A long transaction elsewhere pins the vacuum horizon (case B42): claims read more for it, but stay bounded and recover."""

from __future__ import annotations

import time

import psycopg
import pytest

from sql.explained import Explained
from sql.rows import Rows
from support.play import Play
from support.waiting import wait_until_async

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CLAIM = "claim.pick"
LIVES, RENEWALS = 600, 10


async def _live(play: Play, count: int) -> None:
    """So many tasks, each submitted, claimed, renewed a few times and completed: every one leaves dead versions of its row."""
    plain = {"type": "demo/hello", "schemaVersion": 1, "input": 1}
    for _ in range(count // 50):
        assert (await play.http.producer.post("/v1/tasks/batch", json={"tasks": [plain] * 50})).status_code in (200, 201)
        attempts = await play.claim(slots=50)
        assert len(attempts) == 50
        for _ in range(RENEWALS):
            for attempt in attempts[:5]:
                await play.heartbeat(attempt)
        for attempt in attempts:
            assert (await play.complete(attempt, result=1))["taskStatus"] == "succeeded"


async def _blocks(play: Play, explained: Explained) -> int:
    """What one claim reads."""
    await play.submit()
    database, play.http._app.state.database = play.http._app.state.database, explained
    assert len(await play.claim()) == 1
    play.http._app.state.database = database
    return explained.plan(CLAIM).blocks


async def test_b42_claims_stay_bounded_under_a_snapshot_and_recover_by_themselves(
    play: Play, rows: Rows, explained: Explained, database_url: str
) -> None:
    await _live(play, 100)
    idle = await _blocks(play, explained)
    with psycopg.connect(database_url, application_name="a long report") as holder:
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute("SET idle_in_transaction_session_timeout = 0")  # another role's: ours would be ended after 10 s
        holder.execute("SELECT count(*) FROM tasks")
        started = time.monotonic()
        await _live(play, LIVES)
        held = await _blocks(play, explained)
        # Each dead entry costs at most its look-up once: a hint in the index, or a page of the heap.
        assert held <= 4 * idle + LIVES // 2, (idle, held)
        doctor = (await play.http.operator.get("/v1/doctor")).json()
        assert doctor["oldestTransactionSeconds"] >= time.monotonic() - started - 1
        assert doctor["oldestTransaction"]["application"] == "a long report"
    # What autovacuum would do when it comes by: nobody has to do more.
    await wait_until_async(
        lambda: rows.value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'a long report'") == 0
    )
    rows.all("VACUUM tasks")
    after = await _blocks(play, explained)
    assert after <= 2 * idle + 50, (idle, held, after)
