"""What producers and operators do with tasks: submit, read, cancel, resolve (protocol.md §4, §10)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import msgspec

from . import admission, canonical, fleet, hints
from .db import Database, Refused, statements
from .errors import (
    IdempotencyConflict,
    InvalidRequest,
    NoEligibleInferenceWorker,
    NoEligibleWorker,
    NotFound,
    OutcomeUnknown,
    PayloadTooLarge,
    Problem,
    ScopeDenied,
    TaskFinished,
    TaskNotUnknown,
    TaskTypeNotFound,
)
from .ids import new_id
from .keys import Key
from .settings import Settings
from .states import ENDS
from .views import raw, task_view
from .wire.fields import INLINE_BYTES
from .wire.producer import Resolve, Submit
from .wire.times import when

submit_sql = statements("submit")
tasks_sql = statements("tasks")
cancel_sql = statements("cancel")
resolve_sql = statements("resolve")

_encode = msgspec.json.Encoder().encode
_RETRY_FIELDS = ("max_attempts", "initial_delay_seconds", "multiplier", "max_delay_seconds", "jitter")
_UNHASHED = {"idempotencyKey", "trace", "requireWorker"}


@dataclass(frozen=True)
class Submission:
    """One validated request with the exact text of its input."""

    request: Submit
    input: str


def _row(submission: Submission, settings: Settings) -> dict[str, Any]:
    request = submission.request
    retry = request.retry
    if request.lease_seconds is not None and request.lease_seconds < settings.min_lease_seconds:
        raise InvalidRequest(f"leaseSeconds must be at least {settings.min_lease_seconds:g}", "/leaseSeconds")
    row: dict[str, Any] = {
        "id": new_id(),
        "type": request.type,
        "schema_version": request.schema_version,
        "pool": request.pool,
        "priority": request.priority,
        "input": submission.input,
        "tags": request.tags or None,
        "trace": request.trace.model_dump_json(exclude_none=True) if request.trace else None,
        "idempotency_key": request.idempotency_key,
        "run_at": request.run_at,
        "delay_seconds": request.delay_seconds,
        "concurrency_key": request.concurrency.key if request.concurrency else None,
        "concurrency_limit": request.concurrency.limit if request.concurrency else None,
        "lease_seconds": request.lease_seconds,
        "timeout_seconds": request.timeout_seconds,
        "start_deadline_seconds": request.start_deadline_seconds,
        "require_worker": request.require_worker,
    }
    for name in _RETRY_FIELDS:
        row[name] = getattr(retry, name) if retry is not None else None
    if request.idempotency_key is not None:
        digest, fields = canonical.fingerprint(canonical_fields(submission))
        row |= {"hash": digest.hex(), "version": canonical.VERSION, "fields": fields}
    return row


def canonical_fields(submission: Submission) -> dict[str, str]:
    """Field → canonical text of a submit, protocol defaults and delivery matters left out."""
    given = submission.request.model_dump(by_alias=True, mode="json", exclude_defaults=True, exclude={"input"})
    if submission.request.run_at is not None:
        given["runAt"] = when(submission.request.run_at)
    fields = {name: canonical.write(value) for name, value in given.items() if name not in _UNHASHED and value not in ({}, None)}
    fields["input"] = canonical.canonical(submission.input)
    return fields


def _check_size(text: str, pointer: str) -> None:
    if len(text) > INLINE_BYTES // 4 and len(text.encode()) > INLINE_BYTES:
        raise PayloadTooLarge(
            f"{pointer} is larger than {INLINE_BYTES} bytes", errors=[{"pointer": pointer, "message": "is too large"}]
        )


async def submit(database: Database, settings: Settings, key: Key, submission: Submission) -> tuple[dict[str, Any], bool]:
    """Stores one task or finds the one its key names; returns its view and whether it is new.

    Raises IdempotencyConflict, TaskTypeNotFound, NoEligibleWorker, PayloadTooLarge, ScopeDenied.
    """
    _check_scope(key, [submission])
    _check_size(submission.input, "/input")
    row = _row(submission, settings)
    request = submission.request
    keys = [row["concurrency_key"]] if row["concurrency_key"] else []
    steps = [
        *_store(key.project, settings, [row], keys),
        fleet.state(key.project, [(request.type, request.schema_version)], settings),
    ]
    try:
        results = await database.run(*steps, notify=_hint(key.project, [submission]))
    except Refused as refused:
        raise await _refusal(database, key.project, str(refused), [submission], [row], "") from None
    verdict = results[1][0]
    if verdict.deduplicated:
        view = await _one(database, settings, key.project, verdict.task_id)
        view["deduplicated"] = True
        return view, False
    hold = verdict.hold
    if keys and results[3]:  # its key let it in at once
        hold = None
    view = task_view(_fresh(key.project, row, verdict, hold), fleet.read(results[-1]))
    if not verdict.registered:
        view["warnings"] = [_never_registered(request.type)]
    return view, True


# What no new task has yet; the rest of a row is what was stored.
_UNSTARTED = dict.fromkeys(
    (
        "result",
        "failure",
        "progress",
        "started_at",
        "finished_at",
        "rerun_of",
        "parent_id",
        "schedule_owner",
        "schedule_name",
        "attempt_id",
    )
)


def _fresh(project: str, row: dict[str, Any], verdict: Any, hold: str | None) -> SimpleNamespace:
    """The row of a task stored a moment ago, without reading it back."""
    known = {
        "project": project,
        "status": "queued",
        "hold": hold,
        "attempts": 0,
        "cancel_requested": False,
        "journal_seq": 1,
        "effect_scope": row["id"],
        "created_at": verdict.created_at,
        "due_at": verdict.due_at,
        "now": verdict.created_at,
        "start_deadline_seconds": verdict.start_deadline_seconds,
    }
    return SimpleNamespace(**row | _UNSTARTED | known)


def _never_registered(task_type: str) -> dict[str, str]:
    return {
        "code": "TYPE_NEVER_REGISTERED",
        "message": f"no worker ever registered the type {task_type} in this project; the task waits until one does",
    }


async def submit_batch(
    database: Database, settings: Settings, key: Key, submissions: Sequence[Submission]
) -> list[dict[str, Any]]:
    """Stores all tasks or none; returns id and deduplicated of each, in order. Errors name the item by pointer."""
    _check_scope(key, submissions)
    rows: list[dict[str, Any]] = []
    first: dict[str, dict[str, Any]] = {}
    answers: list[tuple[UUID, bool]] = []
    for index, submission in enumerate(submissions):
        _check_size(submission.input, f"/tasks/{index}/input")
        row = _row(submission, settings)
        name = row["idempotency_key"]
        earlier = first.get(name) if name is not None else None
        if earlier is None:
            rows.append(row)
            if name is not None:
                first[name] = row
        elif earlier["hash"] != row["hash"]:
            field = canonical.first_difference(earlier["fields"], row["fields"])
            raise IdempotencyConflict(
                f"two items of the batch share the key {name!r} and differ in {field}",
                errors=[{"pointer": f"/tasks/{index}/{field}", "message": "differs from an earlier item with the same key"}],
            )
        answers.append(((earlier or row)["id"], earlier is not None))
    keys = sorted({row["concurrency_key"] for row in rows if row["concurrency_key"]})
    try:
        results = await database.run(*_store(key.project, settings, rows, keys), notify=_hint(key.project, submissions))
    except Refused as refused:
        raise await _refusal(database, key.project, str(refused), submissions, rows, "/tasks") from None
    verdicts = {verdict.id: verdict for verdict in results[1]}
    return [{"id": verdicts[i].task_id, "deduplicated": verdicts[i].deduplicated or twice} for i, twice in answers]


def _store(project: str, settings: Settings, rows: list[dict[str, Any]], keys: list[str]) -> list[Any]:
    text = _encode(rows).decode()
    steps = [
        submit_sql.reserve(project=project, rows=text, ttl=settings.idempotency_ttl_seconds),
        submit_sql.insert(project=project, rows=text, offline_seconds=settings.offline_seconds),
    ]
    if keys:
        call = new_id()
        steps += [
            submit_sql.lock_keys(project=project, keys=keys, call=call),
            admission.sql.admit(project=project, keys=keys, call=call),
        ]
    return steps


def _hint(project: str, submissions: Sequence[Submission]) -> Any:
    rows = [
        (s.request.type, s.request.schema_version, s.request.pool, s.request.delay_seconds or hints.until(s.request.run_at))
        for s in submissions
    ]
    return hints.send(hints.payload(project, ready=hints.group(rows)))


def _check_scope(key: Key, submissions: Sequence[Submission]) -> None:
    for submission in submissions:
        if not key.allows_type(submission.request.type):
            raise ScopeDenied(
                f"the key is narrowed to the types {', '.join(key.types or ())}; the call names {submission.request.type}"
            )


async def _refusal(
    database: Database, project: str, reason: str, submissions: Sequence[Submission], rows: list[dict[str, Any]], prefix: str
) -> Problem:
    word, _, name = reason.partition(" ")
    if word == "NOT_REGISTERED":
        return TaskTypeNotFound(f"no worker ever registered {name} in this project")
    if word == "NOT_ONLINE":
        if name.startswith("inference/"):
            return NoEligibleInferenceWorker(f"no online worker serves {name}", managedFallbackUsed=False, billed=False)
        return NoEligibleWorker(f"no online worker serves {name}")
    if word == "NO_PROJECT":
        return NotFound(f"there is no project {project}")
    wanted = {row["idempotency_key"]: row for row in rows if row["idempotency_key"] is not None}
    for stored in await database.one(submit_sql.conflict(project=project, keys=sorted(wanted))):
        row = wanted[stored.key]
        if bytes(stored.hash).hex() == row["hash"]:
            continue
        field = canonical.first_difference(stored.fields, row["fields"])
        index = next(i for i, s in enumerate(submissions) if s.request.idempotency_key == stored.key)
        pointer = f"{prefix}/{index}/{field}" if prefix else f"/{field}"
        return IdempotencyConflict(
            f"the idempotency key {stored.key!r} names task {stored.task_id}, which differs in {field}",
            taskId=stored.task_id,
            field=field,
            errors=[{"pointer": pointer, "message": "differs from the first request with this key"}],
        )
    return IdempotencyConflict("the idempotency key named another request until just now", next="Send the request again.")


async def _one(database: Database, settings: Settings, project: str, task_id: UUID) -> dict[str, Any]:
    rows = await database.one(tasks_sql.view(project=project, ids=[task_id]))
    if not rows:
        raise NotFound(f"there is no task {task_id} in this project")
    return await show(database, settings, project, rows[0])


async def show(database: Database, settings: Settings, project: str, row: Any) -> dict[str, Any]:
    """The view of a row, with the reason why it waits (the fleet is only asked while it does)."""
    if row.status != "queued":
        return task_view(row, fleet.NOBODY)
    return task_view(row, fleet.read(await database.one(fleet.state(project, [(row.type, row.schema_version)], settings))))


async def find(database: Database, project: str, task_id: UUID) -> Any:
    """The row of a task. Raises NotFound, also for another project's task."""
    rows = await database.one(tasks_sql.view(project=project, ids=[task_id]))
    if not rows:
        raise NotFound(f"there is no task {task_id} in this project")
    return rows[0]


async def wait(database: Database, project: str, row: Any, seconds: float) -> Any:
    """The row once the task is settled or unknown, or as it is after `seconds`: by looking again, ever less often.

    For hosts without a LISTEN connection; the stream host waits for hints instead.
    """
    until = time.monotonic() + seconds
    pause = 0.1
    while row.status not in ENDS and (left := until - time.monotonic()) > 0:
        await asyncio.sleep(min(pause, left))
        pause = min(pause * 1.5, 1.0)
        row = await find(database, project, row.id)
    return row


async def attempts(database: Database, task_id: UUID) -> list[dict[str, Any]]:
    """The attempts of a task as its journal tells them, oldest first, at most 1000 events."""
    found: dict[UUID, dict[str, Any]] = {}
    for event in await database.one(tasks_sql.attempts(id=task_id)):
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
        tasks_sql.page(
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
    return [event_view(row) for row in await database.one(tasks_sql.journal(id=task_id, after=after, limit=limit + 1))]


def event_view(row: Any) -> dict[str, Any]:
    """One journal event as it is shown."""
    event = {"seq": row.seq, "at": when(row.at), "kind": row.kind, "data": raw(row.data)}
    if row.attempt_id is not None:
        event["attemptId"] = row.attempt_id
    return event


async def cancel(database: Database, settings: Settings, project: str, task_id: UUID, reason: str | None) -> dict[str, Any]:
    """Asks for an end: at once where nobody runs it, through its holder where somebody does.

    Raises TaskFinished (succeeded, failed), OutcomeUnknown, NotFound. Asked before → duplicate.
    """
    _, verdicts, rows = await database.run(
        cancel_sql.lock(project=project, ids=[task_id]),
        cancel_sql.cancel(project=project, ids=[task_id], reason=reason),
        tasks_sql.view(project=project, ids=[task_id]),
    )
    if not verdicts:
        raise NotFound(f"there is no task {task_id} in this project")
    verdict, row = verdicts[0], rows[0]
    if verdict.before in ("succeeded", "failed"):
        raise TaskFinished(f"the task {verdict.before} before it could be cancelled")
    if verdict.before == "outcome-unknown":
        raise OutcomeUnknown("nobody runs the task, and whether it happened is not known")
    if verdict.changed:
        holder = [(verdict.worker_id, verdict.instance_id, task_id, verdict.attempt_id)] if row.status == "running" else []
        done = [task_id] if row.status == "cancelled" else []
        await admission.admit(database, project, [row.concurrency_key] if done else [])  # it may have held a ready place of its key
        await database.one(hints.send(hints.payload(project, cancel=holder, done=done)))
    view = await show(database, settings, project, row)
    view["duplicate"] = not verdict.changed
    return view


async def resolve(
    database: Database, settings: Settings, key: Key, task_id: UUID, request: Resolve, result: str | None
) -> dict[str, Any]:
    """Settles an outcome-unknown task as a person found it to be, or queues it again.

    Raises TaskNotUnknown (another attempt or status), InvalidRequest, PayloadTooLarge, NotFound. The same again → duplicate.
    """
    if request.as_ == "succeeded":
        _check_size(result or "null", "/result")
    elif result is not None:
        raise InvalidRequest("result goes with `as: succeeded` only", "/result")
    _, verdicts, rows = await database.run(
        resolve_sql.lock(project=key.project, id=task_id),
        resolve_sql.resolve(
            project=key.project,
            id=task_id,
            attempt_id=request.attempt_id,
            result=result or "null",
            note=request.note,
            key_id=key.id,
            audit_id=new_id(),
            **{"as": request.as_},
        ),
        tasks_sql.view(project=key.project, ids=[task_id]),
    )
    if not verdicts:
        raise NotFound(f"there is no task {task_id} in this project")
    verdict, row = verdicts[0], rows[0]
    if not verdict.changed and not verdict.repeated:
        if verdict.before == "outcome-unknown":
            raise TaskNotUnknown(f"the unknown attempt is {verdict.attempt_id}, not {request.attempt_id}")
        raise TaskNotUnknown(f"the task is {verdict.before}")
    if verdict.changed:
        await admission.admit(database, key.project, [verdict.concurrency_key])
        ready = [(f"{verdict.type}@{verdict.schema_version}", verdict.pool, 1, 0.0)] if row.status == "queued" else []
        done = [task_id] if row.status != "queued" else []
        await database.one(hints.send(hints.payload(key.project, ready=ready, done=done)))
    view = await show(database, settings, key.project, row)
    view["duplicate"] = not verdict.changed
    return view
