"""Schedules in a few words: put them, let time pass, fire what is due, see which tasks came of it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from interlock_core import firings
from interlock_core.settings import Settings
from support.api import Http
from support.clock import Clock

Json = dict[str, Any]


class Timetable:
    """Calls with sane defaults as a producer; every method asserts success and returns the body, `…_raw` ones the answer."""

    def __init__(self, http: Http, clock: Clock) -> None:
        self.http, self.clock = http, clock

    async def put_raw(self, name: str = "nightly", owner: str | None = None, **fields: Any) -> httpx.Response:
        body = {"type": "demo/hello", "schemaVersion": 1, "input": {}, **fields}
        return await self.http.producer.put(f"/v1/schedules/{name}", json=body, params={"owner": owner} if owner else {})

    async def put(self, name: str = "nightly", **fields: Any) -> Json:
        return read(await self.put_raw(name, **fields))

    async def get(self, name: str = "nightly", owner: str | None = None) -> Json:
        return read(await self.http.producer.get(f"/v1/schedules/{name}", params={"owner": owner} if owner else {}))

    async def act(self, action: str, name: str = "nightly", **body: Any) -> Json:
        return read(await self.http.producer.post(f"/v1/schedules/{name}/{action}", json=body))

    async def fire(self) -> Json:
        """One pass of the ticker over what is due; its counts."""
        return dict(await firings.fire_due(self.http._app.state.database, Settings()))

    async def tick(self, seconds: float) -> Json:
        """Let time pass, then fire."""
        self.clock.advance(seconds)
        return await self.fire()

    async def tasks(self, name: str = "nightly", **filters: Any) -> list[Json]:
        """The tasks of a schedule, oldest due first."""
        answer = await self.http.producer.get("/v1/tasks", params={"scheduleName": name, "limit": 200, **filters})
        return sorted(read(answer)["items"], key=lambda task: (task["dueAt"], task["id"]))

    async def due(self, name: str = "nightly", **filters: Any) -> list[str]:
        """The due instants of a schedule's tasks, in order, to the minute."""
        return [task["dueAt"][:16] for task in await self.tasks(name, **filters)]


def read(answer: httpx.Response) -> Json:
    assert answer.status_code in (200, 201), answer.text
    found: Json = answer.json()
    return found


@pytest.fixture
def timetable(http: Http, clock: Clock) -> Timetable:
    """Schedules of this test's own service, whose clock stands still at 2026-03-02 (a Monday), 10:30 UTC."""
    clock.hold_at("2026-03-02T10:30:00Z")
    return Timetable(http, clock)
