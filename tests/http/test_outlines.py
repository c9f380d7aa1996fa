"""`include=steps,children` tells what is stored without reading what it holds, and fits into an answer whatever that is."""

from __future__ import annotations

from typing import Any

import pytest

from interlock_core.db import Row, Step
from support.play import Play
from support.runs import Runs


async def test_an_outline_reads_no_outputs_and_results(play: Play, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = await play.run()
    await runs.step(attempt, "step", output="x" * 250_000)
    await runs.child(attempt, "kid")
    await runs.end_child(result="x" * 250_000)
    database = play.http._app.state.database
    read: list[Row] = []
    run = database.run

    async def watch(*calls: Step, **options: Any) -> list[list[Row]]:
        found: list[list[Row]] = await run(*calls, **options)
        read.extend(row for call, rows in zip(calls, found, strict=True) if call.name.startswith("steps.") for row in rows)
        return found

    monkeypatch.setattr(database, "run", watch)
    view = (await play.http.producer.get(f"/v1/tasks/{attempt['taskId']}?include=steps,children")).json()
    assert [step["name"] for step in view["steps"]] == ["step", "kid"]
    assert [child["status"] for child in view["children"]] == ["succeeded"]
    assert len(read) == 3
    assert max(len(str(row)) for row in read) < 1_000


async def test_an_outline_of_long_errors_ends_where_the_answer_would(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    database = play.http._app.state.database
    async with database.connection() as connection:
        await connection.execute(
            "INSERT INTO steps (task_id, name, kind, seq, outcome_seq, status, final, effect_safety, reconciles, tries, error)"
            " SELECT %s, 's' || n, 'step', n + 10, n + 10, 'failed', true, 'pure', false, 1,"
            """ json_build_object('code', 'BAD', 'message', repeat('x', 16000))::text FROM generate_series(1, 500) n""",
            (attempt["taskId"],),
        )
    answer = await play.http.producer.get(f"/v1/tasks/{attempt['taskId']}?include=steps")
    assert answer.status_code == 200, answer.text
    assert 100 < len(answer.json()["steps"]) < 500
