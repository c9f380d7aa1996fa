"""Submitting tasks: one idempotency key names one request; all of a call is stored or none (protocol.md §4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from . import admission, canonical, controls, fleet, hints, tasks
from .db import Database, Refused, Step, statements
from .errors import (
    IdempotencyConflict,
    InvalidRequest,
    NoEligibleInferenceWorker,
    NoEligibleWorker,
    NotFound,
    Problem,
    ScopeDenied,
    TaskTypeNotFound,
)
from .gather import Gather
from .ids import new_id
from .keys import Key
from .settings import Settings
from .views import task_view
from .wire.rules import check_size
from .wire.times import when

if TYPE_CHECKING:  # the sweep submits what schedules said: it reads no body
    from .wire.producer import Submit

sql = statements("submit")

_encode = msgspec.json.Encoder().encode
_RETRY_FIELDS = ("max_attempts", "initial_delay_seconds", "multiplier", "max_delay_seconds", "jitter")
_POLICY = (*_RETRY_FIELDS, "lease_seconds", "timeout_seconds", "start_deadline_seconds")
_UNHASHED = {"idempotencyKey", "trace", "requireWorker"}


@dataclass(frozen=True)
class Submission:
    """One validated request with the exact text of its input."""

    request: Submit
    input: str


def stored_fields(request: Any, settings: Settings, input_text: str) -> dict[str, Any]:
    """The columns that a submit's own fields fill, a child's too. Raises InvalidRequest for a lease below the smallest."""
    retry = request.retry
    if request.lease_seconds is not None and request.lease_seconds < settings.min_lease_seconds:
        raise InvalidRequest(f"leaseSeconds must be at least {settings.min_lease_seconds:g}", "/leaseSeconds")
    row: dict[str, Any] = {
        "type": request.type,
        "schema_version": request.schema_version,
        "pool": request.pool,
        "priority": request.priority,
        "input": input_text,
        "tags": request.tags or None,
        "trace": request.trace.model_dump_json(exclude_none=True) if request.trace else None,
        "run_at": request.run_at,
        "delay_seconds": request.delay_seconds,
        "concurrency_key": request.concurrency.key if request.concurrency else None,
        "concurrency_limit": request.concurrency.limit if request.concurrency else None,
        "lease_seconds": request.lease_seconds,
        "timeout_seconds": request.timeout_seconds,
        "start_deadline_seconds": request.start_deadline_seconds,
    }
    for name in _RETRY_FIELDS:
        row[name] = getattr(retry, name) if retry is not None else None
    # what was submitted, before a claim fills in the rest: a rerun starts from it
    given = as_json([{name: row[name] for name in _POLICY}])[1:-1]
    row["submitted"] = given if given != "{}" else None
    return row


def _row(submission: Submission, settings: Settings) -> dict[str, Any]:
    request = submission.request
    row = stored_fields(request, settings, submission.input)
    row |= {"id": new_id(), "idempotency_key": request.idempotency_key, "require_worker": request.require_worker}
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


@dataclass(frozen=True)
class _Stored:
    """What the database said of one single submit."""

    verdict: Any
    hold: str | None
    fleet: fleet.Fleet


async def submit(database: Database, settings: Settings, key: Key, submission: Submission) -> tuple[dict[str, Any], bool]:
    """Stores one task or finds the one its key names; returns its view and whether it is new.

    Single submits of one project that meet in this process share one transaction; each has its own verdict.
    Raises IdempotencyConflict, TaskTypeNotFound, NoEligibleWorker, PayloadTooLarge, ScopeDenied.
    """
    _check_scope(key, [submission])
    check_size(submission.input, "/input")
    row = _row(submission, settings)
    project = key.project
    if key.rated:
        await _spend(database, key, [row])
    shared: Gather[tuple[Submission, dict[str, Any]], _Stored] = database.shared(
        ("submit", project),
        lambda: Gather(lambda items: _store_singles(database, settings, project, items), lambda item: item[1]["idempotency_key"]),
    )
    stored = await shared.run((submission, row))
    if stored.verdict.deduplicated:
        found = await tasks.find(database, project, stored.verdict.task_id)
        view = await tasks.show(database, settings, project, found)
        view["deduplicated"] = True
        return view, False
    view = task_view(_fresh(project, row, stored), stored.fleet)
    if not stored.verdict.registered:
        view["warnings"] = [_never_registered(submission.request.type)]
    return view, True


async def _store_singles(
    database: Database, settings: Settings, project: str, items: Sequence[tuple[Submission, dict[str, Any]]]
) -> list[_Stored | BaseException]:
    """Stores several single submits in one transaction; where one is refused, each is tried alone."""
    rows = [row for _, row in items]
    types = {(row["type"], row["schema_version"]) for row in rows}
    keys = sorted({row["concurrency_key"] for row in rows if row["concurrency_key"]})
    steps = [*_store(project, settings, rows, keys), fleet.state(project, types, settings)]
    if keys:
        steps.append(sql.holds(ids=[row["id"] for row in rows]))
    try:
        results = await database.run(*steps, notify=_hint(project, [submission for submission, _ in items]))
    except Refused as refused:
        if len(items) > 1:
            return [(await _store_singles(database, settings, project, [item]))[0] for item in items]
        return [await _refusal(database, project, str(refused), [items[0][0]], rows, "")]
    by_name = {step.name: result for step, result in zip(steps, results, strict=True)}
    verdicts = {verdict.id: verdict for verdict in by_name["submit.insert"]}
    holds = {r.id: r.hold for r in by_name.get("submit.holds", [])}
    found = fleet.read(by_name["fleet.state"])
    return [_Stored(verdicts[i], holds.get(i, verdicts[i].hold), found) for i in (row["id"] for row in rows)]


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


def _fresh(project: str, row: dict[str, Any], stored: _Stored) -> SimpleNamespace:
    """The row of a task stored a moment ago, without reading it back."""
    known = {
        "project": project,
        "status": "queued",
        "hold": stored.hold,
        "attempts": 0,
        "cancel_requested": False,
        "journal_seq": 1,
        "effect_scope": row["id"],
        "created_at": stored.verdict.created_at,
        "due_at": stored.verdict.due_at,
        "now": stored.verdict.created_at,
        "start_deadline_seconds": stored.verdict.start_deadline_seconds,
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
        check_size(submission.input, f"/tasks/{index}/input")
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
    if key.rated:
        await _spend(database, key, rows)
    keys = sorted({row["concurrency_key"] for row in rows if row["concurrency_key"]})
    try:
        results = await database.run(*_store(key.project, settings, rows, keys), notify=_hint(key.project, submissions))
    except Refused as refused:
        raise await _refusal(database, key.project, str(refused), submissions, rows, "/tasks") from None
    verdicts = {verdict.id: verdict for verdict in results[-3 if keys else -1]}
    return [{"id": verdicts[i].task_id, "deduplicated": verdicts[i].deduplicated or twice} for i, twice in answers]


async def _spend(database: Database, key: Key, rows: list[dict[str, Any]]) -> None:
    """Takes what is new from the key's allowance; a repeat of an accepted request costs nothing and is never refused."""
    named = sorted({row["idempotency_key"] for row in rows if row["idempotency_key"] is not None})
    known = len(await database.one(sql.conflict(project=key.project, keys=named))) if named else 0
    if len(rows) > known:
        await controls.spend(database, key, len(rows) - known)


def _store(project: str, settings: Settings, rows: list[dict[str, Any]], keys: list[str]) -> list[Step]:
    named = [row for row in rows if row["idempotency_key"] is not None]
    text = as_json(rows)
    steps = [sql.insert(project=project, rows=text, offline_seconds=settings.offline_seconds)]
    if named:
        texts = as_json([{name: row[name] for name in ("id", "idempotency_key", "hash", "version", "fields")} for row in named])
        steps.insert(0, sql.reserve(project=project, rows=texts, ttl=settings.idempotency_ttl_seconds))
    if keys:
        call = new_id()
        steps += [
            sql.lock_keys(project=project, keys=keys, call=call),
            admission.sql.admit(project=project, keys=keys, call=call),
        ]
    return steps


def reserve(project: str, settings: Settings, task_id: UUID, key: str | None, digest: bytes, fields: str) -> list[Step]:
    """The step that takes an idempotency key for one new task of a request with this fingerprint; none without a key."""
    if key is None:
        return []
    named = {"id": task_id, "idempotency_key": key, "hash": digest.hex(), "version": canonical.VERSION, "fields": fields}
    return [sql.reserve(project=project, rows=as_json([named]), ttl=settings.idempotency_ttl_seconds)]


def as_json(rows: list[dict[str, Any]]) -> str:
    """Rows as one JSON parameter, without what is null: most of a plain task is."""
    return _encode([{name: value for name, value in row.items() if value is not None} for row in rows]).decode()


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
    for stored in await database.one(sql.conflict(project=project, keys=sorted(wanted))):
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
