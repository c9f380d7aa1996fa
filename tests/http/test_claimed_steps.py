"""What a claim brings fits into an answer, whatever the steps of its tasks hold."""

from __future__ import annotations

import pytest

from support.play import Json, Play

FAILED = """json_build_object('code', 'BAD', 'message', repeat('x', 16000))::text"""


async def _keep(play: Play, attempt: Json, name: str, error: str, count: int) -> None:
    """Steps that failed for good, stored without asking for each."""
    async with play.http._app.state.database.connection() as connection:
        await connection.execute(
            "INSERT INTO steps (task_id, name, kind, seq, outcome_seq, status, final, effect_safety, reconciles, tries, error)"
            f" SELECT %s, {name} || n, 'step', n + 10, n + 10, 'failed', true, 'pure', false, 1, {error} FROM generate_series(1, %s) n",
            (attempt["taskId"], count),
        )
        await connection.execute("UPDATE tasks SET steps_stored = %s WHERE id = %s", (count, attempt["taskId"]))


@pytest.mark.parametrize(
    ("name", "error", "count"), [("'step'", FAILED, 70), ("repeat(chr(128512), 250)", "'{}'", 2_000)], ids=["errors", "names"]
)
async def test_steps_that_do_not_fit_into_the_answer_are_read(play: Play, name: str, error: str, count: int) -> None:
    for _ in range(8):
        await play.submit()
    for attempt in await play.claim(slots=8):
        await _keep(play, attempt, name, error, count)
        await play.complete(attempt, "retryable", error={}, retryAfterSeconds=0)
    again = await play.claim(slots=8, claim_id="all")
    assert len(again) == 8
    assert [a["taskId"] for a in await play.claim(slots=8, claim_id="all")] == [a["taskId"] for a in again]
    again = await play.claim(slots=8, claim_id="all")  # the token that counts
    cut = next(attempt for attempt in again if "stepsCursor" in attempt)
    found, cursor = len(cut["steps"]), cut["stepsCursor"]
    lease = {"X-Fence": str(cut["fence"]), "X-Lease-Token": cut["leaseToken"]}
    while cursor:
        path = f"/v1/tasks/{cut['taskId']}/attempts/{cut['attemptId']}/steps"
        page = (await play.http.worker.get(path, params={"cursor": cursor, "limit": 200}, headers=lease)).json()
        found, cursor = found + len(page["items"]), page["nextCursor"]
    assert found == count
