"""Hints on the channel `interlock`: small, one per batch, never a reason to fail (B46)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from interlock_core import hints
from interlock_core.db import Statement
from support.clock import Clock
from support.play import Play


class Heard:
    """What arrives on the channel."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        connection.execute("LISTEN interlock")

    def take(self) -> list[str]:
        """The payloads since the last call."""
        self._connection.execute("SELECT")  # a round trip: what was sent before it is here after it
        return [notice.payload for notice in self._connection.notifies(timeout=0)]


@pytest.fixture
def heard(database_url: str) -> Iterator[Heard]:
    """A raw listener on this test's database."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield Heard(connection)


async def test_b46_a_batch_over_many_long_types_sends_one_small_hint(play: Play, heard: Heard) -> None:
    tasks = [{"type": f"{'g' * 60}/{'n' * 56}{n % 300:03}", "schemaVersion": 1, "input": n} for n in range(1000)]
    answer = await play.http.producer.post("/v1/tasks/batch", json={"tasks": tasks})
    assert answer.status_code == 201, answer.text
    assert len(answer.json()["items"]) == 1000
    (payload,) = heard.take()
    assert len(payload.encode()) <= 7_000
    assert json.loads(payload) == {"p": "test", "ready": "*"}


async def test_b46_a_batch_over_few_types_names_them(play: Play, heard: Heard) -> None:
    tasks = [{"type": f"demo/t{n % 3}", "schemaVersion": 1, "input": n, "pool": "é" * 100} for n in range(30)]
    assert (await play.http.producer.post("/v1/tasks/batch", json={"tasks": tasks})).status_code == 201
    (payload,) = heard.take()
    assert sorted(json.loads(payload)["ready"]) == [[f"demo/t{n}@1", "é" * 100, 10, 0.0] for n in range(3)]


async def test_b46_hints_count_bytes_and_not_characters(play: Play, heard: Heard) -> None:
    tasks = [{"type": f"demo/t{n}", "schemaVersion": 1, "input": n, "pool": "😀" * 250} for n in range(7)]  # 7 × 1,000 bytes
    assert (await play.http.producer.post("/v1/tasks/batch", json={"tasks": tasks})).status_code == 201
    assert [json.loads(payload)["ready"] for payload in heard.take()] == ["*"]


async def test_b46_progress_logs_and_renewals_send_none(play: Play, heard: Heard) -> None:
    attempt = await play.run()
    heard.take()
    await play.heartbeat(attempt, progress={"percent": 1})
    await play.heartbeat(attempt, logs=[{"seq": 1, "level": "info", "message": "x"}])
    await play.heartbeat(attempt)
    assert heard.take() == []


async def test_b46_each_transition_sends_what_others_wait_for(play: Play, heard: Heard, clock: Clock) -> None:
    task = await play.submit(delaySeconds=30)
    assert [json.loads(p)["ready"] for p in heard.take()] == [[["demo/hello@1", "default", 1, 30.0]]]
    clock.advance(30)
    (attempt,) = await play.claim()
    assert heard.take() == []
    await play.cancel(task["id"])
    assert [json.loads(p)["cancel"] for p in heard.take()] == [[["tester", "one", task["id"], attempt["attemptId"]]]]
    await play.complete(attempt, "cancelled")
    assert [json.loads(p)["done"] for p in heard.take()] == [[task["id"]]]


@pytest.mark.parametrize("broken", ["1 / 0", "pg_notify('interlock', repeat('x', 9000))"])
async def test_b46_a_failing_hint_fails_nothing(play: Play, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    text = f"SELECT {broken}, %(payloads)s::text[]"
    monkeypatch.setitem(hints.sql._found, "send", Statement("hints.send", text, prepare=True))
    for _ in range(2):  # the connection goes on too
        attempt = await play.run(concurrency={"key": "K", "limit": 1})
        assert (await play.complete(attempt, result=1))["taskStatus"] == "succeeded"
        waiting = await play.submit(delaySeconds=5)
        assert (await play.cancel(waiting["id"]))["status"] == "cancelled"
        attempt = await play.run()
        await play.cancel(attempt["taskId"])
        assert (await play.release(attempt))["taskStatus"] == "cancelled"
