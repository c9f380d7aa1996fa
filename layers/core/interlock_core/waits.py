"""Waits: what ends them is looked for after the task's lock, so that no wake-up is lost (protocol.md §7)."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from . import canonical, ends
from .db import Database, statements
from .errors import IdempotencyConflict, LimitExceeded, NotFound, TaskFinished
from .states import QUEUED
from .wire.rules import INLINE_BYTES, check_size

if TYPE_CHECKING:  # a claim ends waits and takes no signal
    from .wire.producer import Signal

signal_sql = statements("signal")
resume_sql = statements("resume")
resolve_sql = statements("resolve")

MOST_SIGNALS = 1_000
_encode = msgspec.json.Encoder().encode


async def signal(database: Database, project: str, task_id: UUID, request: Signal, payload: str) -> tuple[dict[str, Any], bool]:
    """Keeps a signal for the wait that takes it, and ends that wait if the task is in it; whether it is new.

    A known signal key answers the first signal whatever the status. Raises IdempotencyConflict where its payload or name
    differs, TaskFinished, LimitExceeded, NotFound, PayloadTooLarge.
    """
    check_size(payload, "/payload")
    form = canonical.write(request.name) + canonical.canonical(payload)
    _, verdicts, resumed = await database.run(
        resolve_sql.lock(project=project, id=task_id),
        signal_sql.signal(
            project=project,
            id=task_id,
            name=request.name,
            signal_key=request.signal_key,
            payload=payload,
            hash=hashlib.sha256(form.encode(errors="surrogatepass")).digest(),
            most=MOST_SIGNALS,
        ),
        resume_sql.resume(ids=[task_id], at_once=None, inline_bytes=INLINE_BYTES),
    )
    if not verdicts:
        raise NotFound(f"there is no task {task_id} in this project")
    verdict = verdicts[0]
    await ends.follow_resumed(database, resumed)  # also where the signal is refused: the wait may have been over by time
    if verdict.verdict == "differs":
        raise IdempotencyConflict(f"the signal key {request.signal_key!r} names another signal of this task")
    if verdict.verdict == "finished":
        raise TaskFinished(f"the task is {verdict.status}; nothing waits for a signal any more")
    if verdict.verdict == "too-many":
        raise LimitExceeded(f"the task keeps {MOST_SIGNALS} signals that no wait has taken")
    stored = verdict.verdict == "stored"
    return {
        "taskId": task_id,
        "name": request.name,
        "signalKey": request.signal_key,
        "seq": verdict.seq,
        "taskStatus": QUEUED if resumed else verdict.status,
        "duplicate": not stored,
    }, stored


async def wake(database: Database, groups: str) -> int:
    """Ends the waits of these groups (JSON text) whose time has come; how many ended."""
    ids = sorted(row.id for row in await database.one(resume_sql.due(groups=groups)))
    if not ids:
        return 0
    _, resumed = await database.run(
        resume_sql.lock_free(ids=ids), resume_sql.resume(ids=ids, at_once=None, inline_bytes=INLINE_BYTES)
    )
    await ends.follow_resumed(database, resumed)
    return len(resumed)
