"""Many environments at once on a database that has few connections, and many migrations at once on an empty one."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from interlock_core.db import Database
from interlock_core.keys import bootstrap
from interlock_core.listen import Listener
from interlock_core.migrate import migrate
from interlock_core.settings import Settings
from service import build_app
from support.database import make_folder
from support.waiting import wait_until_async
from template import ROOT

CONNECTIONS, ENVIRONMENTS = 10, 40
TASK = {"type": "demo/hello", "schemaVersion": 1, "input": None}


@pytest.fixture
def narrow_url(database_url: str) -> Iterator[str]:
    """The test's database as a role sees it that may hold few connections at once."""
    name = "narrow"
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'narrow' CONNECTION LIMIT {}").format(sql.Identifier(name), CONNECTIONS)
        )
        connection.execute(sql.SQL("GRANT ALL ON ALL TABLES IN SCHEMA public TO {}").format(sql.Identifier(name)))
        yield make_conninfo("", **{**conninfo_to_dict(database_url), "user": name, "password": "narrow"})
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (name,))
        connection.execute(sql.SQL("DROP OWNED BY {role}; DROP ROLE {role}").format(role=sql.Identifier(name)))


async def test_b35_environments_beyond_the_budget_are_refused_whole(
    narrow_url: str, database_url: str, keys: dict[str, str]
) -> None:
    settings = Settings(database_url=narrow_url, pool_size=1)
    environments = [Database(narrow_url, 1) for _ in range(ENVIRONMENTS)]
    clients = [
        httpx.AsyncClient(transport=httpx.ASGITransport(make_app(settings, one)), base_url="http://cold.test")
        for one in environments
    ]
    headers = {"Authorization": f"Bearer {keys['task-producer']}"}

    async def submit(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post("/v1/tasks", json=TASK, headers=headers)

    answers = await asyncio.gather(*map(submit, clients))
    taken = [answer for answer in answers if answer.status_code == 201]
    refused = [answer for answer in answers if answer.status_code != 201]
    assert 1 <= len(taken) <= CONNECTIONS
    for answer in refused:
        assert (answer.status_code, answer.json()["code"], answer.json()["retryable"]) == (503, "UNAVAILABLE", True)
        assert int(answer.headers["retry-after"]) >= 1
    assert count(database_url, "SELECT count(*) FROM tasks") == len(taken)
    assert count(database_url, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'narrow'") <= CONNECTIONS

    # An environment that got its connection goes on; when some end, those that were refused take their place.
    assert (await submit(clients[answers.index(taken[0])])).status_code == 201
    for environment in environments:
        await environment.close()
    assert (await submit(clients[answers.index(refused[0])])).status_code == 201
    for environment, client in zip(environments, clients, strict=True):
        await environment.close()
        await client.aclose()


@pytest.fixture
def small_server(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A server of this test's own that takes 40 connections."""
    import postgres as launcher

    monkeypatch.setitem(launcher.SETTINGS, "max_connections", "40")
    folder = make_folder(tmp_path_factory)
    with launcher.Postgres(folder, durable=False) as server:
        server.create_database("interlock")
        yield server
    shutil.rmtree(folder)


@pytest.mark.slow
async def test_b35_a_hundred_and_twenty_cold_environments_on_forty_connections(small_server: Any) -> None:
    url = small_server.url("interlock")
    migrate(url, ROOT / "migrations")
    # Functions are no superusers: the reserved connections are not theirs.
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE ROLE app LOGIN PASSWORD 'app'")
        connection.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO app")
    app_url = make_conninfo("", **{**conninfo_to_dict(url), "user": "app", "password": "app"})
    first = Database(app_url, 1)
    keys = await bootstrap(first, "burst", {})
    await first.close()
    settings = Settings(database_url=app_url, pool_size=1)
    heard: list[str] = []
    listener = Listener(app_url, heard.append, lambda: None)
    listening = asyncio.create_task(listener.run())
    await wait_until_async(lambda: listener.listening)
    environments = [Database(app_url, 1) for _ in range(120)]
    headers = {"Authorization": f"Bearer {keys['task-producer']}"}

    async def submit(number: int) -> httpx.Response:
        transport = httpx.ASGITransport(make_app(settings, environments[number]))
        async with httpx.AsyncClient(transport=transport, base_url="http://cold.test", timeout=60) as client:
            return await client.post("/v1/tasks", json={**TASK, "idempotencyKey": f"k{number}"}, headers=headers)

    answers = await asyncio.gather(*map(submit, range(120)))
    taken = [answer for answer in answers if answer.status_code == 201]
    refused = [number for number, answer in enumerate(answers) if answer.status_code != 201]
    assert 20 <= len(taken) < 40
    assert {(answers[n].status_code, answers[n].json()["code"], answers[n].json()["retryable"]) for n in refused} == {
        (503, "UNAVAILABLE", True)
    }
    assert min(int(answers[n].headers["retry-after"]) for n in refused) >= 1
    assert count(url, "SELECT count(*) FROM tasks") == len(taken)
    assert count(url, "SELECT count(*) FROM idempotency") == len(taken)
    # The session that listens was not pushed out, and hears.
    assert (listener.listening, listener.sessions) == (True, 1)
    # The burst is over: most environments end, and what was refused is taken.
    for environment in environments:
        await environment.close()
    for number in refused[:20]:
        assert (await submit(number)).status_code == 201
        await environments[number].close()
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)


def make_app(settings: Settings, database: Database) -> Any:
    app = build_app(settings)
    app.state.database = database
    return app


def count(url: str, query: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(query).fetchone()  # type: ignore[arg-type]
        assert row is not None
        return int(row[0])


@pytest.mark.slow
def test_b36_eight_migrations_of_an_empty_database_at_once(postgres: Any, tmp_path: Path) -> None:
    postgres.create_database("eight_migrations")
    url = postgres.url("eight_migrations")
    program = (
        "import sys, pathlib; from interlock_core.migrate import migrate; print(*migrate(sys.argv[1], pathlib.Path(sys.argv[2])))"
    )
    line = [sys.executable, "-c", program, url, str(ROOT / "migrations")]
    running = [subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(8)]
    outputs = [process.communicate(timeout=60) for process in running]
    assert [process.returncode for process in running] == [0] * 8, outputs
    applied = [name for output, _ in outputs for name in output.split()]
    assert sorted(applied) == sorted(path.name for path in (ROOT / "migrations").glob("*.sql"))
    assert count(url, "SELECT count(*) FROM migrations") == len(applied)
