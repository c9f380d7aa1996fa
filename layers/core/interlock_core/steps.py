"""The steps of a task: stored once, read by every later attempt (protocol.md §7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from . import admission, reports
from .db import Database, Row, Step, statements
from .errors import InvalidRequest, LimitExceeded, NotFound, Problem
from .keys import Key
from .views import raw
from .wire import cursors
from .wire.rules import check_size
from .wire.times import when

if TYPE_CHECKING:  # a claim reads no report
    from .wire.reports import StepReport

sql = statements("steps")
store_sql = statements("store_step")
revive_sql = statements("revive")
complete_sql = statements("complete")

FENCE = ("task_id", "attempt_id", "fence", "token", "epoch")
MOST_STEPS = 10_000  # of a task, finished waits and children included
MOST_BYTES = 64 * 1024 * 1024  # of their outputs
PAGE_BYTES = 2 * 1024 * 1024
OUTLINE = 1_000
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Reader:
    """Who reads what a task has stored: a project's producer or operator, or (with its fence) the attempt that runs it.

    Refused with NotFound, StaleAttempt or EpochChanged where the attempt is not current, ScopeDenied where a key is not for it.
    """

    key: Key
    task_id: UUID
    fence: dict[str, Any] | None = None

    def may(self) -> Step:
        """The statement that has a row where the reader may."""
        if self.fence is None:
            return sql.seen(project=self.key.project, id=self.task_id)
        return sql.current(project=self.key.project, scope=self.key.scope, item=_json(self.fence))

    async def refusal(self, database: Database) -> Problem:
        """Why it may not."""
        if self.fence is None:
            return NotFound(f"there is no task {self.task_id} in this project")
        return await _refusal(database, self.key, self.fence)


async def store(database: Database, key: Key, request: StepReport, output: str | None) -> dict[str, Any]:
    """Stores what became of a step, or returns what was stored for good before (`duplicate`).

    A current attempt whose lease had run out is recovered first. Raises StaleAttempt, EpochChanged, InvalidRequest,
    PayloadTooLarge, LimitExceeded.
    """
    output = (output or "null") if request.status == "succeeded" else None
    if output is not None:
        check_size(output, "/output")
    error = None
    if request.status == "failed":
        code, message, details = reports.error_of(request.error)
        error = {"code": code, "message": message} | ({"details": msgspec.Raw(details.encode())} if details else {})
    item = reports.fence(request) | {
        "name": request.name,
        "status": request.status,
        "effect_safety": request.effect_safety,
        "reconciles": request.reconciles,
        "output": output,
        "error": _json(error) if error is not None else None,
        "final": request.final,
        "tries": request.tries,
        "bytes": len(output.encode()) if output is not None else 0,
    }
    row = await write(
        database,
        key,
        item,
        store_sql.store(project=key.project, scope=key.scope, item=_json(item), most_steps=MOST_STEPS, most_bytes=MOST_BYTES),
    )
    refuse(row.verdict, request.name)
    return view(row) | {"duplicate": row.verdict == "kept"}


async def write(database: Database, key: Key, item: dict[str, Any], statement: Step) -> Row:
    """The verdict row of a fenced statement on one attempt, which is recovered first where its lease had run out.

    Raises StaleAttempt or EpochChanged where the attempt is not current, ScopeDenied where the key is not for it.
    """
    fence = {name: item[name] for name in FENCE}
    _, revived, rows = await database.run(
        complete_sql.lock_one(ids=[item["task_id"]]),
        revive_sql.revive(project=key.project, scope=key.scope, item=_json(fence)),
        statement,
    )
    await admission.admit(database, key.project, [row.concurrency_key for row in revived])
    if not rows:
        raise await _refusal(database, key, fence)
    return rows[0]


async def _refusal(database: Database, key: Key, fence: dict[str, Any]) -> Problem:
    (verdict,) = await database.one(complete_sql.explain(project=key.project, items=_json([fence])))
    if verdict.current and not verdict.other_epoch:
        refusal = key.outside(verdict.type, verdict.pool, verdict.worker_id)
        if refusal is not None:
            return refusal
    return reports.not_current(verdict, fence["epoch"])


def refuse(verdict: str, name: str) -> None:
    """Raises what a verdict other than `stored` and `kept` means."""
    if verdict == "other-kind":
        raise InvalidRequest(f"{name!r} is the name of another step, wait or child of this task", "/name")
    if verdict == "too-many":
        raise LimitExceeded(f"a task has at most {MOST_STEPS} steps, finished waits and children included")
    if verdict == "too-large":
        raise LimitExceeded(f"the outputs of a task's steps have at most {MOST_BYTES} bytes together")


async def of_claims(database: Database, ids: Sequence[UUID], budget: int, together: int) -> dict[UUID, list[dict[str, Any]]]:
    """The stored steps of claimed tasks, oldest first, as many as fit into `budget` bytes for each and `together` for all."""
    if not ids:
        return {}
    found: dict[UUID, list[dict[str, Any]]] = {}
    for row in await database.one(sql.of_claims(ids=list(ids), budget=budget, together=together)):
        found.setdefault(row.task_id, []).append(view(row))
    return found


def cursor(task_id: UUID, seq: int) -> str:
    """Where the steps of a task go on after a seq."""
    return cursors.write(["steps", str(task_id)], [seq])


async def outline(database: Database, task_id: UUID) -> dict[str, list[dict[str, Any]]]:
    """The first steps and children of a task, without outputs and results; the pages have the rest."""
    rows, children = await database.run(
        sql.page(id=task_id, after=0, limit=OUTLINE, budget=PAGE_BYTES, whole=False),
        sql.children(id=task_id, after=0, limit=OUTLINE, budget=PAGE_BYTES, whole=False),
    )
    return {"steps": [view(row, whole=False) for row in rows], "children": [child_view(row, whole=False) for row in children]}


async def page(database: Database, reader: Reader, given: str | None, limit: int) -> dict[str, Any]:
    """A page of steps with their outputs. Raises as `Reader` says, and InvalidCursor."""
    return await _page(database, reader, "steps", partial(sql.page, whole=True), given, limit, view)


async def children_page(database: Database, reader: Reader, given: str | None, limit: int) -> dict[str, Any]:
    """A page of children with what became of them. Raises as `Reader` says, and InvalidCursor."""
    return await _page(database, reader, "children", partial(sql.children, whole=True), given, limit, child_view)


async def signals_page(database: Database, reader: Reader, given: str | None, limit: int) -> dict[str, Any]:
    """A page of the signals that no wait has taken. Raises as `Reader` says, and InvalidCursor."""
    return await _page(database, reader, "signals", sql.signals, given, limit, _signal_view)


async def _page(
    database: Database,
    reader: Reader,
    name: str,
    statement: Callable[..., Step],
    given: str | None,
    limit: int,
    show: Callable[[Row], dict[str, Any]],
) -> dict[str, Any]:
    """The page: fewer rows than the limit where more would not fit into an answer."""
    scope = [name, str(reader.task_id)]
    after = cursors.read(scope, given, cursors.number)
    allowed, rows = await database.run(
        reader.may(), statement(id=reader.task_id, after=after[0] if after else 0, limit=limit + 1, budget=PAGE_BYTES)
    )
    if not allowed:
        raise await reader.refusal(database)
    shown = rows[:limit]
    more = bool(shown) and shown[-1].found > len(shown)
    return {"items": [show(row) for row in shown], "nextCursor": cursors.write(scope, [shown[-1].seq]) if more else None}


def view(row: Row, *, whole: bool = True) -> dict[str, Any]:
    """A step as it is shown."""
    shown = {
        "name": row.name,
        "kind": row.kind,
        "status": row.status,
        "final": row.final,
        "effectSafety": row.effect_safety,
        "reconciles": row.reconciles,
        "tries": row.tries,
        "seq": row.seq,
    }
    if whole and row.status == "succeeded":
        shown["output"] = raw(row.output)
    if row.error is not None:
        shown["error"] = raw(row.error)
    return shown


def child_view(row: Row, *, whole: bool = True) -> dict[str, Any]:
    """A child as its parent sees it."""
    shown = {
        "name": row.name,
        "taskId": row.id,
        "type": row.type,
        "schemaVersion": row.schema_version,
        "status": row.status,
        "settled": row.finished_at is not None,
        "detached": row.detached,
        "createdAt": when(row.created_at),
        "finishedAt": when(row.finished_at),
    }
    if whole:
        shown |= {"result": raw(row.result), "failure": raw(row.failure)}
    return shown


def _signal_view(row: Row) -> dict[str, Any]:
    return {"name": row.name, "signalKey": row.signal_key, "payload": raw(row.payload), "at": when(row.at)}


def _json(value: Any) -> str:
    return _encode(value).decode()
