"""The task as callers see it (protocol.md §3)."""

from __future__ import annotations

from typing import Any

import msgspec

from .fleet import Fleet, waiting
from .states import SETTLED
from .wire.times import when


def raw(text: str | None) -> Any:
    """Stored JSON text, embedded in an answer exactly as it was sent."""
    return None if text is None else msgspec.Raw(text.encode())


def task_view(row: Any, fleet: Fleet, *, whole: bool = True) -> dict[str, Any]:
    """The TaskView of a row; list items (`whole=False`) leave out input and result."""
    view: dict[str, Any] = {
        "id": row.id,
        "project": row.project,
        "type": row.type,
        "schemaVersion": row.schema_version,
        "pool": row.pool,
        "status": row.status,
        "settled": row.status in SETTLED,
        "priority": row.priority,
    }
    if whole:
        view["input"] = raw(row.input)
        view["result"] = raw(row.result)
    view |= {
        "failure": raw(row.failure),
        "progress": raw(row.progress),
        "attempt": _attempt(row),
        "attempts": row.attempts,
        "retry": {
            "maxAttempts": _or(row.max_attempts, 5),
            "initialDelaySeconds": _or(row.initial_delay_seconds, 1.0),
            "multiplier": _or(row.multiplier, 2.0),
            "maxDelaySeconds": _or(row.max_delay_seconds, 300.0),
            "jitter": _or(row.jitter, 0.2),
        },
        "leaseSeconds": _or(row.lease_seconds, 60.0),
        "timeoutSeconds": row.timeout_seconds,
        "startDeadlineSeconds": row.start_deadline_seconds,
        "concurrency": {"key": row.concurrency_key, "limit": row.concurrency_limit} if row.concurrency_key is not None else None,
        "createdAt": when(row.created_at),
        "dueAt": when(row.due_at),
        "startedAt": when(row.started_at),
        "finishedAt": when(row.finished_at),
        "cancelRequested": row.cancel_requested,
        "idempotencyKey": row.idempotency_key,
        "deduplicated": False,
        "duplicate": False,
        "tags": row.tags or {},
        "trace": raw(row.trace),
        "rerunOf": row.rerun_of,
        "parentId": row.parent_id,
        "scheduleOwner": row.schedule_owner,
        "scheduleName": row.schedule_name,
        "effectScope": row.effect_scope,
        "journalSeq": row.journal_seq,
        "warnings": [],
    }
    reason = waiting(row, fleet)
    if reason is not None:
        view["waiting"] = reason
    return view


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _attempt(row: Any) -> dict[str, Any] | None:
    if row.attempt_id is None:
        return None
    return {
        "id": row.attempt_id,
        "number": row.attempt_number,
        "fence": row.fence,
        "workerId": row.worker_id,
        "instanceId": row.instance_id,
        "effectSafety": row.effect_safety,
        "startedAt": when(row.attempt_started_at),
        "leaseExpiresAt": when(row.lease_expires_at),
        "deadlineAt": when(row.deadline_at),
    }
