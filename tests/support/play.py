"""One producer, one worker and one operator over the in-process service, in the protocol's own words."""

from __future__ import annotations

import itertools
from typing import Any

import httpx
import pytest

from support.api import Http

Json = dict[str, Any]


def ids(attempt: Json) -> Json:
    """The four fields that every report carries."""
    return {name: attempt[name] for name in ("taskId", "attemptId", "fence", "leaseToken")}


def refused(item: Json) -> str:
    """The code of a refused item, which says what to do next."""
    code: str = item["error"]["code"]
    assert item["error"]["next"]
    return code


class Play:
    """Calls with sane defaults; every method asserts success and returns the body, `…_raw` ones the answer."""

    def __init__(self, http: Http) -> None:
        self.http = http
        self._numbers = itertools.count(1)

    async def submit_raw(self, **fields: Any) -> httpx.Response:
        return await self.http.producer.post("/v1/tasks", json={"type": "demo/hello", "schemaVersion": 1, "input": {}, **fields})

    async def submit(self, **fields: Any) -> Json:
        answer = await self.submit_raw(**fields)
        assert answer.status_code in (200, 201), answer.text
        found: Json = answer.json()
        return found

    def claim_body(self, *, safety: str = "idempotent", slots: int = 1, instance: str = "one", **fields: Any) -> Json:
        handler = {"type": fields.pop("type", "demo/hello"), "schemaVersion": 1, "effectSafety": safety}
        if fields.pop("reconciles", False):
            handler["reconciles"] = True
        return {
            "workerId": "tester",
            "instanceId": instance,
            "claimId": fields.pop("claim_id", f"claim-{next(self._numbers)}"),
            "slots": slots,
            "handlers": [handler],
            **fields,
        }

    async def claim(self, **fields: Any) -> list[Json]:
        answer = await self.http.worker.post("/v1/claims", json=self.claim_body(**fields))
        assert answer.status_code == 200, answer.text
        found: list[Json] = answer.json()["attempts"]
        return found

    async def run(self, *, safety: str = "idempotent", **fields: Any) -> Json:
        """Submits one task and claims it: the claim's item."""
        task = await self.submit(**fields)
        attempts = await self.claim(safety=safety)
        assert [a["taskId"] for a in attempts] == [task["id"]]
        return attempts[0]

    async def complete(self, attempt: Json, outcome: str = "succeeded", **fields: Any) -> Json:
        """One completion's item: {attemptId, taskStatus, duplicate} or {attemptId, error}."""
        item = {**ids(attempt), "outcome": outcome, **fields}
        answer = await self.http.worker.post("/v1/attempts/complete", json={"completions": [item]})
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()["completions"][0]
        return found

    async def heartbeat(self, attempt: Json, **fields: Any) -> Json:
        body = {"workerId": "tester", "instanceId": "one", "attempts": [{**ids(attempt), **fields}]}
        answer = await self.http.worker.post("/v1/attempts/heartbeat", json=body)
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()["attempts"][0]
        return found

    async def release(self, attempt: Json, **fields: Any) -> Json:
        answer = await self.http.worker.post("/v1/attempts/release", json={"attempts": [{**ids(attempt), **fields}]})
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()["attempts"][0]
        return found

    async def cancel_raw(self, task_id: str) -> httpx.Response:
        return await self.http.producer.post(f"/v1/tasks/{task_id}/cancel", json={"reason": "not needed"})

    async def cancel(self, task_id: str) -> Json:
        answer = await self.cancel_raw(task_id)
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        return found

    async def resolve_raw(self, task_id: str, as_: str, attempt_id: str, **fields: Any) -> httpx.Response:
        body = {"as": as_, "attemptId": attempt_id, "note": "looked it up", **fields}
        return await self.http.operator.post(f"/v1/tasks/{task_id}/resolve", json=body)

    async def resolve(self, task_id: str, as_: str, attempt_id: str, **fields: Any) -> Json:
        answer = await self.resolve_raw(task_id, as_, attempt_id, **fields)
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        return found

    async def get(self, task_id: str) -> Json:
        answer = await self.http.producer.get(f"/v1/tasks/{task_id}")
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        return found

    async def kinds(self, task_id: str) -> list[str]:
        """The kinds of the task's events, in order, whose seqs are gapless from 1."""
        events: list[Json] = (await self.http.producer.get(f"/v1/tasks/{task_id}/journal?limit=200")).json()["items"]
        assert [e["seq"] for e in events] == list(range(1, len(events) + 1))
        return [e["kind"] for e in events]

    async def sweep(self) -> Json:
        from interlock_core import leases
        from interlock_core.settings import Settings

        app = self.http._app
        return await leases.sweep(app.state.database, Settings())


@pytest.fixture
def play(http: Http) -> Play:
    """A producer, a worker and an operator on this test's own service."""
    return Play(http)
