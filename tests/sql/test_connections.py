"""Aborted calls, lost, silent, demoted and exhausted connections (B31, B32, B35)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import psycopg
import pytest
from psycopg import sql

from interlock_core import db
from interlock_core.db import Database, Statement
from sql.rows import Rows
from support.play import Play, ids
from support.proxy import MakeProxy, Proxy
from support.waiting import wait_until, wait_until_async

OTHERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


class OnTheWay(Database):
    """The database behind a proxy that can fall silent."""

    def __init__(self, url: str, proxy: Proxy, size: int = 1) -> None:
        where = url.rpartition("@")[2]
        super().__init__(url.replace(where, f"127.0.0.1:{proxy.port}/{where.partition('/')[2]}"), size)
        self.proxy = proxy


@pytest.fixture
async def on_the_way(database_url: str, make_proxy: MakeProxy) -> AsyncIterator[OnTheWay]:
    """A database of one connection, as an execution environment has it, with a network to cut."""
    opened = OnTheWay(database_url, make_proxy(database_url))
    yield opened
    opened.proxy.restore()
    await opened.close()


def _use(play: Play, database: Database) -> None:
    play.http._app.state.database = database


@pytest.mark.parametrize("count", [150, pytest.param(500, marks=pytest.mark.slow)])
async def test_b31_aborted_calls_leave_the_pool_whole_and_nothing_half_done(
    play: Play, rows: Rows, database_url: str, count: int
) -> None:
    database = Database(database_url, size=5)
    _use(play, database)
    watched = await play.submit(delaySeconds=3600)
    chance = random.Random(31)
    calls = 0

    async def call(n: int) -> httpx.Response:
        if n % 3 == 0:
            return await play.submit_raw(idempotencyKey=f"k{n}", concurrency={"key": "K", "limit": 3})
        if n % 12 == 5:
            return await play.http.producer.get(f"/v1/tasks/{watched['id']}?waitSeconds=5")
        if n % 3 == 1:
            return await play.http.worker.post("/v1/claims", json=play.claim_body(slots=3, instance=f"i{n % 4}"))
        return await play.http.producer.get("/v1/tasks?limit=5")

    async def abort(n: int) -> None:
        nonlocal calls
        running = asyncio.ensure_future(call(n))
        await asyncio.wait([running], timeout=chance.random() * 0.05)
        calls += not running.done()
        running.cancel()
        answer = (await asyncio.gather(running, return_exceptions=True))[0]
        assert isinstance(answer, asyncio.CancelledError) or answer.status_code < 400

    for start in range(0, count, 15):
        await asyncio.gather(*(abort(n) for n in range(start, start + 15)))
    assert calls > count / 10, "hardly any call was aborted in its middle"
    answers = await asyncio.wait_for(asyncio.gather(*(call(count * 3 + 2) for _ in range(5))), 5)
    assert [a.status_code for a in answers] == [200] * 5
    await wait_until_async(lambda: database._slots._value == 5)  # what goes on after an answer has ended, too
    assert len(database._idle) <= 5
    await wait_until_async(lambda: rows.value(OTHERS + " AND state <> 'idle'") == 0)
    await database.close()
    await wait_until_async(lambda: rows.value(OTHERS) <= 1)  # the fixture's own
    assert (
        rows.value("SELECT count(*) FROM tasks t WHERE (SELECT count(*) FROM journal WHERE task_id = t.id) <> t.journal_seq") == 0
    )
    assert rows.value("SELECT count(*) FROM idempotency i WHERE NOT EXISTS (SELECT FROM tasks t WHERE t.id = i.task_id)") == 0


async def test_b32_a_terminated_connection_costs_one_503_at_most(play: Play, rows: Rows, on_the_way: OnTheWay) -> None:
    _use(play, on_the_way)
    await play.submit()
    for n in range(3):
        rows.all(OTHERS.replace("count(*)", "pg_terminate_backend(pid)"))
        await wait_until_async(lambda: rows.value(OTHERS) == 0)
        answers = [await play.submit_raw(idempotencyKey=f"k{n}") for _ in range(2)]
        codes = [a.status_code for a in answers]
        assert codes in ([201, 200], [503, 201]), codes
    assert rows.value("SELECT count(*) FROM tasks") == 4


@pytest.mark.slow
async def test_b32_a_connection_that_falls_silent_is_replaced_within_the_budget(
    play: Play, rows: Rows, on_the_way: OnTheWay, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use(play, on_the_way)
    await play.submit()
    monkeypatch.setattr(db, "CALL_SECONDS", 0.5)
    monkeypatch.setattr(db, "CUT_SECONDS", 1.0)
    on_the_way.proxy.black_hole()
    answer = await asyncio.wait_for(play.submit_raw(idempotencyKey="k"), 10)
    assert (answer.status_code, answer.json()["code"]) == (503, "UNAVAILABLE")
    on_the_way.proxy.restore()
    monkeypatch.setattr(db, "CALL_SECONDS", 18.0)
    answers = [await play.submit_raw(idempotencyKey="k") for _ in range(2)]
    assert [a.status_code for a in answers][1] == 200
    assert rows.value("SELECT count(*) FROM tasks") == 2  # whatever the silent call did, it was done once
    await wait_until_async(lambda: rows.value(OTHERS + " AND state <> 'idle'") == 0)


async def test_b32_an_idle_connection_is_asked_before_it_is_trusted(
    play: Play, on_the_way: OnTheWay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen environment wakes up: its connection was idle for longer than it may be trusted, and is silent."""
    _use(play, on_the_way)
    await play.submit()
    monkeypatch.setattr(db, "CHECK_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(db, "CHECK_SECONDS", 0.2)
    before = set(on_the_way.proxy._connections)
    on_the_way.proxy.black_hole()
    asking = asyncio.ensure_future(play.submit_raw())
    await wait_until_async(lambda: on_the_way.proxy._connections - before)  # it was given up for a new one
    on_the_way.proxy.restore()
    assert (await asyncio.wait_for(asking, 5)).status_code == 201


async def test_b32_a_demoted_connection_is_replaced(play: Play, rows: Rows, on_the_way: OnTheWay) -> None:
    """Connections that exist are read-only, new ones are not: what a failover looks like from a kept connection."""
    _use(play, on_the_way)
    await play.submit()
    await on_the_way.one(Statement("demote", "SET default_transaction_read_only = on", prepare=False)())
    answers = [await play.submit_raw(idempotencyKey="k") for _ in range(2)]
    assert [a.status_code for a in answers] == [503, 201]
    assert answers[0].json()["retryable"] is True
    assert rows.value("SELECT count(*) FROM tasks") == 2


@pytest.fixture
def crowd(database_url: str) -> Iterator[list[psycopg.Connection[Any]]]:
    """Connections of somebody else, to use up what a role may have."""
    opened: list[psycopg.Connection[Any]] = []
    yield opened
    for connection in opened:
        connection.close()


async def test_b35_exhausted_connections_are_a_retryable_503_and_nothing_is_half_done(
    play: Play, rows: Rows, database_url: str, crowd: list[psycopg.Connection[Any]]
) -> None:
    attempt = await play.run()
    await play.http._app.state.database.close()
    wait_until(lambda: rows.value(OTHERS) == 0)
    name = sql.Identifier(rows.connection.info.dbname)
    # A limit of the database holds for everyone but superusers: the service connects as a plain role here.
    if not rows.all("SELECT FROM pg_roles WHERE rolname = 'crowd'"):
        rows.all("CREATE ROLE crowd LOGIN PASSWORD 'crowd'")
    rows.all("GRANT ALL ON ALL TABLES IN SCHEMA public TO crowd")
    rows.connection.execute(sql.SQL("ALTER DATABASE {} CONNECTION LIMIT 4").format(name))
    where = database_url.rpartition("@")[2]
    database = Database(f"postgresql://crowd:crowd@{where}", size=8)
    _use(play, database)
    free = 3 - rows.value(OTHERS)  # this test's own look at the rows is one more
    crowd.extend(psycopg.connect(database.address.find_now()) for _ in range(free))
    before = rows.task(attempt["taskId"])
    calls = [
        play.submit_raw(idempotencyKey="k", concurrency={"key": "K", "limit": 1}),
        play.http.worker.post("/v1/claims", json=play.claim_body()),
        play.http.worker.post("/v1/attempts/complete", json={"completions": [{**ids(attempt), "outcome": "succeeded"}]}),
        play.http.producer.get("/v1/tasks"),
        play.http.producer.post(f"/v1/tasks/{attempt['taskId']}/cancel", json={}),
    ]
    for answer in await asyncio.gather(*calls):
        assert (answer.status_code, answer.json()["code"], answer.json()["retryable"]) == (503, "UNAVAILABLE", True)
        assert int(answer.headers["retry-after"]) >= 1
    assert rows.task(attempt["taskId"]) == before
    assert rows.value("SELECT count(*) FROM tasks") == 1
    crowd.pop().close()
    await wait_until_async(lambda: rows.value(OTHERS) < 4)
    assert (await play.submit_raw(idempotencyKey="k")).status_code == 201  # normal again, on what there is
    assert (await play.complete(attempt, result=1))["taskStatus"] == "succeeded"
    await database.close()
    rows.connection.execute(sql.SQL("ALTER DATABASE {} CONNECTION LIMIT -1").format(name))


async def test_b35_a_busy_pool_is_a_retryable_503(play: Play, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(database_url, size=1)
    _use(play, database)
    await play.submit()
    monkeypatch.setattr(db, "WAIT_SECONDS", 0.1)
    async with database.connection():
        answer = await play.submit_raw(idempotencyKey="k")
        assert (answer.status_code, answer.json()["code"], answer.json()["retryable"]) == (503, "UNAVAILABLE", True)
    assert (await play.submit_raw(idempotencyKey="k")).status_code == 201
    await database.close()


async def test_b36_a_table_that_a_migration_holds_is_a_retryable_503(play: Play, database_url: str) -> None:
    attempt = await play.run()
    database = Database(database_url + "?options=-c%20lock_timeout%3D100ms", size=2)
    _use(play, database)
    with psycopg.connect(database_url) as migration:
        migration.execute("LOCK TABLE tasks IN ACCESS EXCLUSIVE MODE")
        body = {"completions": [{**ids(attempt), "outcome": "succeeded"}]}
        calls = [
            play.submit_raw(idempotencyKey="k"),
            play.http.worker.post("/v1/claims", json=play.claim_body()),
            play.http.worker.post("/v1/attempts/complete", json=body),
            play.http.producer.get(f"/v1/tasks/{attempt['taskId']}"),
        ]
        for answer in await asyncio.gather(*calls):
            assert (answer.status_code, answer.json()["code"], answer.json()["retryable"]) == (503, "UNAVAILABLE", True)
    assert (await play.submit_raw(idempotencyKey="k")).status_code == 201
    assert (await play.complete(attempt))["taskStatus"] == "succeeded"
    await database.close()
