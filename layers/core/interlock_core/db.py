"""The database: SQL files, one pipeline per transition, and the few connections that carry them.

Only this module, `pipeline`, `listen`, `migrate` and `address` import psycopg. A transition is a list of steps sent as one pipeline:
one network round trip, one transaction. Steps come from `sql/<name>.sql`, whose statements are parted by lines
`-- :: name`; one marked `(planned anew)` gets a plan for its parameters each time, the others are prepared and keep one.

The pool is ours because its life must fit a frozen execution environment: no background tasks, nothing that ticks, a
connection checked when it was idle and replaced when the server closed it, demoted it or fell silent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import select
import socket
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg import errors as pg
from psycopg.pq import TransactionStatus
from psycopg.rows import namedtuple_row

from . import pipeline
from .address import Address
from .errors import Unavailable
from .testpoint import armed, testpoint

log = logging.getLogger("interlock.db")
logging.getLogger("psycopg").setLevel(logging.ERROR)  # it warns of every pipeline that a refusal ended

SQL = Path(__file__).parent / "sql"
CALL_SECONDS = 18.0  # what is not done by then is cancelled in the server and said to be so
CUT_SECONDS = 6.0  # more for the cancellation, then the socket is cut: together below every gateway's limit
WAIT_SECONDS = 5.0  # for a free connection
CHECK_AFTER_SECONDS = 30.0  # an idle connection older than this answers a query before it is trusted with work
CHECK_SECONDS = 3.0  # for that answer

Row = Any
Step = pipeline.Step
T = TypeVar("T")
_BROKEN = (pg.AdminShutdown, pg.CrashShutdown, pg.CannotConnectNow, pg.ReadOnlySqlTransaction, pg.IdleInTransactionSessionTimeout)
_BUSY = (pg.QueryCanceled, pg.LockNotAvailable, pg.InsufficientResources, pg.ConfigurationLimitExceeded)
# Before there is a session there are no codes, only words.
_REFUSED_LOGIN = re.compile("authentication failed|password|credentials", re.IGNORECASE)
_AGAIN = (pg.SerializationFailure, pg.DeadlockDetected, pg.FeatureNotSupported)


class Refused(Exception):
    """A statement called refuse(message): the whole transaction was rolled back."""


@dataclass(frozen=True)
class Statement:
    """One statement of a .sql file; calling it with parameters makes a Step."""

    name: str
    text: str
    prepare: bool

    def __call__(self, **params: Any) -> Step:
        """The statement with its parameters."""
        return Step(self.name, self.text, params, self.prepare)


class Statements:
    """The statements of one .sql file, as attributes."""

    def __init__(self, name: str) -> None:
        parts = ("\n" + (SQL / f"{name}.sql").read_text(encoding="utf-8")).split("\n-- :: ")
        self._found = {}
        for part in parts[1:]:
            title, _, text = part.partition("\n")
            word, _, note = title.strip().partition(" ")
            self._found[word] = Statement(f"{name}.{word}", text.strip(), note != "(planned anew)")

    def __getattr__(self, name: str) -> Statement:
        try:
            return self._found[name]
        except KeyError:
            raise AttributeError(name) from None


@cache
def statements(name: str) -> Statements:
    """Loads `sql/<name>.sql`."""
    return Statements(name)


class Database:
    """At most `size` connections to one database, made when first needed. Belongs to one event loop."""

    def __init__(self, address: str | Address, size: int = 1, prepare: bool = True) -> None:
        self.address = Address.at(address) if isinstance(address, str) else address
        self.round_trips = 0  # counted, so that tests can hold budgets
        self._idle: list[tuple[psycopg.AsyncConnection[Row], float]] = []
        self._slots = asyncio.Semaphore(size)
        self._prepare = prepare
        self._shared: dict[Hashable, Any] = {}

    def shared(self, name: Hashable, make: Callable[[], T]) -> T:
        """What calls on this database share under a name, made at the first asking."""
        if name not in self._shared:
            self._shared[name] = make()
        found: T = self._shared[name]
        return found

    async def run(self, *steps: Step, notify: Step | None = None) -> list[list[Row]]:
        """Runs the steps as one transaction in one round trip; returns the rows of each.

        `notify` runs after the commit, in the same round trip, as a transaction of its own: its failure undoes nothing.
        Raises Refused where a step refused, Unavailable where the database could not be reached, was too busy or took too
        long (what the caller may repeat); nothing is half-done in either case. A lost serialisation, a deadlock or a plan
        older than a migration is tried once more.
        """
        for last in (False, True):
            try:
                async with asyncio.timeout(CALL_SECONDS), self.connection() as connection:
                    # Cancelled in the server first: a pipeline that is only abandoned would go on, its COMMIT included, once
                    # whatever it waits for lets go. The socket is cut where the server has fallen silent.
                    with _cut_after(connection, CALL_SECONDS + CUT_SECONDS):
                        if armed:
                            return await _one_by_one(connection, steps, notify)
                        return await self._pipeline(connection, steps, notify)
            except _AGAIN as error:
                if last:
                    raise Unavailable(f"the database gave up on a conflict: {type(error).__name__}") from error
            except TimeoutError as error:
                raise Unavailable("the database did not answer in time") from error
        raise AssertionError("unreachable")

    async def one(self, step: Step) -> list[Row]:
        """The rows of a single step."""
        return (await self.run(step))[0]

    async def tell(self, notice: Step) -> None:
        """Runs a notice alone. Its failure is logged and no more: what it tells of is stored already."""
        try:
            await self.one(notice)
        except (psycopg.Error, Unavailable) as error:
            log.warning("a hint was lost: %s", error)

    async def _pipeline(
        self, connection: psycopg.AsyncConnection[Row], steps: tuple[Step, ...], notify: Step | None
    ) -> list[list[Row]]:
        self.round_trips += 1
        rows, lost = await pipeline.exchange(connection, steps, (notify,) if notify is not None else (), prepare=self._prepare)
        if lost is not None:
            log.warning("a hint was lost: %s", lost)  # the work is stored; whoever waits for the hint polls
        return rows

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[psycopg.AsyncConnection[Row]]:
        """A connection, in autocommit mode, for the length of the block. Raises Unavailable for faults of the database."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._slots.acquire()
        except TimeoutError:
            raise Unavailable("all connections to the database are busy") from None
        connection = None
        try:
            connection = await self._take()
            yield connection
        except psycopg.Error as error:
            if isinstance(error, (*_BROKEN, pg.FeatureNotSupported)) and connection is not None:
                await connection.close()
            if isinstance(error, pg.FeatureNotSupported):
                await self.close()  # a migration changed what a kept plan returns: every connection's plans are as old
            told = _told(error)
            if told is error:
                raise
            raise told from error
        finally:
            try:
                await self._give_back(connection)
            finally:
                self._slots.release()

    async def _take(self) -> psycopg.AsyncConnection[Row]:
        while self._idle:
            connection, since = self._idle.pop()
            alive = False
            try:
                alive = await _is_alive(connection, time.monotonic() - since)
            finally:  # also where the caller was cancelled meanwhile
                if not alive:
                    await connection.close()
            if alive:
                return connection
        url = await self.address.find()
        try:
            return await self._connect(url)
        except psycopg.OperationalError as error:
            # The password may have been changed since it was read: asked for once more, then told.
            if not _REFUSED_LOGIN.search(str(error)) or not self.address.forget(url):
                raise
        return await self._connect(await self.address.find())

    async def _connect(self, url: str) -> psycopg.AsyncConnection[Row]:
        return await psycopg.AsyncConnection.connect(
            url,
            autocommit=True,
            row_factory=namedtuple_row,
            prepare_threshold=1 if self._prepare else None,
            connect_timeout=5,
        )

    async def _give_back(self, connection: psycopg.AsyncConnection[Row] | None) -> None:
        if connection is None or connection.closed:
            return
        status = connection.info.transaction_status
        if status == TransactionStatus.INERROR:
            try:
                await connection.rollback()
                status = connection.info.transaction_status
            except psycopg.Error:
                pass
        if status == TransactionStatus.IDLE:
            self._idle.append((connection, time.monotonic()))
        else:  # a call was cancelled between sending and reading: nobody may inherit its answer
            await connection.close()

    async def close(self) -> None:
        """Closes the idle connections; those in use close when given back to a closed loop."""
        while self._idle:
            await self._idle.pop()[0].close()


def _told(error: psycopg.Error) -> Exception:
    """What the caller is to make of a fault of the database: a refusal of ours, Unavailable, or the error itself."""
    if error.sqlstate == "IL001":
        return Refused(error.diag.message_primary or "")
    if isinstance(error, _AGAIN):
        return error
    if isinstance(error, _BROKEN):
        return Unavailable(f"the database connection was lost: {type(error).__name__}")
    if isinstance(error, _BUSY):
        return Unavailable(f"the database is busy: {type(error).__name__}")
    if isinstance(error, psycopg.OperationalError):
        return Unavailable(f"the database cannot be reached: {type(error).__name__}")
    return error


async def _is_alive(connection: psycopg.AsyncConnection[Row], idle_seconds: float) -> bool:
    if connection.closed:
        return False
    try:
        # A closed or reset socket is readable; a healthy idle one is silent. No round trip is spent on it.
        readable, _, _ = select.select([connection.fileno()], [], [], 0) if connection.fileno() < 1024 else ([], [], [])
        if not readable and idle_seconds < CHECK_AFTER_SECONDS:
            return True
        with _cut_after(connection, CHECK_SECONDS):
            row = await (await connection.execute("SELECT pg_is_in_recovery()")).fetchone()
        return row is not None and not row[0]
    except (psycopg.Error, TimeoutError, OSError, ValueError):
        return False


@contextmanager
def _cut_after(connection: psycopg.AsyncConnection[Row], seconds: float) -> Iterator[None]:
    """Ends the connection's socket if the block takes longer, which ends the wait for it at once."""

    def cut() -> None:
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)

    timer = asyncio.get_running_loop().call_later(seconds, cut)
    try:
        yield
    finally:
        timer.cancel()


async def _one_by_one(connection: psycopg.AsyncConnection[Row], steps: tuple[Step, ...], notify: Step | None) -> list[list[Row]]:
    """As `_pipeline`, with a test point after every statement."""
    found = []
    async with connection.transaction():
        for step in steps:
            cursor = await connection.execute(step.text, step.params)
            found.append(await cursor.fetchall() if cursor.description else [])
            await testpoint(step.name)
    await testpoint(f"{steps[-1].name}.committed")
    if notify is not None:
        await connection.execute(notify.text, notify.params)
    return found
