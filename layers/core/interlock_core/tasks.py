"""What producers and operators do with stored tasks: read, wait, cancel, resolve (protocol.md §4, §10)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from . import canonical, ends, fleet
from .db import Database, statements
from .errors import (
    NAME_A_STEP,
    InvalidRequest,
    NotFound,
    ScopeDenied,
    TaskNotUnknown,
)
from .gather import Gather
from .ids import new_id
from .keys import Key
from .settings import Settings
from .states import ENDS
from .views import raw, task_view
from .wire.rules import check_size
from .wire.times import when

if TYPE_CHECKING:  # who reads tasks reads no body
    from .wire.producer import Resolve

sql = statements("tasks")
resolve_sql = statements("resolve")


async def show(database: Database, settings: Settings, project: str, row: Any) -> dict[str, Any]:
    """The view of a row, with the reason why it waits (the fleet is only asked while it does)."""
    if row.status != "queued":
        return task_view(row, fleet.NOBODY)
    return task_view(row, fleet.read(await database.one(fleet.state(project, [(row.type, row.schema_version)], settings))))


async def find(database: Database, project: str, task_id: UUID) -> Any:
    """The row of a task. Raises NotFound, also for another project's task."""
    shared: Gather[UUID, Any] = database.shared(
        ("tasks.find", project), lambda: Gather(lambda ids: _find_some(database, project, ids), lambda _: None, most=20)
    )
    row = await shared.run(task_id)
    if row is None:
        raise NotFound(f"there is no task {task_id} in this project")
    return row


async def _find_some(database: Database, project: str, task_ids: Sequence[UUID]) -> list[Any]:
    """The rows of tasks, None for one that the project has not."""
    found = {row.id: row for row in await database.one(sql.view(project=project, ids=list(set(task_ids))))}
    return [found.get(task_id) for task_id in task_ids]


async def check_scope(database: Database, key: Key, task_id: UUID) -> None:
    """Raises ScopeDenied where the key is narrowed to types other than the task's. One that is not narrowed costs nothing."""
    if key.types is None:
        return
    task_type = (await find(database, key.project, task_id)).type
    if not key.allows_type(task_type):
        raise ScopeDenied(f"the key is narrowed to the types {', '.join(key.types)}; the task is of {task_type}")


async def wait(database: Database, project: str, task_id: UUID, seconds: float) -> Any:
    """The row once the task is settled or unknown, or as it is after `seconds`: by looking again, ever less often.

    For hosts without a LISTEN connection; the stream host waits for hints instead. Raises NotFound.
    """
    until = time.monotonic() + seconds
    pause = 0.1
    row = await find(database, project, task_id)
    while row.status not in ENDS and (left := until - time.monotonic()) > 0:
        await asyncio.sleep(min(pause, left))
        pause = min(pause * 1.5, 1.0)
        row = await find(database, project, task_id)
    return row


async def attempts(database: Database, task_id: UUID) -> list[dict[str, Any]]:
    """The attempts of a task as its journal tells them, oldest first: those of its latest 1000 events."""
    found: dict[UUID, dict[str, Any]] = {}
    for event in await database.one(sql.attempts(id=task_id)):
        if event.kind == "claimed":
            data = msgspec.json.decode(event.data)
            found[event.attempt_id] = {
                "id": event.attempt_id,
                "number": data["number"],
                "fence": data["fence"],
                "workerId": data["workerId"],
                "instanceId": data["instanceId"],
                "effectSafety": data["effectSafety"],
                "startedAt": when(event.at),
                "endedAt": None,
                "end": None,
            }
        elif (attempt := found.get(event.attempt_id)) is not None:
            recovered = event.kind == "lease-recovered"
            attempt["end"] = None if recovered else event.kind
            attempt["endedAt"] = None if recovered else when(event.at)
    return list(found.values())


async def find_all(database: Database, project: str, filters: dict[str, Any], after: list[Any] | None, limit: int) -> list[Any]:
    """Rows of a page, newest first, one more than `limit` if there are more."""
    return await database.one(
        sql.page(
            project=project,
            **filters,
            after_at=after[0] if after else None,
            after_id=after[1] if after else None,
            limit=limit + 1,
        )
    )


async def show_all(database: Database, settings: Settings, project: str, rows: list[Any]) -> list[dict[str, Any]]:
    """List items of rows: without input and result, with the reason why each waits."""
    types = {(row.type, row.schema_version) for row in rows if row.status == "queued"}
    found = fleet.NOBODY
    if types:
        found = fleet.read(await database.one(fleet.state(project, types, settings)))
    return [task_view(row, found, whole=False) for row in rows]


async def journal(database: Database, project: str, task_id: UUID, after: int, limit: int) -> list[dict[str, Any]]:
    """Events of a task after a seq, in order, one more than `limit` if there are more. Raises NotFound."""
    await find(database, project, task_id)
    return [event_view(row) for row in await database.one(sql.journal(id=task_id, after=after, limit=limit + 1))]


def event_view(row: Any) -> dict[str, Any]:
    """One journal event as it is shown."""
    event = {"seq": row.seq, "at": when(row.at), "kind": row.kind, "data": raw(row.data)}
    if row.attempt_id is not None:
        event["attemptId"] = row.attempt_id
    return event


async def resolve(
    database: Database, settings: Settings, key: Key, task_id: UUID, request: Resolve, result: str | None
) -> dict[str, Any]:
    """Settles an outcome-unknown task as a person found it to be, or queues it again.

    Raises TaskNotUnknown (another attempt, status or result), InvalidRequest, PayloadTooLarge, NotFound. The same again → duplicate.
    """
    if request.as_ == "reconcile" and request.step is not None:
        raise InvalidRequest("a step is resolved as succeeded, failed or requeue; `as: reconcile` goes with the task", "/step")
    if request.as_ == "succeeded":
        check_size(result or "null", "/result")
    elif result is not None:
        raise InvalidRequest("result goes with `as: succeeded` only", "/result")
    said = {"as": canonical.write(request.as_), "result": canonical.canonical(result or "null")}
    _, verdicts, rows = await database.run(
        resolve_sql.lock(project=key.project, id=task_id),
        resolve_sql.resolve(
            project=key.project,
            id=task_id,
            attempt_id=request.attempt_id,
            result=result or "null",
            note=request.note,
            step=request.step,
            hash=canonical.fingerprint(said)[0],
            key_id=key.id,
            audit_id=new_id(),
            **{"as": request.as_},
        ),
        sql.view(project=key.project, ids=[task_id]),
    )
    if not verdicts:
        raise NotFound(f"there is no task {task_id} in this project")
    verdict, row = verdicts[0], rows[0]
    if not verdict.changed and not verdict.repeated:
        if verdict.before == "outcome-unknown" and str(verdict.attempt_id) == request.attempt_id:
            raise InvalidRequest(f"the task has no open step named {request.step!r}", "/step", next=NAME_A_STEP)
        if verdict.before == "outcome-unknown":
            raise TaskNotUnknown(f"the unknown attempt is {verdict.attempt_id}, not {request.attempt_id}")
        raise TaskNotUnknown(f"the task is {verdict.before}", next="Read the task; there is nothing to resolve.")
    if verdict.changed:
        await ends.follow(database, key.project, [verdict])
    view = await show(database, settings, key.project, row)
    view["duplicate"] = not verdict.changed
    return view
