"""Cancel racing claim and complete: one of them wins, and the row says which (B20)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sql.rows import Rows
from support.play import Play


async def _submit(play: Play, count: int) -> list[str]:
    task = {"type": "demo/hello", "schemaVersion": 1, "input": {}}
    answer = await play.http.producer.post("/v1/tasks/batch", json={"tasks": [task] * count})
    assert answer.status_code == 201, answer.text
    return [item["id"] for item in answer.json()["items"]]


@pytest.mark.parametrize("count", [120, pytest.param(500, marks=pytest.mark.slow)])
async def test_b20_cancel_racing_claim_ends_in_one_of_two_ways(play: Play, rows: Rows, count: int) -> None:
    ids = await _submit(play, count)
    claimed: dict[str, dict[str, Any]] = {}
    cancelled: dict[str, dict[str, Any]] = {}

    async def claim(name: str) -> None:
        while found := await play.claim(slots=3, instance=name):
            claimed.update({a["taskId"]: a for a in found})

    async def cancel(some: list[str]) -> None:
        for task in some:
            cancelled[task] = await play.cancel(task)

    await asyncio.gather(claim("one"), claim("two"), cancel(ids[0::2]), cancel(ids[1::2][::-1]))
    assert len(cancelled) == count
    assert claimed, "every cancel came before the first claim"
    for task in ids:
        answer, kinds = cancelled[task], rows.kinds(task)
        if task not in claimed:
            assert (answer["status"], kinds) == ("cancelled", ["submitted", "cancelled"])
        else:
            assert (answer["status"], answer["cancelRequested"]) == ("running", True)
            assert kinds == ["submitted", "claimed", "cancel-requested"]
    attempts = list(claimed.values())
    body = {"workerId": "tester", "instanceId": "one", "attempts": []}
    for start in range(0, len(attempts), 200):
        body["attempts"] = [
            {k: a[k] for k in ("taskId", "attemptId", "fence", "leaseToken")} for a in attempts[start : start + 200]
        ]
        beats = (await play.http.worker.post("/v1/attempts/heartbeat", json=body)).json()["attempts"]
        assert {beat["stop"] for beat in beats} == {"cancel"}
    obeyed = [(await play.complete(a, "cancelled"))["taskStatus"] for a in attempts[:10]]
    ignored = [(await play.complete(a, result=1))["taskStatus"] for a in attempts[10:20]]
    assert set(obeyed) == {"cancelled"}
    assert set(ignored) <= {"succeeded"}


async def test_b20_cancel_racing_complete_never_erases_a_result(play: Play, rows: Rows) -> None:
    ids = await _submit(play, 60)
    attempts = await play.claim(slots=60)
    assert len(attempts) == 60
    answers: dict[str, int] = {}

    async def complete(some: list[dict[str, Any]]) -> None:
        for attempt in some:
            assert (await play.complete(attempt, result={"task": attempt["taskId"]}))["taskStatus"] == "succeeded"

    async def cancel(some: list[str]) -> None:
        for task in some:
            answers[task] = (await play.cancel_raw(task)).status_code

    await asyncio.gather(complete(attempts[::2]), complete(attempts[1::2]), cancel(ids[::2]), cancel(ids[1::2]))
    for task in ids:
        row, kinds = rows.task(task), rows.kinds(task)
        assert (row["status"], row["result"]) == ("succeeded", f'{{"task":"{task}"}}')
        requested = answers[task] == 200
        assert answers[task] in (200, 409)
        assert kinds == ["submitted", "claimed", *(["cancel-requested"] if requested else []), "succeeded"]
