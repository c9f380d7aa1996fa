"""The few connections: one round trip and one transaction per transition; a hint is never worth a task."""

from __future__ import annotations

import pytest

from interlock_core.db import Database, Refused, Step
from interlock_core.errors import Unavailable


def step(text: str, **params: object) -> Step:
    return Step("test", text, params, True)


async def count(database: Database) -> int:
    found: int = (await database.one(step("SELECT count(*) AS n FROM audit")))[0].n
    return found


INSERT = "INSERT INTO audit (id, at, action) VALUES (gen_random_uuid(), now(), 'x')"


async def test_steps_are_one_transaction_and_one_round_trip(database: Database) -> None:
    before = database.round_trips
    await database.run(step(INSERT), step(INSERT), step("SELECT 1"))
    assert database.round_trips == before + 1
    with pytest.raises(Refused, match="NO"):
        await database.run(step(INSERT), step("SELECT refuse('NO')"))
    assert await count(database) == 2


async def test_b46_a_failing_hint_undoes_nothing(database: Database) -> None:
    await database.run(step(INSERT), notify=step("SELECT pg_notify('interlock', repeat('x', 9000))"))
    assert await count(database) == 1


async def test_a_failing_step_before_a_hint_undoes_all_and_frees_the_connection(database: Database) -> None:
    with pytest.raises(Refused):
        await database.run(step(INSERT), step("SELECT refuse('NO')"), notify=step("SELECT pg_notify('interlock', 'x')"))
    assert await count(database) == 0
    rows = await database.one(step("SELECT count(*) AS n FROM pg_stat_activity WHERE state LIKE 'idle in transaction%%'"))
    assert rows[0].n == 0


async def test_b32_a_terminated_backend_is_replaced(database: Database) -> None:
    pid = (await database.one(step("SELECT pg_backend_pid() AS pid")))[0].pid
    other = Database(database.address.find_now())
    await other.one(step("SELECT pg_terminate_backend(%(pid)s)", pid=pid))
    await other.close()
    try:
        again = (await database.one(step("SELECT pg_backend_pid() AS pid")))[0].pid
    except Unavailable:  # the backend was still dying: one retryable refusal, then a new connection
        again = (await database.one(step("SELECT pg_backend_pid() AS pid")))[0].pid
    assert again != pid


async def test_a_database_that_cannot_be_reached_is_unavailable(database: Database) -> None:
    gone = Database("postgresql://interlock@127.0.0.1:1/interlock")
    with pytest.raises(Unavailable):
        await gone.one(step("SELECT 1"))
