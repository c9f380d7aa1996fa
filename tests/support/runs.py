"""Steps, children, signals and waits of one attempt, in the protocol's own words."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from support.play import Json, Play, ids


class Runs:
    """The calls of durable runs over `play`; every method asserts success and returns the body, `…_raw` ones the answer."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self._worker = play.http.worker
        self._producer = play.http.producer

    async def step_raw(self, attempt: Json, name: str, status: str = "succeeded", **fields: Any) -> httpx.Response:
        body = {**ids(attempt), "name": name, "status": status, **fields}
        return await self._worker.post(f"/v1/tasks/{attempt['taskId']}/attempts/{attempt['attemptId']}/steps", json=body)

    async def step(self, attempt: Json, name: str, status: str = "succeeded", **fields: Any) -> Json:
        return _body(await self.step_raw(attempt, name, status, **fields))

    async def open(self, attempt: Json, name: str, **fields: Any) -> Json:
        """A started non-idempotent step."""
        return await self.step(attempt, name, "started", effectSafety="non-idempotent", **fields)

    async def child_raw(self, attempt: Json, name: str, **fields: Any) -> httpx.Response:
        body = {**ids(attempt), "name": name, "type": "demo/child", "schemaVersion": 1, "input": {"of": name}, **fields}
        return await self._worker.post(f"/v1/tasks/{attempt['taskId']}/attempts/{attempt['attemptId']}/children", json=body)

    async def child(self, attempt: Json, name: str, **fields: Any) -> str:
        task_id: str = _body(await self.child_raw(attempt, name, **fields))["taskId"]
        return task_id

    async def suspend(self, attempt: Json, name: str = "wait", **wait: Any) -> Json:
        """The verdict of a suspension."""
        return await self.play.complete(attempt, "suspended", wait={"name": name, **wait})

    async def signal_raw(self, task_id: str, name: str, payload: Any = None, key: str = "one") -> httpx.Response:
        return await self._producer.post(
            f"/v1/tasks/{task_id}/signals", json={"name": name, "payload": payload, "signalKey": key}
        )

    async def signal(self, task_id: str, name: str, payload: Any = None, key: str = "one") -> Json:
        return _body(await self.signal_raw(task_id, name, payload, key))

    async def steps(self, task_id: str) -> dict[str, Json]:
        """The stored steps by name."""
        found = _body(await self._producer.get(f"/v1/tasks/{task_id}/steps?limit=200"))
        return {step["name"]: step for step in found["items"]}

    async def children(self, task_id: str) -> dict[str, Json]:
        """The children by name."""
        found = _body(await self._producer.get(f"/v1/tasks/{task_id}/children?limit=200"))
        return {child["name"]: child for child in found["items"]}

    async def again(self, **fields: Any) -> Json:
        """The one attempt that a claim brings now."""
        (attempt,) = await self.play.claim(**fields)
        return attempt

    async def end_child(self, outcome: str = "succeeded", **fields: Any) -> Json:
        """Claims the next child and ends it."""
        return await self.play.complete(await self.again(type="demo/child"), outcome, **fields)


def _body(answer: httpx.Response) -> Json:
    assert answer.status_code in (200, 201), answer.text
    found: Json = answer.json()
    return found


@pytest.fixture
def runs(play: Play) -> Runs:
    """The calls of durable runs on this test's own service."""
    return Runs(play)
