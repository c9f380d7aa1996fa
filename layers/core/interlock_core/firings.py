"""Firing what is due: any number of tickers, any clocks, one task per (owner, schedule, due instant) (protocol.md §8).

The database says which schedules are due and what time it is; what that means is computed here (`instants`); the database takes
it only if the schedule still stands where it was read. Nothing is remembered between passes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any
from uuid import UUID

import msgspec

from . import admission, cancel, hints, instants, previous
from . import submit as submitting
from .db import Database, Row, statements
from .errors import Problem
from .ids import new_id
from .settings import Settings
from .wire.times import when

log = logging.getLogger("interlock.firings")
sql = statements("firings")

SECONDS = 20.0
BATCH = 200
LOOKS = 3
LEAST_AWAY = 15.0
AGAIN_SECONDS = 1.0
STAY_SECONDS = 5.0  # for one instant's firings: what is left of a large one is the next run's
Pause = Callable[[float], Awaitable[None]]
_encode = msgspec.json.Encoder().encode


async def fire_due(database: Database, settings: Settings, seconds: float = SECONDS) -> dict[str, int]:
    """One pass over what is due: counts of tasks made, instants passed over, schedules found broken.

    A schedule that cannot be computed is marked in error and stops no other; one that somebody else holds is left to them.
    Raises Unavailable.
    """
    until = time.monotonic() + seconds
    done = {"fired": 0, "skipped": 0, "missed": 0, "broken": await _check_zones(database)}
    looks = LOOKS
    while time.monotonic() < until:
        rows = await database.one(sql.due(limit=BATCH))
        # Nothing moved: others were quicker, or hold what is left. What they fired may have more behind it.
        looks = LOOKS if await _fire_rows(database, settings, rows, done) else looks - 1
        if not rows or not looks:
            await database.one(sql.done())
            break
    done["released"] = await previous.repair(database)
    done["superseded"] = await _supersede(database, None, None)
    return done


async def ahead(database: Database) -> float | None:
    """In how many seconds the next schedule is due; None where none ever is."""
    due_in: float | None = (await database.one(sql.ahead()))[0].due_in
    return due_in


async def stay(database: Database, settings: Settings, due_in: float | None, seconds: float, pause: Pause) -> int:
    """Fires schedules at their instants, as long as the next one is due within what is left of `seconds`; how many tasks.

    `due_in` is what `ahead` told. Ends as soon as nothing is due in that time. Raises Unavailable.
    """
    fired, left = 0, seconds
    began = time.monotonic()
    while due_in is not None and max(due_in, 0.0) < left and time.monotonic() - began < seconds:
        # A moment late rather than early; and where it is due already, somebody else holds it.
        waits = due_in + 0.005 if due_in > 0 else AGAIN_SECONDS
        await pause(waits)
        left -= waits
        fired += (await fire_due(database, settings, STAY_SECONDS))["fired"]
        due_in = await ahead(database)
    return fired


async def fire_first(database: Database, settings: Settings, project: str, owner: str, names: list[str]) -> None:
    """Fires what of these schedules is due already, before they change."""
    rows = await database.one(sql.due_of(project=project, owner=owner, names=names))
    await _fire_rows(database, settings, rows, {"fired": 0, "skipped": 0, "missed": 0, "broken": 0})


async def _fire_rows(database: Database, settings: Settings, rows: list[Row], done: dict[str, int]) -> bool:
    """Plans and fires these schedules, counting into `done`; whether anything moved."""
    plans, broken = _plan_all(rows, timedelta(seconds=max(LEAST_AWAY, 3 * settings.sweep_seconds)))
    moved = 0
    for project, group in groupby(plans, key=lambda plan: plan["project"]):
        found = await _fire(database, settings, project, list(group), broken)
        moved += sum(row.outcome == "moved" for row in found)
        for outcome in ("fired", "skipped", "missed"):
            done[outcome] += sum(row.outcome == outcome for row in found)
    if broken:
        await database.one(sql.mark(broken=_encode(broken).decode()))
        done["broken"] += len(broken)
    return bool(moved or broken)


async def forget(database: Database, settings: Settings, limit: int = 5000) -> int:
    """Deletes firings that were kept as long as settled tasks are; how many. Called by retention."""
    gone = 0
    while found := len(await database.one(sql.forget(keep_seconds=settings.retention_seconds, limit=limit))):
        gone += found
        if found < limit:
            break
    return gone


def rule_of(row: Any) -> instants.Rule:
    """The rule of a schedule's row. Raises NoRule."""
    if row.cron is not None:
        return instants.cron(row.cron, row.time_zone)
    return instants.Every(row.every_seconds, row.anchor_at)


def _plan_all(rows: list[Row], away: timedelta) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    plans, broken = [], []
    known: dict[Any, Any] = {}  # many schedules share a rule
    for row in rows:
        try:
            plans.append(_plan(row, known, away))
        except Exception as error:  # whatever is wrong with one schedule is its own trouble
            if not isinstance(error, instants.NoRule):
                log.exception("schedule %s of %s cannot be computed", row.name, row.project)
            broken.append(_broken(row, error))
    return plans, broken


def _broken(row: Any, error: Exception) -> dict[str, Any]:
    told = str(error) if isinstance(error, instants.NoRule) else f"it cannot be computed: {type(error).__name__}"
    return {"project": row.project, "owner": row.owner, "name": row.name, "revision": row.revision, "error": told}


def _plan(row: Row, known: dict[Any, Any], away: timedelta) -> dict[str, Any]:
    """What is to happen to one schedule: its instants, each with an outcome, and where it stands then.

    What came due while nobody looked for longer than `away` is what `catchUp` speaks of; otherwise it is merely late.
    """
    rule = rule_of(row)
    first = row.next_due_at
    if first is None:  # in error since it was made
        ahead = next(rule.after(row.now), None)
        return _moves(row, [], 0, ahead)
    found = known.get((rule, first))
    if found is None:
        found = known[rule, first] = instants.due(rule, first, row.now)
    latest, before, ahead = found
    missed = before
    # One in error could not fire, however often it was looked at.
    was_away = row.error is not None or (first if row.ticked_at is None else row.ticked_at) < row.now - away
    if was_away and row.catch_up != "all":
        missed, latest = before + len(latest) - 1, latest[-1:]
        if row.catch_up == "none":
            return _moves(row, [(latest[0], "missed", missed)], missed + 1, ahead)
    outcomes = [(instant, "fired", 0) for instant in latest]
    if row.overlap != "allow" and len(latest) > 1:
        # The first is still there when the second comes; or each would cancel the one before it.
        runs = latest[0] if row.overlap == "skip" else latest[-1]
        outcomes = [(instant, "fired" if instant == runs else "skipped", 0) for instant in latest]
    outcomes[0] = (outcomes[0][0], outcomes[0][1], missed)
    return _moves(row, outcomes, missed, ahead)


def _moves(row: Row, outcomes: list[tuple[datetime, str, int]], missed: int, ahead: datetime | None) -> dict[str, Any]:
    key = msgspec.json.decode(row.options).get("concurrency_key")
    return {
        "row": row,
        "project": row.project,
        "key": key,
        "plan": {
            "owner": row.owner,
            "name": row.name,
            "revision": row.revision,
            "was": when(row.next_due_at),
            "then_due_at": when(ahead),
            "passed": missed,
        },
        "instants": [
            {"owner": row.owner, "name": row.name, "due_at": when(at), "id": new_id(), "outcome": outcome, "missed": count}
            for at, outcome, count in outcomes
        ],
    }


async def _fire(
    database: Database, settings: Settings, project: str, plans: list[dict[str, Any]], broken: list[dict[str, Any]]
) -> list[Row]:
    """Carries plans out, in one transaction; where the database cannot, each alone, so that the bad one is known."""
    given = _encode([plan["plan"] for plan in plans]).decode()
    wanted = _encode([instant for plan in plans for instant in plan["instants"]]).decode()
    keys = sorted({plan["key"] for plan in plans if plan["key"] is not None and plan["instants"]})
    steps = [
        sql.lock(project=project, plans=given),
        sql.fire(project=project, plans=given, instants=wanted, offline_seconds=settings.offline_seconds),
    ]
    if keys:
        call = new_id()
        steps += [
            submitting.sql.lock_keys(project=project, keys=keys, call=call),
            admission.sql.admit(project=project, keys=keys, call=call),
        ]
    try:
        results = await database.run(*steps)
    except Problem:
        raise
    except Exception as error:
        if len(plans) > 1:
            return [row for plan in plans for row in await _fire(database, settings, project, [plan], broken)]
        log.exception("schedule %s of %s cannot be fired", plans[0]["row"].name, project)
        broken.append(_broken(plans[0]["row"], error))
        return []
    rows = results[1]
    await follow(database, project, [row for row in rows if row.id is not None], results[3] if keys else [])
    return rows


async def follow(database: Database, project: str, made: list[Row], admitted: list[Row]) -> None:
    """After tasks of schedules were stored: wakes workers for them, and asks those that stand before them to end."""
    ready = hints.group((t.type, t.schema_version, t.pool, 0.0) for t in made if t.hold is None)
    ready += [(f"{row.type}@{row.schema_version}", row.pool, row.tasks, 0.0) for row in admitted]
    if ready:
        await hints.tell(database, hints.payload(project, ready=ready))
    waiting = [t for t in made if t.hold == "previous"]
    if waiting:
        await _supersede(database, project, [t.id for t in waiting])
        # whatever stood before them may have ended after the database looked and before they could be seen
        await previous.release(database, project, [(t.owner, t.name) for t in waiting])


async def _supersede(database: Database, project: str | None, ids: list[UUID] | None) -> int:
    """Asks tasks to end for which a later one of their schedule waits: after its firing, or (no ids) whatever was left."""
    rows = await database.one(previous.sql.superseded(project=project, ids=ids))
    for name in sorted({row.project for row in rows}):
        mine = [row.id for row in rows if row.project == name]
        await cancel.cancel_all(database, name, mine, "the next task of its schedule is due")
    return len(rows)


async def _check_zones(database: Database) -> int:
    """Marks the schedules of zones that this machine does not know (any more); how many."""
    marked = 0
    for row in await database.one(sql.zones()):
        try:
            instants.zone(row.time_zone)
        except instants.NoRule as error:
            marked += len(await database.one(sql.without_zone(time_zone=row.time_zone, error=str(error))))
    return marked
