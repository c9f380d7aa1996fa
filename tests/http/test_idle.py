"""What a service costs that has nothing to do: ten minutes of one connected worker, counted call by call (docs/operations.md)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from interlock_core.db import Database, Row, Step
from interlock_core.settings import Settings
from service import _load
from support.clock import Clock
from support.play import Play
from template import ROOT, _read_rate, read_template

pytestmark = pytest.mark.in_process

MINUTES = 10
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


class Counting(Database):
    """Counts statements."""

    statements = 0

    async def run(self, *steps: Step, notify: Step | None = None) -> list[list[Row]]:
        self.statements += len(steps) + (notify is not None)
        return await super().run(*steps, notify=notify)


@pytest.fixture(params=["zero", "small", "ha"])
def profile(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def settings(database_url: str, profile: str) -> Settings:
    stay = float(read_template()["Mappings"]["Profiles"][profile]["SweepStay"])
    stream = "" if profile == "zero" else "https://stream.test"
    return Settings(database_url=database_url, stream_url=stream, sweep_stay_seconds=stay)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Counting]:
    opened = Counting(database_url)
    yield opened
    await opened.close()


def stated(profile: str) -> tuple[int, int]:
    """(invocations, statements) in ten idle minutes, as the page states them."""
    found = re.search(rf"^\| \*{profile}\* \| (\d+) \| (\d+) \|", PAGE, re.MULTILINE)
    assert found is not None, f"docs/operations.md states no idle figures of {profile}"
    return int(found[1]), int(found[2])


async def test_ten_idle_minutes_cost_what_the_page_says(
    play: Play, clock: Clock, database: Counting, settings: Settings, profile: str
) -> None:
    sweep = _load(ROOT / "functions" / "sweep").run
    rate = _read_rate(
        {"Fn::FindInMap": ["Profiles", "", "Sweep"]}, {"Profiles": {profile: read_template()["Mappings"]["Profiles"][profile]}}
    )
    clock.hold()
    handler = {"type": "demo/hello", "schemaVersion": 1, "effectSafety": "pure"}
    await play.http.worker.put("/v1/workers/tester", json={"instanceId": "one", "handlers": [handler]})
    # An hour before: the interval has stretched, and the bookkeeping of the start is done.
    for _ in range(20):
        clock.advance(60)
        await play.http.worker.post("/v1/claims", json=play.claim_body())
    await sweep(database, settings)
    database.statements = invocations = 0
    now, claim_at, sweep_at, end = 0.0, 0.0, rate, MINUTES * 60.0
    while (due := min(claim_at, sweep_at)) < end:
        clock.advance(due - now)
        now = due
        invocations += 1
        if claim_at == due:
            # As a function of another environment would: it remembers no key for longer than two seconds.
            play.http._app.state.keyring = None
            answer: dict[str, Any] = (await play.http.worker.post("/v1/claims", json=play.claim_body())).json()
            assert answer["attempts"] == []
            claim_at = now + answer["pollAfterSeconds"]
        else:
            found = await sweep(database, settings)
            assert found == {"idle": True}
            sweep_at = now + rate
    assert invocations <= stated(profile)[0]
    assert database.statements <= stated(profile)[1]


async def test_a_sweep_of_nothing_is_one_statement(play: Play, clock: Clock, database: Counting, settings: Settings) -> None:
    sweep = _load(ROOT / "functions" / "sweep").run
    assert (await sweep(database, settings))["idle"] is False  # the first of a new service keeps its books
    database.statements = 0
    assert await sweep(database, settings) == {"idle": True}
    assert database.statements == 1
    task = await play.submit()
    assert (await sweep(database, settings))["idle"] is False
    await play.cancel(task["id"])
    clock.advance(200)
    await sweep(database, settings)  # counts the outcome
    clock.advance(200)
    await sweep(database, settings)
    assert await sweep(database, settings) == {"idle": True}
    await play.submit(delaySeconds=3600)
    assert (await sweep(database, settings))["idle"] is False
