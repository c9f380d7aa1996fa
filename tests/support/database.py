"""A real Postgres for every test: one server per test process, a migrated template, a clone of it for each test."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from interlock_core.db import Database
from interlock_core.migrate import migrate
from postgres import Postgres

MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"
TEMPLATE = "template_interlock"


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """This process's database server; it forgets what it knows if the machine crashes, and is quick for that."""
    folder = tmp_path_factory.mktemp("postgres")
    with Postgres(folder, durable=False) as server:
        yield server
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def clone_database(postgres: Postgres) -> Callable[[], str]:
    """A function that makes a fresh migrated database and returns its address. Dropped with the server."""
    postgres.create_database(TEMPLATE)
    migrate(postgres.url(TEMPLATE), MIGRATIONS)
    numbers = itertools.count(1)

    def clone() -> str:
        name = f"test_{next(numbers)}"
        with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
            connection.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY wal_log").format(sql.Identifier(name), sql.Identifier(TEMPLATE))
            )
            # What a role is given in one database (its timeouts) does not come with the clone.
            settings = connection.execute(
                "SELECT r.rolname, split_part(c, '=', 1), substr(c, strpos(c, '=') + 1)"
                " FROM pg_db_role_setting s JOIN pg_roles r ON r.oid = s.setrole, unnest(s.setconfig) c"
                " WHERE s.setdatabase = (SELECT oid FROM pg_database WHERE datname = %s)",
                (TEMPLATE,),
            ).fetchall()
            for role, setting, value in settings:
                connection.execute(
                    sql.SQL("ALTER ROLE {} IN DATABASE {} SET {} = {}").format(
                        sql.Identifier(role), sql.Identifier(name), sql.Identifier(setting), sql.Literal(value)
                    )
                )
        return postgres.url(name)

    return clone


@pytest.fixture
def database_url(postgres: Postgres, clone_database: Callable[[], str]) -> Iterator[str]:
    """The address of a fresh, migrated, empty database of this test's own."""
    url = clone_database()
    yield url
    drop_database(postgres, url)


def drop_database(postgres: Postgres, url: str) -> None:
    """Remove a database, whoever is still connected to it."""
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(url.rpartition("/")[2])))


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """The core's `Database` on `database_url`."""
    opened = Database(database_url, size=8)
    yield opened
    await opened.close()
