"""What worker programs say of themselves: registration, and the end of a process (protocol.md §8).

A worker id names a program, an instance one process of it. A registration replaces the handlers and schedules of its worker id as
a whole;
the end of a process leaves the registration, since the program is expected back.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from . import hints, jsontext, reports, schedules
from .db import Database, Refused, Row, Step, statements
from .errors import InvalidRequest, NotFound, PayloadTooLarge, Unavailable, WorkerIdConflict
from .ids import new_id
from .keys import Key
from .settings import Settings
from .wire.registration import Register, RegisteredHandler
from .wire.rules import INLINE_BYTES
from .wire.times import when

sql = statements("workers")

BATCH = 2000  # tasks that one statement gives a smaller start deadline
REACH_SECONDS = 15.0  # below the call's own limit; the rest is reached by the next registration
_encode = msgspec.json.Encoder().encode


async def register(
    database: Database,
    settings: Settings,
    key: Key,
    worker_id: str,
    request: Register,
    schemas: list[tuple[str | None, str | None]],
    inputs: list[str],
) -> dict[str, Any]:
    """Replaces the handlers and schedules of a worker id, in one transaction, and marks the instance alive.

    `schemas` are the exact texts of each handler's inputSchema and resultSchema, `inputs` those of each schedule's input. Raises
    ScopeDenied outside the key's narrowing,
    WorkerIdConflict where a newer build is registered, InvalidRequest, PayloadTooLarge.
    """
    key.check_worker(worker_id, request.pool, [h.type for h in request.handlers])
    rows = [_row(settings, index, handler, schemas[index]) for index, handler in enumerate(request.handlers)]
    names = [f"{h.type}@{h.schema_version}" for h in request.handlers]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidRequest(f"{name} is handled twice", f"/handlers/{index}")
    place = {"project": key.project, "worker_id": worker_id}
    text = _json(rows)
    program = {
        "pool": request.pool,
        "slots": request.slots,
        "build": request.build,
        "sdk": reports.cut(f"{request.sdk.name}/{request.sdk.version}") if request.sdk else None,
        "host": reports.cut(request.host) if request.host is not None else None,
        "instance_id": request.instance_id,
    }
    wanted = [
        schedules.Wanted(worker_id, schedule.name, schedule, inputs[index], f"/schedules/{index}")
        for index, schedule in enumerate(request.schedules or ())
    ]
    enrolment = [
        sql.enrol(**place, **program, replace=request.replace),
        sql.clear(**place),
        sql.handlers(**place, pool=request.pool, handlers=text),
        sql.types(project=key.project, handlers=text),
        sql.supersede(**place, instance_id=request.instance_id, serves=sorted(names), offline_seconds=settings.offline_seconds),
        sql.instance(**place, **program, serves=sorted(names)),
    ]
    enrolled, seen = await _enrol(database, settings, key, worker_id, request, enrolment, wanted)
    await _reach_back(database, key.project, rows)
    answer = {
        "workerId": worker_id,
        "instanceId": request.instance_id,
        "pool": request.pool,
        "slots": request.slots,
        "build": request.build,
        "handlers": [
            {"type": h.type, "schemaVersion": h.schema_version, "effectSafety": h.effect_safety} for h in request.handlers
        ],
        "registeredAt": when(enrolled[0].registered_at),
        "serverTime": when(seen[0].now),
    }
    if request.schedules is not None:
        answer["schedules"] = await schedules.brought(database, key.project, worker_id, [item.name for item in wanted])
    return answer


async def _enrol(
    database: Database,
    settings: Settings,
    key: Key,
    worker_id: str,
    request: Register,
    enrolment: list[Step],
    wanted: list[schedules.Wanted],
) -> tuple[list[Row], list[Row]]:
    """Stores a registration whole; again where a schedule of it changed, or was fired, in between."""
    for _ in range(schedules.TRIES):
        brought = await schedules.registered(database, settings, key, worker_id, wanted)
        try:
            results = await database.run(*enrolment, *brought)
        except Refused as refused:
            word, _, newer = str(refused).partition(" ")
            if word == schedules.CHANGED:
                continue
            raise WorkerIdConflict(
                f"the build {newer!r} of {worker_id} is registered, which is newer than {request.build!r}"
            ) from None
        return results[0], results[len(enrolment) - 1]
    raise Unavailable("a schedule of the worker changes under its registration")


def _row(settings: Settings, index: int, handler: RegisteredHandler, schemas: tuple[str | None, str | None]) -> dict[str, Any]:
    place = f"/handlers/{index}"
    if handler.lease_seconds is not None and handler.lease_seconds < settings.min_lease_seconds:
        raise InvalidRequest(f"leaseSeconds must be at least {settings.min_lease_seconds:g}", f"{place}/leaseSeconds")
    for name, text in zip(("inputSchema", "resultSchema"), schemas, strict=True):
        if text is not None and len(text.encode()) > INLINE_BYTES:
            broken = [{"pointer": f"{place}/{name}", "message": "is too large"}]
            raise PayloadTooLarge(f"{name} is larger than {INLINE_BYTES} bytes", errors=broken)
    retry = handler.retry or RegisteredHandler.HandlerRetry()
    return {
        "type": handler.type,
        "schema_version": handler.schema_version,
        "effect_safety": handler.effect_safety,
        "reconciles": handler.reconciles,
        "slots": handler.slots,
        "description": reports.cut(handler.description) if handler.description is not None else None,
        "input_schema": schemas[0],
        "result_schema": schemas[1],
        "max_attempts": retry.max_attempts,
        "initial_delay_seconds": retry.initial_delay_seconds,
        "multiplier": retry.multiplier,
        "max_delay_seconds": retry.max_delay_seconds,
        "jitter": retry.jitter,
        "timeout_seconds": handler.timeout_seconds,
        "lease_seconds": handler.lease_seconds,
        "start_deadline_seconds": handler.start_deadline_seconds,
    }


def schema_texts(body_text: str, request: Register) -> list[tuple[str | None, str | None]]:
    """The exact texts of (inputSchema, resultSchema) of each handler in a body that was parsed already; None where absent or null."""
    if not request.handlers:
        return []
    members = [jsontext.members(text) for text in jsontext.elements(jsontext.members(body_text)["handlers"])]
    return [
        (
            found["inputSchema"] if handler.input_schema is not None else None,
            found["resultSchema"] if handler.result_schema is not None else None,
        )
        for handler, found in zip(request.handlers, members, strict=True)
    ]


def input_texts(body_text: str, request: Register) -> list[str]:
    """The exact text of each schedule's input, in a body that was parsed already."""
    if not request.schedules:
        return []
    return [jsontext.members(text)["input"] for text in jsontext.elements(jsontext.members(body_text)["schedules"])]


async def _reach_back(database: Database, project: str, rows: list[dict[str, Any]]) -> None:
    """Gives tasks that wait already the smaller start deadline of these handlers, batch by batch.

    After the registration's commit, since submits read the handlers for themselves from then on; before its answer, so that a
    call cut short is repeated by its worker.
    """
    fields = ("type", "schema_version", "start_deadline_seconds")
    limited = [{name: row[name] for name in fields} for row in rows if row["start_deadline_seconds"]]
    until = time.monotonic() + REACH_SECONDS
    while limited and await database.one(sql.start_deadlines(project=project, handlers=_json(limited), limit=BATCH)):
        if time.monotonic() > until:
            return


async def remove(database: Database, key: Key, worker_id: str, instance_id: str) -> dict[str, Any]:
    """Takes a process that ended off the list; its registration stays. Again → duplicate. Raises NotFound, ScopeDenied."""
    key.check_worker(worker_id, None, [])
    rows = await database.one(sql.remove(project=key.project, worker_id=worker_id, instance_id=instance_id))
    if not rows:
        raise NotFound(f"there is no instance {instance_id[:80]!r} of worker {worker_id[:80]!r} in this project")
    return {"workerId": worker_id, "instanceId": instance_id, "duplicate": rows[0].before}


def _json(value: Any) -> str:
    return _encode(value).decode()


async def drain(database: Database, key: Key, worker_id: str) -> dict[str, Any]:
    """Asks every process of the worker that is alive now to drain: by hint, and with its next claim or heartbeat.

    Raises NotFound where the project never saw the worker. Asked before → duplicate.
    """
    rows = await database.one(sql.drain(project=key.project, worker_id=worker_id, key_id=key.id, audit_id=new_id()))
    if not rows:
        raise NotFound(f"there is no worker {worker_id} in this project")
    asked = [row for row in rows if row.changed]
    if asked:
        await hints.tell(database, hints.payload(key.project, drain=[worker_id]))
    return {"workerId": worker_id, "instances": [row.instance_id for row in rows if row.alive], "duplicate": not asked}


async def unregister(database: Database, key: Key, worker_id: str) -> dict[str, Any]:
    """Removes the worker's registration and its ended processes; those that run go on, unregistered. Gone → duplicate."""
    rows = await database.one(sql.unregister(project=key.project, worker_id=worker_id, key_id=key.id, audit_id=new_id()))
    return {"workerId": worker_id, "removed": True, "duplicate": not rows[0].changed}
