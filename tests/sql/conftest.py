"""A connection beside the service, databases that explain or stand for other processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import psycopg
import pytest
from psycopg.rows import tuple_row

from interlock_core.db import Database
from sql.explained import Explained
from sql.rows import Rows


@pytest.fixture
def rows(database_url: str) -> Iterator[Rows]:
    """The rows of this test's database."""
    with psycopg.connect(database_url, autocommit=True, row_factory=tuple_row) as connection:
        yield Rows(connection)


@pytest.fixture(autouse=True)
def used_databases_set_aside(request: pytest.FixtureRequest, clean_databases: list[str]) -> Iterator[None]:
    """Plans are told on new tables: a used database keeps dead entries and statistics of other tests."""
    aside = clean_databases[:] if "explained" in request.fixturenames else []
    del clean_databases[: len(aside)]
    yield
    clean_databases[:0] = aside


@pytest.fixture
async def explained(database_url: str) -> AsyncIterator[Explained]:
    """A database that explains what it runs."""
    opened = Explained(database_url)
    yield opened
    await opened.close()


MakeDatabase = Callable[..., Database]


@pytest.fixture
async def open_database(database_url: str) -> AsyncIterator[MakeDatabase]:
    """Opens further databases on this test's own (another address may be given); all are closed after the test."""
    opened: list[Database] = []

    def make(url: str = database_url, size: int = 1) -> Database:
        opened.append(Database(url, size))
        return opened[-1]

    yield make
    for database in opened:
        await database.close()
