"""A worker's key that is narrowed reports of attempts inside its narrowing only, whatever lease token it holds."""

from __future__ import annotations

import random
import re
from fnmatch import fnmatchcase
from typing import Any

import httpx
import pytest

from interlock_core.db import Database, Statement
from interlock_core.keys import Key
from support.clock import Clock
from support.play import Json, Play, ids, refused
from support.runs import Runs

NARROWINGS: list[Json] = [{"types": ["audio/*"]}, {"pools": ["gpu"]}, {"workerIds": ["other"]}]
WHO = {"workerId": "tester", "instanceId": "one"}


async def narrowed(play: Play, **fields: Any) -> httpx.AsyncClient:
    return play.http.use(await play.http.make_key("task-worker", **fields))


@pytest.mark.parametrize("narrowing", NARROWINGS, ids=lambda n: next(iter(n)))
async def test_every_report_outside_the_narrowing_is_refused_and_changes_nothing(play: Play, narrowing: Json) -> None:
    attempt = await play.run()
    outside = await narrowed(play, **narrowing)
    before = await play.get(attempt["taskId"])
    single = f"/v1/tasks/{attempt['taskId']}/attempts/{attempt['attemptId']}"
    child = {"type": "audio/cut", "schemaVersion": 1, "input": {}, "pool": "gpu"}
    calls: list[tuple[str, Json]] = [
        (f"{single}/heartbeat", {"progress": {"percent": 50}}),
        (f"{single}/complete", {"outcome": "succeeded"}),
        (f"{single}/complete", {"outcome": "suspended", "wait": {"name": "w", "signal": "go"}}),
        (f"{single}/release", {}),
        (f"{single}/steps", {"name": "s", "status": "succeeded", "output": 1}),
        (f"{single}/children", {"name": "c", **child}),
    ]
    for path, fields in calls:
        answer = await outside.post(path, json={**ids(attempt), **fields})
        assert (answer.status_code, answer.json()["code"], answer.json()["retryable"]) == (403, "SCOPE_DENIED", False), path
        assert "worker key that includes it" in answer.json()["next"]
    lease = {"X-Fence": str(attempt["fence"]), "X-Lease-Token": attempt["leaseToken"]}
    for page in ("steps", "children", "signals"):
        answer = await outside.get(f"{single}/{page}", headers=lease)
        assert (answer.status_code, answer.json()["code"]) == (403, "SCOPE_DENIED"), page
    assert await play.get(attempt["taskId"]) == before
    assert await play.kinds(attempt["taskId"]) == ["submitted", "claimed"]
    assert (await play.complete(attempt))["taskStatus"] == "succeeded"


async def test_in_a_batch_it_is_the_item_that_is_refused(play: Play) -> None:
    beyond = await play.run()
    await play.submit(type="audio/cut")
    (within,) = await play.claim(type="audio/cut")
    key = await narrowed(play, types=["audio/*"])
    beats = {**WHO, "attempts": [ids(beyond), ids(within)]}
    answers = (await key.post("/v1/attempts/heartbeat", json=beats)).json()["attempts"]
    assert refused(answers[0]) == "SCOPE_DENIED"
    assert answers[1]["stop"] is None
    done = [{**ids(a), "outcome": "succeeded"} for a in (beyond, within)]
    answers = (await key.post("/v1/attempts/complete", json={"completions": done})).json()["completions"]
    assert refused(answers[0]) == "SCOPE_DENIED"
    assert answers[1]["taskStatus"] == "succeeded"
    given = (await key.post("/v1/attempts/release", json={"attempts": [ids(beyond)]})).json()["attempts"]
    assert refused(given[0]) == "SCOPE_DENIED"
    assert (await play.get(beyond["taskId"]))["status"] == "running"


@pytest.mark.in_process
async def test_a_narrowed_key_costs_no_round_trip(play: Play, database: Database) -> None:
    attempt = await play.run()
    beat = {**WHO, "attempts": [ids(attempt)]}
    counts = []
    for key in (play.http.worker, await narrowed(play, types=["demo/*"], pools=["default"], workerIds=["tester"])):
        await key.post("/v1/attempts/heartbeat", json=beat)
        before = database.round_trips
        assert (await key.post("/v1/attempts/heartbeat", json=beat)).json()["attempts"][0]["stop"] is None
        counts.append(database.round_trips - before)
    assert counts[0] == counts[1]


async def test_a_claim_outside_the_narrowing_is_neither_repeated_nor_given_back(play: Play) -> None:
    await play.submit()
    (held,) = await play.claim(claim_id="lost")
    key = await narrowed(play, types=["audio/*"])
    again = await key.post("/v1/claims", json=play.claim_body(claim_id="lost", type="audio/cut"))
    assert again.json()["attempts"] == []
    given = (await key.post("/v1/attempts/release", json={**WHO, "claimId": "lost"})).json()["attempts"]
    assert [refused(item) for item in given] == ["SCOPE_DENIED"]
    assert (await play.complete(held))["taskStatus"] == "succeeded"
    other = await narrowed(play, workerIds=["other"])
    answer = await other.post("/v1/attempts/release", json={**WHO, "claimId": "lost"})
    assert (answer.status_code, answer.json()["code"]) == (403, "SCOPE_DENIED")


async def test_an_outcome_refused_for_its_key_is_taken_from_a_wider_one_later(play: Play, clock: Clock) -> None:
    """Nothing is lost: the lease proves as much as before, also after it ran out, and a late outcome is still kept."""
    first, second = await play.run(), await play.run()
    key = await narrowed(play, types=["audio/*"])
    clock.advance(61)
    await play.sweep()
    for attempt in (first, second):
        answer = await key.post("/v1/attempts/complete", json={"completions": [{**ids(attempt), "outcome": "succeeded"}]})
        assert refused(answer.json()["completions"][0]) == "SCOPE_DENIED"
    assert (await play.complete(first))["taskStatus"] == "succeeded"
    # a repeat of what was taken changes nothing, and frees whoever holds it
    again = await key.post("/v1/attempts/complete", json={"completions": [{**ids(first), "outcome": "succeeded"}]})
    assert again.json()["completions"][0]["duplicate"] is True
    clock.advance(600)
    await play.sweep()
    (newer,) = await play.claim(instance="two")
    assert newer["taskId"] == second["taskId"]
    answer = await key.post("/v1/attempts/complete", json={"completions": [{**ids(second), "outcome": "succeeded"}]})
    assert refused(answer.json()["completions"][0]) == "SCOPE_DENIED"
    assert "late-report" not in await play.kinds(second["taskId"])
    assert refused(await play.complete(second)) == "STALE_ATTEMPT"
    assert "late-report" in await play.kinds(second["taskId"])


async def test_a_report_inside_every_narrowing_is_taken(play: Play, runs: Runs) -> None:
    key = await play.http.make_key("task-worker", types=["x/*", "au?io/[a-c]ut"], pools=["g.p u", "gpu"], workerIds=["tester"])
    play.http.worker = play.http.use(key)
    within = Runs(play)
    await play.submit(type="audio/cut", pool="g.p u")
    (attempt,) = await play.claim(type="audio/cut", pool="g.p u")
    assert (await play.heartbeat(attempt))["stop"] is None
    await within.step(attempt, "one", output=1)
    await within.suspend(attempt, "nap", afterSeconds=0)
    (attempt,) = await play.claim(type="audio/cut", pool="g.p u")
    assert [step["name"] for step in attempt["steps"]] == ["one", "nap"]
    assert (await play.release(attempt))["taskStatus"] == "queued"
    (attempt,) = await play.claim(type="audio/cut", pool="g.p u")
    assert (await play.complete(attempt))["taskStatus"] == "succeeded"


_fits = Statement(
    "fits",
    "SELECT t.name ~ %(scope)s AS yes FROM unnest(%(names)s::text[]) WITH ORDINALITY AS t(name, n) ORDER BY t.n",
    prepare=False,
)


async def test_the_database_judges_as_the_service_does(database: Database) -> None:
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    alphabet = "abzA-Z09._/"
    names = ["".join(draw.choices(alphabet, k=draw.randint(1, 6))) for _ in range(100)]
    for _ in range(200):
        patterns = [
            "".join(draw.choices(alphabet + "**??[]!-^\\(|+é $", k=draw.randint(1, 6))) for _ in range(draw.randint(1, 3))
        ]
        key = Key("k", "test", "task-worker", tuple(patterns), ("a b", "ü.*"), None, False)
        rows = await database.one(_fits(scope=key.scope, names=[f"{name}\na b\nworker" for name in names]))
        expected = [any(fnmatchcase(name, pattern) for pattern in patterns) for name in names]
        assert [row.yes for row in rows] == expected, (seed, patterns)
        assert [bool(re.search(key.scope or "", f"{name}\nü.*\nw")) for name in names] == expected, (seed, patterns)
        assert not re.search(key.scope or "", f"{names[0]}\nüxx\nw")


async def test_a_key_of_a_hundred_intricate_globs_still_reports(play: Play) -> None:
    attempt = await play.run()
    key = await narrowed(play, types=[*(["[!a]*" * 50 + "/*"] * 98), "*" * 255, "demo/*"])
    (answer,) = (await key.post("/v1/attempts/heartbeat", json={**WHO, "attempts": [ids(attempt)]})).json()["attempts"]
    assert answer["stop"] is None
