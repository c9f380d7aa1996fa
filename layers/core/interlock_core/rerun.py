"""Rerunning a settled task: a new task with a life of its own (protocol.md §4, §6)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from uuid import UUID

from . import admission, canonical, hints, tasks
from . import submit as submitting
from .db import Database, Refused, statements
from .errors import NAME_A_STEP, IdempotencyConflict, InvalidRequest, NotFound, OutcomeUnknown, Problem, TaskNotFinished
from .ids import new_id
from .keys import Key
from .settings import Settings
from .states import UNKNOWN
from .wire.producer import Rerun
from .wire.rules import check_size

sql = statements("rerun")


async def rerun(
    database: Database, settings: Settings, key: Key, source: UUID, request: Rerun, input_text: str | None
) -> tuple[dict[str, Any], bool]:
    """A new task like the settled one, with another input if given; its view and whether it is new.

    Raises TaskNotFinished, OutcomeUnknown, IdempotencyConflict, NotFound, ScopeDenied, PayloadTooLarge. A rerun never
    inherits the first task's key; its own key names one rerun, and a repeat is answered even where the source is gone.
    """
    with suppress(NotFound):  # of a source that is gone: the statement says what that means
        await tasks.check_scope(database, key, source)
    if input_text is not None:
        check_size(input_text, "/input")
    new = await insert(database, settings, key.project, source, request, input_text)
    if new.deduplicated:
        await tasks.check_scope(database, key, new.task_id)
    row = await tasks.find(database, key.project, new.task_id)
    view = await tasks.show(database, settings, key.project, row)
    view["deduplicated"] = new.deduplicated
    return view, not new.deduplicated


async def insert(
    database: Database, settings: Settings, project: str, source: UUID, request: Rerun, input_text: str | None
) -> Any:
    """Stores the new task; the verdict row {task_id, deduplicated, …}. Raises as `rerun` does."""
    fields = {"rerunOf": canonical.write(str(source))}
    if input_text is not None:
        fields["input"] = canonical.canonical(input_text)
    if request.from_step is not None:
        fields["fromStep"] = canonical.write(request.from_step)
    if request.keep_effect_keys:
        fields["keepEffectKeys"] = "true"
    digest, hashes = canonical.fingerprint(fields)
    task_id = new_id()
    reserve = submitting.reserve(project, settings, task_id, request.idempotency_key, digest, hashes)
    try:
        results = await database.run(
            *reserve,
            sql.insert(
                project=project,
                source=source,
                id=task_id,
                hash=digest,
                idempotency_key=request.idempotency_key,
                input=input_text,
                from_step=request.from_step,
                keep_effect_keys=request.keep_effect_keys,
            ),
        )
    except Refused as refused:
        raise _told(str(refused), source, request) from None
    new = results[-1][0]
    if new.concurrency_key is not None:
        await database.run(submitting.sql.lock_keys(project=project, keys=[new.concurrency_key], call=new_id()))
    await admission.admit(database, project, [new.concurrency_key])
    if not new.deduplicated and new.concurrency_key is None:
        await hints.tell(database, hints.payload(project, ready=[(f"{new.type}@{new.schema_version}", new.pool, 1, 0.0)]))
    return new


def _told(reason: str, source: UUID, request: Rerun) -> Problem:
    """What a refusal of the statement means."""
    if reason == "NOT_FOUND":
        return NotFound(f"there is no task {source} in this project")
    if reason == "IDEMPOTENCY_CONFLICT":
        return IdempotencyConflict(f"the idempotency key {request.idempotency_key!r} names another request")
    if reason == "NO_STEP":
        return InvalidRequest(f"the task has no step named {request.from_step!r}", "/fromStep", next=NAME_A_STEP)
    if reason.startswith("UNSETTLED_CHILD "):
        name = reason.removeprefix("UNSETTLED_CHILD ")
        return TaskNotFinished(f"its child {name!r} is not settled, and the rerun would keep it")
    if reason == UNKNOWN:
        return OutcomeUnknown(f"whether task {source} happened is not known")
    return TaskNotFinished(f"task {source} is {reason}")
