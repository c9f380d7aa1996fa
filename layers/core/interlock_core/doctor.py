"""Is the service well, and what does it promise: GET /v1/doctor, /v1/config, /readyz (protocol.md §4, §9, §13)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from . import attempts, claims, http, overview, schedules
from .db import Database, Row, statements
from .errors import Problem, Unavailable
from .jsontext import MAX_DEPTH, MAX_DIGITS
from .keys import Key
from .settings import Settings
from .version import VERSION
from .wire import cursors
from .wire.rules import INLINE_BYTES, TEXT_BYTES
from .wire.times import when

sql = statements("overview")

FEATURES = (
    "audit",
    "batch-submit",
    "bulk",
    "children",
    "claim-with-completion",
    "concurrency-keys",
    "delay",
    "drain",
    "effect-safety",
    "key-rotation",
    "late-reports",
    "limits",
    "pause",
    "priorities",
    "reconcile",
    "require-worker",
    "rerun",
    "rerun-from-step",
    "resolve",
    "schedules",
    "signals",
    "start-deadline",
    "steps",
    "tags",
    "timeout",
    "waits",
    "worker-registration",
)
MAX_TYPES = 500


async def config(database: Database, settings: Settings) -> dict[str, Any]:
    """What clients must know to speak to this service."""
    return {
        "streamUrl": settings.stream_url or None,
        "pollSeconds": settings.poll_seconds,
        "features": sorted([*FEATURES, *(["project-stream", "task-stream", "worker-stream"] if settings.stream_url else [])]),
        "limits": limits(settings),
        "version": VERSION,
        "epoch": (await database.one(sql.ready()))[0].epoch,
    }


def limits(settings: Settings) -> dict[str, float]:
    """Every limit that a caller can meet; durations in seconds, sizes in bytes."""
    return {
        "valueBytes": INLINE_BYTES,
        "requestBytes": http.MAX_BODY,
        "encodedRequestBytes": 4 * 1024 * 1024,
        "answerBytes": http.MAX_ANSWER,
        "claimAnswerBytes": claims.CLAIM_BYTES,
        "nestingDepth": MAX_DEPTH,
        "integerDigits": MAX_DIGITS,
        "identifierCharacters": 255,
        "tags": 16,
        "submitsPerBatch": 1000,
        "slotsPerClaim": 100,
        "attemptsPerReport": 200,
        "handlersPerWorker": 200,
        "textBytes": TEXT_BYTES,
        "logLinesPerAttempt": attempts.MAX_LINES,
        "logBytesPerAttempt": attempts.MAX_LOG_BYTES,
        "reportIntervalSeconds": attempts.REPORT_INTERVAL,
        "pageItems": cursors.MAX_LIMIT,
        "waitSeconds": 20,
        "functionWaitSeconds": settings.function_wait_seconds,
        "leaseSeconds": 60,
        "minLeaseSeconds": settings.min_lease_seconds,
        "maxLeaseSeconds": 3600,
        "offlineSeconds": settings.offline_seconds,
        "pollSeconds": settings.poll_seconds,
        "streamPollSeconds": settings.stream_poll_seconds,
        "idlePollSeconds": settings.idle_poll_seconds,
        "retentionSeconds": settings.retention_seconds,
        "retentionEverySeconds": 3600,
        "idempotencyTtlSeconds": settings.idempotency_ttl_seconds,
        "workerWaitLimitSeconds": settings.worker_wait_limit_seconds,
        "keyCacheSeconds": settings.key_cache_seconds,
    }


async def check_ready(database: Database) -> dict[str, str]:
    """Whether the database answers and has the schema. Raises Unavailable."""
    try:
        await database.one(sql.ready())
    except Problem:
        raise
    except Exception as error:  # not migrated yet, say: not ready, whatever the reason is
        raise Unavailable(f"the database does not have the schema: {type(error).__name__}") from error
    return {"status": "ready"}


async def doctor(
    database: Database, settings: Settings, key: Key, worker_id: str | None, stream_lag: float | None = None
) -> dict[str, Any]:
    """The health of the service for a producer or an operator; a worker key sees itself and the queues of its types.

    `worker_id` narrows the view of a worker key to one worker id; `stream_lag` is what the answering host knows of its stream,
    in seconds, where it has one. Raises ScopeDenied where it is outside the key's narrowing.
    """
    if key.kind == "task-worker":
        return await _worker_doctor(database, settings, key, worker_id)
    before = datetime.now(UTC)
    vitals, outbox, broken = await database.run(
        sql.vitals(project=key.project, offline_seconds=settings.offline_seconds, keep_seconds=settings.retention_seconds),
        sql.outbox(project=key.project, offline_seconds=settings.offline_seconds),
        schedules.broken(key.project),
    )
    row, owed = vitals[0], outbox[0]
    return {
        **_place(row, before),
        "queueDepth": row.queue_depth,
        "oldestDueAgeSeconds": overview.age(row.oldest_due_age),
        "onlineWorkers": row.online_workers,
        "outcomeUnknown": row.unknown,
        "debts": {
            "expiredLeases": row.expired_leases,
            "outbox": {
                "dueWithFreeSlot": owed.tasks,
                "oldestSeconds": overview.age(owed.oldest),
                "noticesNotDelivered": row.untold,
            },
            "retentionBacklog": row.retention_backlog,
        },
        "brokenSchedules": [schedules.broken_view(schedule) for schedule in broken],
        "lastSweepAt": when(row.swept_at),
        "lastRetentionAt": when(row.retained_at),
        "oldestTransactionSeconds": overview.age(row.transaction_seconds),
        "oldestTransaction": {
            "pid": row.transaction_pid,
            "application": row.transaction_application,
            "state": row.transaction_state,
        }
        if row.transaction_pid is not None
        else None,
        "streamLagSeconds": round(stream_lag, 3) if stream_lag is not None else None,
        "preparedStatements": settings.prepare_statements,
    }


def _place(row: Row, before: datetime) -> dict[str, Any]:
    asked = before + (datetime.now(UTC) - before) / 2
    return {
        "databaseTime": when(row.now),
        # of the host that answers, with sign: ahead of the database is positive. Nothing is decided by that clock.
        "hostClockDriftSeconds": round((asked - row.now).total_seconds(), 3) + 0.0,
        "schemaVersion": row.schema_version.removesuffix(".sql") if row.schema_version else None,
        "version": VERSION,
        "epoch": row.epoch,
        "project": row.project,
    }


async def _worker_doctor(database: Database, settings: Settings, key: Key, worker_id: str | None) -> dict[str, Any]:
    before = datetime.now(UTC)
    if worker_id is not None:
        key.check_worker(worker_id, None, [])
    vitals = await database.one(
        sql.vitals(project=key.project, offline_seconds=settings.offline_seconds, keep_seconds=settings.retention_seconds)
    )
    ids = [worker_id] if worker_id is not None else list(key.worker_ids or ())
    found = await overview.worker_ids(database, key.project, None, len(ids), ids) if ids else []
    views = await overview.workers(database, settings, key.project, found) if found else []
    served = {(h["type"], h["schemaVersion"]) for view in views for h in view["handlers"]}
    if worker_id is None:
        served |= set(await overview.type_names(database, key.project, None, MAX_TYPES))
    names = sorted(name for name in served if key.allows_type(name[0]))[:MAX_TYPES]
    pools = list(key.pools) if key.pools is not None else None
    queues = await database.one(sql.queues(project=key.project, names=overview.names_json(names), pools=pools))
    return {
        **_place(vitals[0], before),
        "key": {"id": key.id, "kind": key.kind, "types": key.types, "pools": key.pools, "workerIds": key.worker_ids},
        "workers": views,
        "queues": [
            {
                "type": q.type,
                "schemaVersion": q.schema_version,
                "pool": q.pool,
                "queued": q.queued,
                "oldestDueAgeSeconds": overview.age(q.oldest_due_age),
            }
            for q in queues
        ],
        "queueDepth": sum(q.queued for q in queues),
        "oldestDueAgeSeconds": overview.age(max((q.oldest_due_age for q in queues), default=None)),
        "lastSweepAt": when(vitals[0].swept_at),
    }
