"""What the whole is doing: workers and task types as people and programs see them (protocol.md §4).

Everything is read from live rows through partial indexes and from the roll-ups, so that no number of finished tasks slows it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec

from . import fleet
from .db import Database, statements
from .errors import NotFound, TaskTypeNotFound
from .settings import Settings
from .views import raw
from .wire.times import when

sql = statements("overview")

DECLARED_BYTES = 2_000_000  # of descriptions and schemas in one answer; JSON inside a JSON string takes up to twice of that
MAX_INSTANCES = 100  # of one worker id in one answer; `instanceCount` tells all
_encode = msgspec.json.Encoder().encode


async def worker_ids(database: Database, project: str, after: str | None, limit: int, only: list[str] | None = None) -> list[str]:
    """Worker ids in order, one more than `limit` if there are more: those that registered, and those that claim unregistered."""
    return [r.worker_id for r in await database.one(sql.worker_ids(project=project, after=after, limit=limit + 1, only=only))]


async def workers(database: Database, settings: Settings, project: str, ids: list[str]) -> list[dict[str, Any]]:
    """Views of these workers, in the order of the ids."""
    registrations, handlers, instances = await database.run(
        sql.registrations(project=project, ids=ids),
        sql.handlers_of(project=project, ids=ids),
        sql.instances_of(project=project, ids=ids, offline_seconds=settings.offline_seconds),
    )
    registered = {r.worker_id: r for r in registrations}
    served = _by(handlers, "worker_id")
    running = _by(instances, "worker_id")
    return [_worker(name, registered.get(name), served[name], running[name]) for name in ids]


async def worker(database: Database, settings: Settings, project: str, worker_id: str) -> dict[str, Any]:
    """One worker with its running attempts. Raises NotFound."""
    if not await worker_ids(database, project, None, 1, [worker_id]):
        raise NotFound(f"there is no worker {worker_id[:128]!r} in this project")
    view = (await workers(database, settings, project, [worker_id]))[0]
    rows = await database.one(sql.running_of(project=project, worker_id=worker_id))
    view["attempts"] = [
        {
            "taskId": r.id,
            "attemptId": r.attempt_id,
            "type": r.type,
            "schemaVersion": r.schema_version,
            "number": r.attempts + 1,
            "instanceId": r.instance_id,
            "startedAt": when(r.attempt_started_at),
            "leaseExpiresAt": when(r.lease_expires_at),
            "cancelRequested": r.cancel_requested,
        }
        for r in rows
    ]
    return view


def _by(rows: Iterable[Any], name: str) -> defaultdict[str, list[Any]]:
    found: defaultdict[str, list[Any]] = defaultdict(list)
    for row in rows:
        found[getattr(row, name)].append(row)
    return found


def _worker(worker_id: str, registration: Any, handlers: list[Any], instances: list[Any]) -> dict[str, Any]:
    states = {i.state for i in instances}
    online = [i for i in instances if i.online]
    return {
        "workerId": worker_id,
        # the best of its processes: one that is ready is enough for the next task
        "state": next((state for state in ("ready", "full", "draining") if state in states), "offline"),
        "registered": registration is not None,
        "pool": registration.pool if registration is not None else next((i.pool for i in instances), None),
        "slots": sum(i.slots for i in online),
        "used": sum(i.used for i in online),
        "build": registration.build if registration is not None else None,
        "registeredAt": when(registration.registered_at) if registration is not None else None,
        "lastSeen": when(max((i.last_seen for i in instances), default=None)),
        "handlers": [
            {
                "type": h.type,
                "schemaVersion": h.schema_version,
                "effectSafety": h.effect_safety,
                "reconciles": h.reconciles,
                "slots": h.slots,
            }
            for h in handlers
        ],
        "instanceCount": len(instances),
        "instances": [_instance(i) for i in instances[:MAX_INSTANCES]],
    }


def _instance(row: Any) -> dict[str, Any]:
    return {
        "instanceId": row.instance_id,
        "state": row.state,
        "pool": row.pool,
        "slots": row.slots,
        "used": row.used,
        "host": row.host,
        "build": row.build,
        "sdk": row.sdk,
        "registered": row.registered,
        "drainRequested": row.drain_requested,
        "startedAt": when(row.started_at),
        "lastSeen": when(row.last_seen),
        "serves": row.serves,
    }


async def type_names(database: Database, project: str, after: tuple[str, int] | None, limit: int) -> list[tuple[str, int]]:
    """(type, version) pairs in order, one more than `limit` if there are more: registered once, or with tasks or outcomes now."""
    after_type, after_version = after or ("", 0)
    rows = await database.one(
        sql.type_names(project=project, after_type=after_type, after_version=after_version, limit=limit + 1)
    )
    return [(r.type, r.schema_version) for r in rows]


async def _is_listed(database: Database, project: str, task_type: str, version: int) -> bool:
    """Whether the type stands in the list."""
    found = await type_names(database, project, (task_type, version - 1), 1)
    return (task_type, version) in found


async def task_types(
    database: Database, settings: Settings, project: str, names: list[tuple[str, int]], *, whole: bool = False
) -> list[dict[str, Any]]:
    """Views of these task types, in order; `whole` adds descriptions, schemas and policies of the handlers."""
    text = names_json(names)
    facts, handlers, online = await database.run(
        sql.type_facts(project=project, names=text),
        sql.handlers_for(project=project, names=text, budget=DECLARED_BYTES if whole else 0),
        fleet.state(project, names, settings),
    )
    capacity: defaultdict[str, list[tuple[str, fleet.Serving]]] = defaultdict(list)
    known = fleet.read(online)
    for (name, pool), found in sorted(known.serving.items()):
        capacity[name].append((pool, found))
    served: defaultdict[tuple[str, int], list[Any]] = defaultdict(list)
    for row in handlers:
        served[row.type, row.schema_version].append(row)
    views = []
    for row in facts:
        name = f"{row.type}@{row.schema_version}"
        view = _task_type(row, capacity[name], served[row.type, row.schema_version], whole)
        view["paused"] = not known.paused.isdisjoint((name, "project"))
        views.append(view)
    return views


async def task_type(database: Database, settings: Settings, project: str, task_type: str, version: int) -> dict[str, Any]:
    """One task type in full. Raises TaskTypeNotFound where nobody registered it and no task of it is live."""
    name = (task_type, version)
    view = (await task_types(database, settings, project, [name], whole=True))[0]
    facts = ("registered", "queued", "running", "waiting", "outcomeUnknown")
    known = any(view[fact] for fact in facts) or any(view["outcomes"]["day"].values())
    if not known and not (view["paused"] and await _is_listed(database, project, *name)):  # a pause of the project names no type
        raise TaskTypeNotFound(f"no worker ever registered {task_type}@{version} in this project, and no task of it is there")
    return view


def names_json(names: Iterable[tuple[str, int]]) -> str:
    """(type, version) pairs as the statements take them."""
    return _encode([{"type": t, "schema_version": v} for t, v in names]).decode()


def age(seconds: float | None) -> float | None:
    """An age as it is shown: never negative, whatever was done to the clock; None where there is nothing that has one."""
    return None if seconds is None else max(0.0, round(seconds, 3))


def _task_type(row: Any, capacity: list[tuple[str, fleet.Serving]], handlers: list[Any], whole: bool) -> dict[str, Any]:
    return {
        "type": row.type,
        "schemaVersion": row.schema_version,
        "registered": row.first_registered_at is not None,
        "firstRegisteredAt": when(row.first_registered_at),
        "queued": row.ready + row.delayed + row.blocked,
        "ready": row.ready,
        "notDue": row.delayed,
        "blocked": row.blocked,
        "running": row.running,
        "waiting": row.waiting,
        "outcomeUnknown": row.unknown,
        "oldestDueAgeSeconds": age(row.oldest_due_age),
        "online": {
            "instances": sum(s.instances for _, s in capacity),
            "slots": sum(s.slots for _, s in capacity),
            "used": sum(s.used for _, s in capacity),
            "free": sum(max(0, s.slots - s.used) for _, s in capacity),
        },
        "pools": [
            {
                "pool": pool,
                "instances": s.instances,
                "draining": s.draining,
                "slots": s.slots,
                "used": s.used,
                "free": max(0, s.slots - s.used),
            }
            for pool, s in capacity
        ],
        "outcomes": {
            "hour": {"succeeded": row.hour_succeeded, "failed": row.hour_failed, "cancelled": row.hour_cancelled},
            "day": {"succeeded": row.day_succeeded, "failed": row.day_failed, "cancelled": row.day_cancelled},
        },
        "waitSeconds": {"p50": row.wait_p50, "p95": row.wait_p95},
        "runSeconds": {"p50": row.run_p50, "p95": row.run_p95},
        "handlers": [_handler(h, whole) for h in handlers],
    }


def _handler(row: Any, whole: bool) -> dict[str, Any]:
    view = {
        "workerId": row.worker_id,
        "pool": row.pool,
        "effectSafety": row.effect_safety,
        "reconciles": row.reconciles,
        "slots": row.slots,
    }
    if whole:
        view |= {
            "description": row.description,
            "inputSchema": raw(row.input_schema),
            "resultSchema": raw(row.result_schema),
            "leftOut": row.left_out,
            "retry": {
                "maxAttempts": row.max_attempts,
                "initialDelaySeconds": row.initial_delay_seconds,
                "multiplier": row.multiplier,
                "maxDelaySeconds": row.max_delay_seconds,
                "jitter": row.jitter,
            },
            "timeoutSeconds": row.timeout_seconds,
            "leaseSeconds": row.lease_seconds,
            "startDeadlineSeconds": row.start_deadline_seconds,
        }
    return view
