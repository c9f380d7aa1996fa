"""A real Postgres for every test: one server per test process, a migrated template, a clone of it for each test."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from data_folder import FolderUnusable, lock_folder
from interlock_core.db import Database
from interlock_core.migrate import migrate
from interlock_core.settings import Settings
from postgres import Postgres
from support.hosts import Hosts

MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"
TEMPLATE = "template_interlock"
MEMORY, ROOM = Path("/dev/shm"), 4 * 2**30
PREFIX = "interlock-test-"


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """This process's database server; it forgets what it knows if the machine crashes, and is quick for that."""
    folder = make_folder(tmp_path_factory)
    with Postgres(folder, durable=False) as server:
        yield server
    shutil.rmtree(folder)


def make_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In memory where there is room: a clone is some 700 files, which cost a disk's file system ten times as much."""
    if not MEMORY.is_dir() or not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < ROOM:
        return tmp_path_factory.mktemp("postgres")
    for left in MEMORY.glob(f"{PREFIX}*"):  # of runs that were killed; a young one may not hold its lock yet
        with contextlib.suppress(FolderUnusable, FileNotFoundError):
            if left.stat().st_mtime < time.time() - 60:
                lock_folder(left).close()
                shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=MEMORY))
    folder.chmod(0o711)
    return folder


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


@pytest.fixture(scope="session")
def clean_databases() -> list[str]:
    """Databases that a test has left, emptied again: making one anew costs twenty times as much."""
    return []


@pytest.fixture
def database_url(
    request: pytest.FixtureRequest,
    postgres: Postgres,
    clone_database: Callable[[], str],
    clean_databases: list[str],
    hosts: Hosts | None,
) -> Iterator[str]:
    """The address of a migrated, empty database of this test's own."""
    url = clean_databases.pop() if clean_databases else clone_database()
    if hosts is not None and "http" in request.fixturenames and not hosts.knows(url):
        hosts.serve(url, Settings())
        empty(url, postgres.url(TEMPLATE))  # of the project that a local host makes for itself
    yield url
    if empty(url, postgres.url(TEMPLATE)):
        clean_databases.append(url)
    else:
        drop_database(postgres, url)


def empty(url: str, template_url: str) -> bool:
    """Bring a database back to the template's state; False where that is not sure (a changed schema, much data)."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        with psycopg.connect(template_url, autocommit=True) as template:
            connection.execute(_fetch(template, "SELECT pg_get_functiondef('app_now'::regproc)")[0][0])
            connection.execute("DROP TABLE IF EXISTS test_clock")  # after the function that reads it was put back
            if _fetch(connection, SCHEMA) != _fetch(template, SCHEMA):
                return False
        if _fetch(
            connection,
            "SELECT coalesce(sum(pg_relation_size(oid)), 0) > 4000000 FROM pg_class WHERE relkind = 'r' AND relname = 'tasks'",
        )[0][0]:
            return False
        tables = [
            row[0]
            for row in _fetch(
                connection, "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'migrations'"
            )
        ]
        # projects last: keys refer to them
        deletes = [f'DELETE FROM "{name}"' for name in sorted(tables, key=lambda name: name == "projects")]
        connection.execute(";".join([*deletes, "INSERT INTO service DEFAULT VALUES"]))
    return True


def _fetch(connection: psycopg.Connection, query: str) -> list[tuple[object, ...]]:
    return connection.execute(query).fetchall()


#: Everything that a test may have made or changed: tables and their columns, functions, triggers, settings of the database.
SCHEMA = """
    SELECT 'column', c.relname || '.' || a.attname || ' ' || a.atttypid::regtype FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.relnamespace = 'public'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL SELECT 'function', p.oid::regprocedure || md5(pg_get_functiondef(p.oid)) FROM pg_proc p
    WHERE p.pronamespace = 'public'::regnamespace AND p.proname <> 'app_now'
    UNION ALL SELECT 'default', adrelid::regclass || ' ' || pg_get_expr(adbin, adrelid) FROM pg_attrdef
    UNION ALL SELECT 'trigger', tgname::text FROM pg_trigger WHERE NOT tgisinternal
    UNION ALL SELECT 'constraint', conname::text FROM pg_constraint WHERE connamespace = 'public'::regnamespace
    UNION ALL SELECT 'setting', setconfig::text FROM pg_db_role_setting s
    WHERE s.setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
    ORDER BY 1, 2
"""


def drop_database(postgres: Postgres, url: str) -> None:
    """Remove a database, whoever is still connected to it."""
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(url.rpartition("/")[2])))


@pytest.fixture
async def database(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Database]:
    """The core's `Database` on `database_url`; with `--pooler` through PgBouncer, and then nothing is prepared."""
    if request.config.getoption("--pooler"):
        opened = Database(request.getfixturevalue("pooler").url(database_url), size=8, prepare=False)
    else:
        opened = Database(database_url, size=8)
    yield opened
    await opened.close()
