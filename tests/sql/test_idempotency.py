"""One key names one request: many submits at once, canonical forms, the fixed window (B21, B24, B29, B30)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from interlock_core.settings import Settings
from service import build_app
from sql.conftest import MakeDatabase
from sql.rows import Rows
from support.api import Http
from support.clock import Clock
from support.play import Play

DAY = 86_400


def _conflict(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 409, answer.text
    problem: dict[str, Any] = answer.json()
    assert problem["code"] == "IDEMPOTENCY_CONFLICT"
    assert problem["retryable"] is False
    return problem


async def test_b21_fifty_parallel_submits_of_one_key_make_one_task(play: Play, rows: Rows) -> None:
    answers = await asyncio.gather(*(play.submit_raw(idempotencyKey="k", input={"n": 1}) for _ in range(50)))
    assert sorted(a.status_code for a in answers) == [200] * 49 + [201]
    assert len({a.json()["id"] for a in answers}) == 1
    assert sum(not a.json()["deduplicated"] for a in answers) == 1
    assert rows.value("SELECT count(*) FROM tasks") == 1


async def test_b21_losers_with_another_body_are_told_so(play: Play, rows: Rows) -> None:
    bodies = [{"n": n % 2} for n in range(50)]
    answers = await asyncio.gather(*(play.submit_raw(idempotencyKey="k", input=body) for body in bodies))
    taken = [a for a in answers if a.status_code in (200, 201)]
    assert len(taken) == 25
    assert sum(a.status_code == 201 for a in taken) == 1
    (task_id,) = {a.json()["id"] for a in taken}
    assert len({str(bodies[n]) for n, a in enumerate(answers) if a in taken}) == 1
    for answer in answers:
        if answer not in taken:
            problem = _conflict(answer)
            assert (problem["taskId"], problem["field"]) == (task_id, "input")
            assert problem["errors"][0]["pointer"] == "/input"
            assert task_id in problem["detail"]
    assert rows.value("SELECT count(*) FROM tasks") == 1


@pytest.fixture
async def second(play: Play, settings: Settings, open_database: MakeDatabase) -> AsyncIterator[Play]:
    """The same service in another process: its calls share no flight and no connection with those of `play`."""
    app = build_app(settings)
    app.state.database = open_database(size=8)
    async with Http(app) as http:
        http.producer = http.use(play.http.keys["task-producer"])
        yield Play(http)
        await http.producer.aclose()


async def test_b21_processes_that_race_for_one_key_make_one_task(play: Play, second: Play, rows: Rows) -> None:
    bodies = [{"n": n // 2 % 2} for n in range(50)]
    answers = await asyncio.gather(
        *((play, second)[n % 2].submit_raw(idempotencyKey="k", input=body) for n, body in enumerate(bodies))
    )
    taken = [n for n, a in enumerate(answers) if a.status_code in (200, 201)]
    assert sorted(answers[n].status_code for n in taken).count(201) == 1
    (task_id,) = {answers[n].json()["id"] for n in taken}
    assert len({bodies[n]["n"] for n in taken}) == 1
    assert {_conflict(a)["taskId"] for n, a in enumerate(answers) if n not in taken} == {task_id}
    assert rows.value("SELECT count(*) FROM tasks") == 1


async def test_b30_processes_that_race_across_the_expiry_make_one_task(
    play: Play, second: Play, clock: Clock, rows: Rows
) -> None:
    clock.hold()
    await play.complete(await play.run(idempotencyKey="k"), result=1)
    clock.advance(DAY + 1)
    answers = await asyncio.gather(*((play, second)[n % 2].submit_raw(idempotencyKey="k") for n in range(20)))
    assert sorted(a.status_code for a in answers) == [200] * 19 + [201]
    assert rows.value("SELECT count(*) FROM tasks") == 2


async def test_b21_parallel_batches_with_crossing_keys_do_not_deadlock(play: Play, rows: Rows) -> None:
    def batch(keys: list[int]) -> dict[str, Any]:
        return {"tasks": [{"type": "demo/hello", "schemaVersion": 1, "input": {}, "idempotencyKey": f"k{n}"} for n in keys]}

    orders = [list(range(40)), list(range(39, -1, -1)), list(range(20, 60)), list(range(59, 19, -1))] * 3
    answers = await asyncio.gather(*(play.http.producer.post("/v1/tasks/batch", json=batch(order)) for order in orders))
    assert {a.status_code for a in answers} == {201}
    assert rows.value("SELECT count(*) FROM tasks") == 60
    found: dict[int, set[str]] = {}
    for order, answer in zip(orders, answers, strict=True):
        for n, item in zip(order, answer.json()["items"], strict=True):
            found.setdefault(n, set()).add(item["id"])
    assert all(len(ids) == 1 for ids in found.values())


SAME = [
    '{"a": 1, "😀": "x", "\\uffff": [1e-7, "é"]}',
    '{"\\uffff":[0.0000001,"\\u00e9"],"\\ud83d\\ude00":"\\u0078","a":1.0}',
    ' { "😀" : "x" , "a" : 1e0 , "\\uffff" : [ 1E-7 , "é" ] } ',
    '{"😀":"x","\\uffff":[10e-8,"é"],"\\u0061":1}',
]


async def _raw(play: Play, input_text: str, key: str = "k", **fields: str) -> httpx.Response:
    more = "".join(f', "{name}": {text}' for name, text in fields.items())
    body = f'{{"type": "demo/hello", "schemaVersion": 1, "idempotencyKey": "{key}", "input": {input_text}{more}}}'
    return await play.http.producer.post("/v1/tasks", content=body.encode())


async def test_b24_one_object_as_different_text_is_one_request(play: Play, rows: Rows) -> None:
    answers = [await _raw(play, text) for text in SAME]
    assert [a.status_code for a in answers] == [201, 200, 200, 200]
    assert len({a.json()["id"] for a in answers}) == 1
    (attempt,) = await play.claim()
    assert attempt["input"] == {"a": 1, "😀": "x", "\uffff": [1e-7, "é"]}
    assert rows.value("SELECT input FROM tasks") == SAME[0]  # never re-written


EQUAL = [
    ("1", "1.0"),
    ("0", "-0"),
    ("0", "-0.0e5"),
    ("100", "1e2"),
    ("9007199254740993", "9007199254740993.0"),
    ('"\\u0000"', '"\\u0000"'),
]
DIFFERENT = [
    ("9007199254740993", "9007199254740992"),
    ("9007199254740993", "9007199254740992.0"),
    ("1", '"1"'),
    ("1", "true"),
    ("null", "{}"),
    ("0.1", "0.10000000000000001"),
    ('"é"', '"e\u0301"'),
    ("[1,2]", "[2,1]"),
    ('{"a":null}', "{}"),
]


async def test_b24_values_are_compared_by_what_they_mean(play: Play) -> None:
    for n, (first, second) in enumerate(EQUAL):
        assert (await _raw(play, first, f"equal-{n}")).status_code == 201, first
        assert (await _raw(play, second, f"equal-{n}")).status_code == 200, second
    for n, (first, second) in enumerate(DIFFERENT):
        assert (await _raw(play, first, f"different-{n}")).status_code == 201, first
        assert _conflict(await _raw(play, second, f"different-{n}"))["field"] == "input", second


async def test_b24_protocol_defaults_and_delivery_matters_do_not_count(play: Play) -> None:
    assert (await _raw(play, "{}")).status_code == 201
    same = [
        {"priority": "0", "pool": '"default"', "tags": "{}"},
        {"trace": '{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}'},
        {"delaySeconds": "null", "requireWorker": "null", "retry": "null"},
    ]
    for fields in same:
        assert (await _raw(play, "{}", **fields)).status_code == 200, fields
    for name, text in {"priority": "1", "delaySeconds": "5", "leaseSeconds": "90", "tags": '{"a": "b"}', "pool": '"gpu"'}.items():
        assert _conflict(await _raw(play, "{}", **{name: text}))["field"] == name


async def test_b29_every_creating_route_honours_the_key(play: Play, rows: Rows) -> None:
    first = await play.submit(idempotencyKey="k", input=1)
    task = {"type": "demo/hello", "schemaVersion": 1, "input": 1, "idempotencyKey": "k"}
    answer = await play.http.producer.post("/v1/tasks/batch", json={"tasks": [task, task, {**task, "idempotencyKey": "other"}]})
    items = answer.json()["items"]
    assert [item["id"] == first["id"] for item in items] == [True, True, False]
    assert [item["deduplicated"] for item in items] == [True, True, False]
    again = await play.submit(idempotencyKey="other", input=1)
    assert (again["id"], again["deduplicated"]) == (items[2]["id"], True)
    assert rows.value("SELECT count(*) FROM tasks") == 2
    answer = await play.http.producer.post(
        "/v1/tasks/batch", json={"tasks": [{**task, "idempotencyKey": "new"}, {**task, "input": 2}]}
    )
    problem = _conflict(answer)
    assert problem["errors"][0]["pointer"] == "/tasks/1/input"
    assert rows.value("SELECT count(*) FROM tasks") == 2  # all or none


async def test_b29_a_key_that_is_none_is_refused(play: Play) -> None:
    for key in ("", " ", "\u0007", "x" * 256):
        answer = await play.submit_raw(idempotencyKey=key)
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST"), key


async def test_b30_repeats_do_not_extend_the_window_of_a_settled_task(play: Play, clock: Clock) -> None:
    clock.hold()
    attempt = await play.run(idempotencyKey="k")
    await play.complete(attempt, result=1)
    for seconds in (3600, 22 * 3600):  # + 1 h, + 23 h
        clock.advance(seconds)
        again = await play.submit(idempotencyKey="k")
        assert (again["id"], again["deduplicated"], again["status"]) == (attempt["taskId"], True, "succeeded")
        _conflict(await play.submit_raw(idempotencyKey="k", input="other"))
    clock.advance(3600 - 0.001)
    assert (await play.submit(idempotencyKey="k"))["deduplicated"] is True
    clock.advance(0.001 + 1)  # + 24 h + 1 s
    new = await play.submit(idempotencyKey="k", input="other")
    assert (new["deduplicated"], new["id"] != attempt["taskId"]) == (False, True)
    assert (await play.submit(idempotencyKey="k", input="other"))["id"] == new["id"]


@pytest.mark.parametrize("status", ["running", "outcome-unknown"])
async def test_b30_an_unsettled_task_holds_its_key_past_the_window(play: Play, clock: Clock, status: str) -> None:
    clock.hold()
    attempt = await play.run(idempotencyKey="k", leaseSeconds=3600)
    if status == "outcome-unknown":
        await play.complete(attempt, "unknown", error={"code": "NO_ANSWER"})
    for seconds in (3600, 22 * 3600, 3601, 10 * DAY):
        clock.advance(seconds)
        again = await play.submit(idempotencyKey="k", leaseSeconds=3600)
        assert (again["id"], again["deduplicated"], again["status"]) == (attempt["taskId"], True, status)
    if status == "outcome-unknown":
        await play.resolve(attempt["taskId"], "failed", attempt["attemptId"])
    else:
        await play.complete(attempt, result=1)
    assert (await play.submit(idempotencyKey="k"))["id"] != attempt["taskId"]


async def test_b30_two_submits_racing_across_the_expiry_create_one(play: Play, clock: Clock, rows: Rows) -> None:
    clock.hold()
    attempt = await play.run(idempotencyKey="k")
    await play.complete(attempt, result=1)
    clock.advance(DAY + 1)
    answers = await asyncio.gather(*(play.submit_raw(idempotencyKey="k") for _ in range(12)))
    assert sorted(a.status_code for a in answers) == [200] * 11 + [201]
    assert len({a.json()["id"] for a in answers}) == 1
    assert rows.value("SELECT count(*) FROM tasks") == 2


async def test_b30_different_bodies_racing_across_the_expiry_create_one(play: Play, clock: Clock, rows: Rows) -> None:
    clock.hold()
    attempt = await play.run(idempotencyKey="k")
    await play.complete(attempt, result=1)
    clock.advance(DAY + 1)
    answers = await asyncio.gather(*(play.submit_raw(idempotencyKey="k", input=n) for n in range(12)))
    assert sorted(a.status_code for a in answers) == [201] + [409] * 11
    assert rows.value("SELECT count(*) FROM tasks") == 2


async def test_b30_retention_keeps_a_task_as_long_as_its_key(play: Play, clock: Clock, rows: Rows) -> None:
    from dataclasses import replace

    from interlock_core import leases

    settings = replace(Settings(), retention_seconds=60)
    database = play.http._app.state.database
    attempt = await play.run(idempotencyKey="k")
    await play.complete(attempt, result=1)
    clock.advance(3600)
    assert (await leases.retain(database, settings))["tasks"] == 0
    assert (await play.submit(idempotencyKey="k"))["id"] == attempt["taskId"]
    clock.advance(DAY)
    assert (await leases.retain(database, settings)) == {"tasks": 1, "events": 3, "keys": 1}
    assert (
        rows.value("SELECT (SELECT count(*) FROM tasks) + (SELECT count(*) FROM journal) + (SELECT count(*) FROM idempotency)")
        == 0
    )
