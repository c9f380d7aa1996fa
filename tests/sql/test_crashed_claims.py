"""A claim that dies between any two of its statements (B05)."""

from __future__ import annotations

import pytest

from interlock_core import testpoint
from sql.rows import Rows
from support.clock import Clock
from support.play import Play

BEFORE = ["claim.enter", "claim.remember", "expire.lapsed", "promote.due", "claim.lock_keys", "claim.pick", "claim.outlook"]
KEYED = {"concurrency": {"key": "K", "limit": 1}, "retry": {"initialDelaySeconds": 0}}


def _crash_at(name: str, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed process leaves behind: the server loses the connection in the middle."""

    async def crash() -> None:
        testpoint.armed.pop(name)
        rows.all(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND state = 'idle in transaction'"
        )
        if name.endswith(".committed"):
            raise ConnectionResetError

    monkeypatch.setitem(testpoint.armed, name, crash)


@pytest.mark.parametrize("name", BEFORE)
async def test_b05_a_claim_that_dies_before_its_commit_leaves_the_task_queued(
    play: Play, rows: Rows, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    first, second = await play.submit(**KEYED), await play.submit(**KEYED)
    _crash_at(name, rows, monkeypatch)
    answer = await play.http.worker.post("/v1/claims", json=play.claim_body())
    assert (answer.status_code, answer.json()["code"], answer.json()["retryable"]) == (503, "UNAVAILABLE", True)
    assert not testpoint.armed
    assert rows.all("SELECT status, fence FROM tasks") == [("queued", 0), ("queued", 0)]
    assert [a["taskId"] for a in await play.claim(slots=2)] == [first["id"]]  # the key's one slot was free
    assert rows.kinds(first["id"]) == ["submitted", "claimed"]
    assert rows.kinds(second["id"]) == ["submitted"]


async def test_b05_a_claim_that_dies_after_its_commit_is_leased_and_repeats(
    play: Play, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await play.submit(**KEYED)
    _crash_at("claim.outlook.committed", rows, monkeypatch)
    body = play.claim_body()
    await play.http.worker.post("/v1/claims", json=body)
    assert not testpoint.armed
    assert rows.task(task["id"])["status"] == "running"
    again = (await play.http.worker.post("/v1/claims", json=body)).json()["attempts"]
    assert [(a["taskId"], a["fence"]) for a in again] == [(task["id"], 1)]
    assert (await play.complete(again[0], result=1))["taskStatus"] == "succeeded"


async def test_b05_a_claim_that_nobody_repeats_frees_its_key_with_its_lease(
    play: Play, rows: Rows, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, waiting = await play.submit(**KEYED), await play.submit(**KEYED)
    _crash_at("claim.outlook.committed", rows, monkeypatch)
    await play.http.worker.post("/v1/claims", json=play.claim_body())
    assert await play.claim(instance="two", slots=5) == []
    clock.advance(61)
    await play.sweep()
    found = await play.claim(instance="two", slots=5)
    assert len(found) == 1  # one of the two: the limit holds again
    assert found[0]["taskId"] in (task["id"], waiting["id"])
