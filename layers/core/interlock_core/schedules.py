"""Schedules: what is to be submitted when (protocol.md §8). When that is, is `instants`; making it happen is `firings`.

A schedule belongs to an owner: a worker id, whose registration brings and removes it, or '' for those made through the API.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from . import admission, canonical, firings, instants, tasks
from . import submit as submitting
from .db import Database, Refused, Row, Step, statements
from .errors import IdempotencyConflict, InvalidRequest, NotFound, ScopeDenied, Unavailable
from .ids import new_id
from .keys import Key
from .settings import Settings
from .views import raw
from .wire.rules import check_size
from .wire.times import when

if TYPE_CHECKING:  # who shows schedules reads none
    from .wire.schedules import Timetable

sql = statements("schedules")

CHANGED = "SCHEDULES_CHANGED"
TRIES = 5  # of a call whose schedule changes, or becomes due, under it
FIRINGS_SHOWN = 5
_encode = msgspec.json.Encoder().encode
#: Of a task's columns, those that every firing copies; type, version and input stand beside them.
_OWN = ("type", "schema_version", "input", "run_at", "delay_seconds")


@dataclass(frozen=True)
class Wanted:
    """One schedule as it shall be, with the exact text of its input; `pointer` is its place in the body."""

    owner: str
    name: str
    request: Timetable
    input: str
    pointer: str = ""


async def put(database: Database, settings: Settings, key: Key, wanted: Wanted) -> tuple[dict[str, Any], bool]:
    """Makes or changes a schedule; its view and whether it is new. The same again changes nothing → duplicate.

    A pause and, where the rule stays, the next instant are kept. Raises InvalidRequest, ScopeDenied, PayloadTooLarge.
    """
    check_scope(key, wanted.request.type)
    stored = store_row(settings, wanted)
    for _ in range(TRIES):
        before, steps = await _change(database, settings, key, wanted.owner, [stored])
        known = before.get(wanted.name)
        if known is not None:
            check_scope(key, known.type)
        try:
            if steps:
                note = _note(key, "schedule-put", wanted.owner, wanted.name)
                await database.run(*steps, note)
        except Refused:
            continue
        view = await find(database, key.project, wanted.owner, wanted.name)
        view["duplicate"] = not steps
        return view, known is None
    raise Unavailable("the schedule changes under the call")


async def registered(database: Database, settings: Settings, key: Key, owner: str, wanted: Sequence[Wanted]) -> list[Step]:
    """The steps that give a worker id exactly these schedules, for the transaction of its registration.

    That is to be tried again where it is refused with CHANGED. Raises InvalidRequest, ScopeDenied, PayloadTooLarge.
    """
    names = [item.name for item in wanted]
    for index, item in enumerate(wanted):
        if item.name in names[:index]:
            raise InvalidRequest(f"there are two schedules {item.name}", item.pointer)
    if key.narrowed and not key.may_schedule:
        if wanted:
            raise ScopeDenied("the key is narrowed and may not schedule", next="Use a key that was made with maySchedule.")
        return []
    for item in wanted:
        key.check_worker(owner, item.request.pool, [item.request.type])
    rest = sql.keep_only(project=key.project, owner=owner, names=names)
    if not wanted:
        return [rest]
    _, steps = await _change(database, settings, key, owner, [store_row(settings, item) for item in wanted])
    return [rest, *steps]


async def brought(database: Database, project: str, owner: str, names: list[str]) -> list[dict[str, Any]]:
    """What a registration answers of its schedules, in their order."""
    rows = {row.name: row for row in await database.one(sql.find(project=project, owner=owner, names=names))} if names else {}
    return [
        {"name": name, "nextDueAt": when(rows[name].next_due_at), "paused": rows[name].paused_at is not None}
        for name in names
        if name in rows
    ]


async def _change(
    database: Database, settings: Settings, key: Key, owner: str, rows: list[dict[str, Any]]
) -> tuple[dict[str, Row], list[Step]]:
    """What stands now, by name, and the steps that store those of `rows` that differ.

    What is due by a rule that changes is fired first.
    """
    names = [row["name"] for row in rows]
    for _ in range(TRIES):
        clock, found = await database.run(sql.clock(), sql.find(project=key.project, owner=owner, names=names))
        before = {row.name: row for row in found}
        changed = [_place(row, before.get(row["name"]), clock[0].now) for row in rows if _differs(row, before.get(row["name"]))]
        late = [row["name"] for row in changed if not _same(row, before.get(row["name"])) and _is_due(before.get(row["name"]))]
        if not late:
            text = _encode(changed).decode()
            return before, [sql.store(project=key.project, schedules=text, key_id=key.id)] if changed else []
        await firings.fire_first(database, settings, key.project, owner, late)
    raise Unavailable("what is due of the schedule cannot be fired now")


def _differs(row: dict[str, Any], before: Row | None) -> bool:
    return before is None or bytes(before.hash).hex() != row["hash"] or before.error is not None


def _same(row: dict[str, Any], before: Row | None) -> bool:
    """Whether the rule stays; one in error starts anew."""
    rule = (row["cron"], row["time_zone"], row["every_seconds"])
    return before is not None and before.error is None and (before.cron, before.time_zone, before.every_seconds) == rule


def _is_due(before: Row | None) -> bool:
    return (
        before is not None
        and before.paused_at is None
        and before.error is None
        and before.next_due_at is not None
        and before.next_due_at <= before.now
    )


def _place(row: dict[str, Any], before: Row | None, now: Any) -> dict[str, Any]:
    """The row with its place in time: kept where the rule stays, from now on where it is new."""
    placed = row | {"revision": before.revision + 1 if before is not None else 1}
    if before is not None and _same(row, before):
        return placed | {"anchor_at": when(before.anchor_at), "next_due_at": when(before.next_due_at)}
    ahead = next(_rule(row, now).after(now), None)
    return placed | {"anchor_at": when(now), "next_due_at": when(ahead)}


def _rule(row: dict[str, Any], anchor: Any) -> instants.Rule:
    if row["cron"] is not None:
        return instants.cron(row["cron"], row["time_zone"])
    return instants.Every(row["every_seconds"], anchor)


def store_row(settings: Settings, wanted: Wanted) -> dict[str, Any]:
    """The columns of a schedule, without its place in time. Raises InvalidRequest, PayloadTooLarge, naming the field."""
    request = wanted.request
    zone = request.zone
    if request.cron is not None and zone is not None:
        try:
            instants.zone(zone)
            instants.cron(request.cron, zone)
        except instants.NoRule as error:
            field = "timeZone" if "time zone" in str(error) else "cron"
            raise InvalidRequest(str(error), f"{wanted.pointer}/{field}") from None
    check_size(wanted.input, f"{wanted.pointer}/input")
    try:
        fields = submitting.stored_fields(request.submit(), settings, wanted.input)
    except InvalidRequest as error:
        raise InvalidRequest(error.detail, f"{wanted.pointer}/leaseSeconds") from None
    options = {name: value for name, value in fields.items() if name not in _OWN and value is not None}
    if request.require_worker is not None:
        options["require_worker"] = request.require_worker
    return {
        "owner": wanted.owner,
        "name": wanted.name,
        "cron": request.cron,
        "time_zone": zone,
        "every_seconds": request.every_seconds,
        "overlap": request.overlap,
        "catch_up": request.catch_up,
        "type": request.type,
        "schema_version": request.schema_version,
        "input": wanted.input,
        "options": _encode(options).decode(),
        "given": _encode(request.template()).decode(),
        "hash": _hash(wanted, zone).hex(),
    }


def _hash(wanted: Wanted, zone: str | None) -> bytes:
    said = wanted.request.model_dump(by_alias=True, mode="json", exclude_defaults=True, exclude={"input", "name"})
    fields = {name: canonical.write(value) for name, value in said.items()} | {"timeZone": canonical.write(zone)}
    return canonical.fingerprint(fields | {"input": canonical.canonical(wanted.input)})[0]


def check_scope(key: Key, task_type: str) -> None:
    """Raises ScopeDenied where the key is narrowed to other types."""
    if not key.allows_type(task_type):
        raise ScopeDenied(f"the key is narrowed to the types {', '.join(key.types or ())}; the schedule is of {task_type}")


async def find(database: Database, project: str, owner: str, name: str) -> dict[str, Any]:
    """The view of a schedule. Raises NotFound."""
    return schedule_view(await _row(database, project, owner, name))


async def _row(database: Database, project: str, owner: str, name: str) -> Row:
    rows = await database.one(sql.find(project=project, owner=owner, names=[name]))
    if not rows:
        whose = f"worker {owner} has" if owner else "there is"
        advice = "List the schedules; one that a worker brought is found with its owner: ?owner=, or --owner."
        raise NotFound(f"{whose} no schedule {name} in this project", next=advice)
    return rows[0]


async def find_all(
    database: Database, project: str, owner: str | None, after: tuple[str, str] | None, limit: int
) -> list[tuple[tuple[str, str], dict[str, Any]]]:
    """((owner, name), view) of a page, by owner and name, one more than `limit` if there are more; inputs left out."""
    rows = await database.one(
        sql.page(
            project=project,
            only=owner,
            after_owner=after[0] if after else "",
            after_name=after[1] if after else "",
            limit=limit + 1,
        )
    )
    return [((row.owner, row.name), schedule_view(row, whole=False)) for row in rows]


def schedule_view(row: Row, *, whole: bool = True) -> dict[str, Any]:
    """The view of a row; list items (`whole=False`) leave out the input."""
    shown, error = _coming(row)
    view: dict[str, Any] = {
        "name": row.name,
        "owner": row.owner or None,
        "cron": row.cron,
        "timeZone": row.time_zone,
        "everySeconds": row.every_seconds,
        "type": row.type,
        "schemaVersion": row.schema_version,
    }
    if whole:
        view["input"] = raw(row.input)
    last = {
        "dueAt": when(row.last_due_at),
        "at": when(row.last_at),
        "outcome": row.last_outcome,
        "taskId": row.last_task_id,
        "missed": row.last_missed,
    }
    return view | {
        "overlap": row.overlap,
        "catchUp": row.catch_up,
        **msgspec.json.decode(row.given),
        "paused": row.paused_at is not None,
        "pausedAt": when(row.paused_at),
        "nextDueAt": shown[0] if shown else None,
        "nextFirings": shown,
        "lastFiring": last if row.last_due_at is not None else None,
        "fired": row.fired,
        "skipped": row.skipped,
        "missed": row.missed,
        "error": error,
        "createdAt": when(row.created_at),
        "updatedAt": when(row.updated_at),
        "duplicate": False,
    }


def _coming(row: Row) -> tuple[list[Any], dict[str, Any] | None]:
    """The next instants (of a paused one: if it were resumed now), and why there are none."""
    try:
        rule = firings.rule_of(row)
        ahead = row.next_due_at
        if ahead is None or (row.paused_at is not None and ahead <= row.now):
            ahead = None if ahead is None else next(rule.after(row.now), None)
        found = [ahead, *instants.coming(rule, ahead, FIRINGS_SHOWN - 1)] if ahead is not None else []
    except instants.NoRule as problem:
        return [], {"message": row.error or str(problem), "at": when(row.error_at)}
    if row.error is not None:
        return [], {"message": row.error, "at": when(row.error_at)}
    return [when(instant) for instant in found], None


async def pause(database: Database, key: Key, owner: str, name: str) -> dict[str, Any]:
    """Nothing fires from now on; its tasks go on. Again → duplicate. Raises NotFound, ScopeDenied."""
    check_scope(key, (await _row(database, key.project, owner, name)).type)
    rows = await database.one(sql.pause(**_who(key), owner=owner, name=name))
    view = await find(database, key.project, owner, name)
    view["duplicate"] = not rows[0].changed
    return view


async def resume(database: Database, key: Key, owner: str, name: str) -> dict[str, Any]:
    """It fires again from its next instant on; what was due meanwhile is not caught up. Not paused → duplicate."""
    for _ in range(TRIES):
        row = await _row(database, key.project, owner, name)
        check_scope(key, row.type)
        if row.paused_at is None:
            view = schedule_view(row)
            view["duplicate"] = True
            return view
        ahead, error = row.next_due_at, None
        if ahead is None or ahead <= row.now:
            try:
                ahead = next(firings.rule_of(row).after(row.now), None)
            except instants.NoRule as problem:
                error = str(problem)
        if await database.one(
            sql.resume(**_who(key), owner=owner, name=name, next_due_at=ahead, error=error, revision=row.revision)
        ):
            return await find(database, key.project, owner, name)
    raise Unavailable("the schedule changes under the call")


async def remove(database: Database, key: Key, owner: str, name: str) -> dict[str, Any]:
    """Takes a schedule away; tasks that it made go on. Gone → duplicate. Raises ScopeDenied."""
    found = await database.one(sql.find(project=key.project, owner=owner, names=[name]))
    if found:
        check_scope(key, found[0].type)
    rows = await database.one(sql.remove(**_who(key), owner=owner, name=name))
    return {"name": name, "owner": owner or None, "removed": True, "duplicate": not rows[0].changed}


async def trigger(
    database: Database, settings: Settings, key: Key, owner: str, name: str, idempotency_key: str | None
) -> tuple[dict[str, Any], bool]:
    """Makes a task of the schedule at once, paused or not; its view and whether it is new. Its instants stay as they are.

    Unless the schedule allows overlap, the task waits for those before it (with `cancel-previous`, they are asked to end).
    A repeat is answered even where the schedule is gone. Raises NotFound, ScopeDenied, IdempotencyConflict.
    """
    place = {"owner": owner, "name": name}
    digest, hashes = canonical.fingerprint({"trigger": canonical.write([owner, name])})
    try:
        row = await _row(database, key.project, owner, name)
    except NotFound:
        named_before = await database.one(submitting.sql.conflict(project=key.project, keys=[idempotency_key or ""]))
        if not named_before or bytes(named_before[0].hash) != digest:
            raise
        return await _triggered(database, settings, key, named_before[0].task_id, new=False), False
    check_scope(key, row.type)
    task_id = new_id()
    steps = submitting.reserve(key.project, settings, task_id, idempotency_key, digest, hashes)
    steps.append(sql.lock(project=key.project, **place))
    steps.append(sql.trigger(**_who(key), **place, id=task_id, hash=digest, idempotency_key=idempotency_key))
    limited = msgspec.json.decode(row.options).get("concurrency_key")
    if limited is not None:
        call = new_id()
        steps += [
            submitting.sql.lock_keys(project=key.project, keys=[limited], call=call),
            admission.sql.admit(project=key.project, keys=[limited], call=call),
        ]
    try:
        results = await database.run(*steps)
    except Refused as refused:
        if str(refused) == "NOT_FOUND":
            raise NotFound(f"there is no schedule {name} any more") from None
        raise IdempotencyConflict(f"the idempotency key {idempotency_key!r} names another request") from None
    found = {step.name: rows for step, rows in zip(steps, results, strict=True)}
    made = found["schedules.trigger"][0]
    new = made.id is not None
    if new:
        await firings.follow(database, key.project, [made], found.get("admit.admit", []))
    return await _triggered(database, settings, key, made.task_id, new=new), new


async def _triggered(database: Database, settings: Settings, key: Key, task_id: UUID, *, new: bool) -> dict[str, Any]:
    task = await tasks.find(database, key.project, task_id)
    check_scope(key, task.type)
    view = await tasks.show(database, settings, key.project, task)
    view["deduplicated"] = view["duplicate"] = not new
    return view


def broken(project: str) -> Step:
    """The step that reads the schedules in error; `broken_view` takes its rows."""
    return sql.broken(project=project)


def broken_view(row: Row) -> dict[str, Any]:
    """One schedule in error, as the doctor shows it."""
    return {"owner": row.owner or None, "name": row.name, "message": row.error, "at": when(row.error_at)}


def _who(key: Key) -> dict[str, Any]:
    return {"project": key.project, "key_id": key.id, "audit_id": new_id()}


def _note(key: Key, action: str, owner: str, name: str) -> Step:
    return sql.note(**_who(key), action=action, owner=owner, name=name)
