"""Moves the service's one clock, `app_now()`, in one test's database: every process on it sees the same time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import psycopg
import pytest


class Clock:
    """`app_now()` of one database, to be pushed forward, or held still."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        connection.execute("CREATE TABLE test_clock (shift interval NOT NULL, held timestamptz)")
        connection.execute("INSERT INTO test_clock VALUES ('0', NULL)")
        connection.execute(
            "CREATE OR REPLACE FUNCTION app_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL RESTRICTED"
            " RETURN (SELECT coalesce(held, clock_timestamp()) + shift FROM test_clock)"
        )

    def advance(self, seconds: float) -> datetime:
        """Push the clock `seconds` on (back, if negative) and return the new time."""
        self._connection.execute("UPDATE test_clock SET shift = shift + %s", (timedelta(seconds=seconds),))
        return self.now()

    def hold(self) -> datetime:
        """Let time stand still until `release`; `advance` still moves it."""
        self._connection.execute("UPDATE test_clock SET held = clock_timestamp()")
        return self.now()

    def hold_at(self, instant: str) -> datetime:
        """Let time stand still at an instant such as `2026-03-28T12:00:00Z`."""
        self._connection.execute("UPDATE test_clock SET held = %s, shift = '0'", (instant,))
        return self.now()

    def release(self) -> None:
        """Let time run on from where it stands."""
        self._connection.execute(
            "UPDATE test_clock SET shift = held + shift - clock_timestamp(), held = NULL WHERE held IS NOT NULL"
        )

    def now(self) -> datetime:
        row = self._connection.execute("SELECT app_now()").fetchone()
        assert row is not None
        found: datetime = row[0]
        return found


@pytest.fixture
def clock(database_url: str) -> Iterator[Clock]:
    """The movable clock of this test's database."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield Clock(connection)
