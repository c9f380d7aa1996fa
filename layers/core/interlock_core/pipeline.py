"""Statements sent as one: written to the socket together, answered together, one wait for all.

psycopg's own pipeline flushes and polls at every statement, which costs more than the statements do. This drives libpq
through psycopg's low level instead; conversions, cancelling and errors are psycopg's.
"""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Ready, Wait

Plan = tuple[bytes, tuple[int, ...] | None]
"""A statement and the types of its values."""

_PARAMETER = re.compile(r"%(?:\((\w+)\)s|%)")


@dataclass(frozen=True)
class Step:
    """One statement with its parameters; `prepare`: one plan of it may be kept."""

    name: str
    text: str
    params: dict[str, Any]
    prepare: bool


class _Session:
    """What is known of one connection: its conversions and the plans that it keeps."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self.dump = Transformer(connection)
        self.load = Transformer(connection)
        self.plans: dict[Plan, bytes] = {}
        self.named = 0


_sessions: WeakKeyDictionary[psycopg.AsyncConnection[Any], _Session] = WeakKeyDictionary()


async def exchange(
    connection: psycopg.AsyncConnection[Any], steps: Sequence[Step], after: Sequence[Step] = (), *, prepare: bool
) -> tuple[list[list[Any]], psycopg.Error | None]:
    """Runs `steps` as one transaction and then `after` as another, in one round trip; `prepare`: plans may be kept at all.

    Returns the rows of the first, and what was wrong with the second (which undoes nothing). Raises psycopg.Error where the
    first failed: nothing of it is stored. A caller that is cancelled cancels the statements in the server before it goes.
    """
    session = _sessions.get(connection)
    if session is None:
        session = _sessions[connection] = _Session(connection)
    return await connection.wait(_exchange(connection.pgconn, session, steps, after, prepare))


def _exchange(
    pgconn: PGconn, session: _Session, steps: Sequence[Step], after: Sequence[Step], prepare: bool
) -> Generator[Wait, Ready | int, tuple[list[list[Any]], psycopg.Error | None]]:
    pgconn.enter_pipeline_mode()
    made: dict[Plan, bytes] = {}
    sent: list[list[Plan | None]] = []  # of each part and statement, the plan that is made first
    for part in (steps, after):
        if part:
            sent.append([_send(pgconn, session, made, step, prepare and step.prepare) for step in part])
            pgconn.pipeline_sync()
    while pgconn.flush():
        if (yield Wait.RW) & Ready.R:
            pgconn.consume_input()
    rows, error = yield from _answers(pgconn, session, sent[0], made)
    lost = (yield from _answers(pgconn, session, sent[1], made))[1] if len(sent) > 1 else None
    pgconn.exit_pipeline_mode()
    if error is not None:
        raise error
    return rows, lost


def _send(pgconn: PGconn, session: _Session, made: dict[Plan, bytes], step: Step, prepare: bool) -> Plan | None:
    """Queues a statement; the plan that had to be asked for before, if any."""
    query, names = _numbered(step.text)
    transformer = session.dump
    values = transformer.dump_sequence([step.params[name] for name in names], [PyFormat.AUTO] * len(names))
    types, formats = transformer.types, transformer.formats
    if not prepare:
        pgconn.send_query_params(query, values, param_types=types, param_formats=formats, result_format=Format.TEXT)
        return None
    plan = (query, types)
    name = session.plans.get(plan) or made.get(plan)
    fresh = name is None
    if name is None:
        session.named += 1
        name = made[plan] = b"il%d" % session.named
        pgconn.send_prepare(name, query, param_types=types)
    pgconn.send_query_prepared(name, values, param_formats=formats, result_format=Format.TEXT)
    return plan if fresh else None


def _answers(
    pgconn: PGconn, session: _Session, sent: list[Plan | None], made: dict[Plan, bytes]
) -> Generator[Wait, Ready | int, tuple[list[list[Any]], psycopg.Error | None]]:
    """The rows of each statement of a part, up to its sync; or what was wrong with the first that failed."""
    rows: list[list[Any]] = []
    error: psycopg.Error | None = None
    for plan in sent:
        for making in (plan, None) if plan is not None else (None,):
            result = yield from _result(pgconn)
            if result.status == ExecStatus.FATAL_ERROR:
                error = error or error_from_result(result)
            elif making is not None and result.status == ExecStatus.COMMAND_OK:
                session.plans[making] = made[making]  # it stays, also where the transaction does not
            elif error is None:
                rows.append(_rows(session, result))
    while (result := (yield from _result(pgconn))).status != ExecStatus.PIPELINE_SYNC:
        error = error or error_from_result(result)  # of the commit itself
    return rows, error


def _result(pgconn: PGconn) -> Generator[Wait, Ready | int, PGresult]:
    """The next result. One of a statement is followed by a null, which is read with it."""
    while True:
        while pgconn.is_busy():
            if (yield Wait.R):
                pgconn.consume_input()
        result = pgconn.get_result()
        if result is not None:
            break
    if result.status != ExecStatus.PIPELINE_SYNC:
        while pgconn.is_busy():
            if (yield Wait.R):
                pgconn.consume_input()
        pgconn.get_result()
    return result


def _rows(session: _Session, result: PGresult) -> list[Any]:
    if result.status != ExecStatus.TUPLES_OK or not result.ntuples:
        return []
    names = tuple((result.fname(column) or b"").decode() for column in range(result.nfields))
    session.load.set_pgresult(result)
    return session.load.load_rows(0, result.ntuples, _row_type(names)._make)


@lru_cache(maxsize=1024)
def _row_type(names: tuple[str, ...]) -> Any:
    return namedtuple("Row", names, rename=True)  # noqa: PYI024  # its names are the statement's


@lru_cache(maxsize=1024)
def _numbered(text: str) -> tuple[bytes, tuple[str, ...]]:
    """A statement with `$n` for its `%(name)s`, and the names in that order."""
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        name = found[1]
        if name is None:
            return "%"
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    return _PARAMETER.sub(number, text).encode(), tuple(names)
