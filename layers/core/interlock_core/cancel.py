"""Cancelling: at once where nobody runs a task, through its holder where somebody does (protocol.md §6)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from . import ends, hints
from .db import Database, Row, statements
from .errors import NotFound, OutcomeUnknown, TaskFinished
from .settings import Settings
from .tasks import show
from .tasks import sql as tasks_sql

sql = statements("cancel")


async def cancel(database: Database, settings: Settings, project: str, task_id: UUID, reason: str | None) -> dict[str, Any]:
    """Asks for an end: at once where nobody runs it, through its holder where somebody does.

    Raises TaskFinished (succeeded, failed), OutcomeUnknown, NotFound. Asked before → duplicate.
    """
    _, verdicts, rows = await database.run(
        sql.lock(project=project, ids=[task_id]),
        sql.cancel(project=project, ids=[task_id], reason=reason),
        tasks_sql.view(project=project, ids=[task_id]),
    )
    if not verdicts:
        raise NotFound(f"there is no task {task_id} in this project")
    verdict, row = verdicts[0], rows[0]
    if verdict.before in ("succeeded", "failed"):
        raise TaskFinished(f"the task {verdict.before} before it could be cancelled")
    if verdict.before == "outcome-unknown":
        raise OutcomeUnknown("nobody runs the task, and whether it happened is not known")
    await _tell(database, project, verdicts)
    view = await show(database, settings, project, row)
    view["duplicate"] = not verdict.changed
    return view


async def cancel_all(database: Database, project: str, task_ids: list[UUID], reason: str) -> int:
    """Cancels what still can be, in one transaction; how many that changed."""
    ids = sorted(task_ids)
    _, verdicts = await database.run(sql.lock(project=project, ids=ids), sql.cancel(project=project, ids=ids, reason=reason))
    await _tell(database, project, verdicts)
    return sum(verdict.changed for verdict in verdicts)


async def _tell(database: Database, project: str, verdicts: list[Row]) -> None:
    """Hints at holders and waiters, then what follows the ends: keys, parents, children."""
    changed = [verdict for verdict in verdicts if verdict.changed]
    if not changed:
        return
    holders = [(v.worker_id, v.instance_id, v.id, v.attempt_id) for v in changed if v.before == "running"]
    ended = [v for v in changed if v.before != "running"]
    await hints.tell(database, hints.payload(project, cancel=holders, done=[v.id for v in ended]))
    await ends.follow(database, project, ended, told=True)
