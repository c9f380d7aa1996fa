"""A run that waits often has more attempts than its view tells."""

from __future__ import annotations

from support.play import Play
from support.runs import Runs


async def test_the_view_of_a_long_run_tells_its_latest_attempts(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    database = play.http._app.state.database
    async with database.connection() as connection:
        await connection.execute(
            "INSERT INTO journal (task_id, seq, at, kind, attempt_id, data) SELECT task_id, n, at, kind, gen_random_uuid(), data"
            " FROM journal, generate_series(3, 1200) n WHERE kind = 'claimed' AND task_id = %s",
            (attempt["taskId"],),
        )
        await connection.execute("UPDATE tasks SET journal_seq = 1200 WHERE id = %s", (attempt["taskId"],))
    await runs.suspend(attempt, afterSeconds=0)
    again = await runs.again()
    view = (await play.http.producer.get(f"/v1/tasks/{attempt['taskId']}?include=attempts")).json()
    assert view["attemptList"][-1]["id"] == again["attemptId"] == view["attempt"]["id"]
    assert len(view["attemptList"]) == 999  # and the event that ended the first one
