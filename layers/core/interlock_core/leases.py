"""The scheduled work: settling lapsed leases and deadlines, moving due work in, bookkeeping, retention.

Everything here may run twice at once, be cut at any point, or be late: claims settle what they meet by themselves.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from . import admission, ends, hints, waits
from .db import Database, Row, Statement, statements
from .settings import Settings

expire_sql = statements("expire")
promote_sql = statements("promote")
late_sql = statements("late_starts")
resume_sql = statements("resume")
wait_sql = statements("wait_limit")
sweep_sql = statements("sweep")
retention_sql = statements("retention")
controls_sql = statements("controls")

SWEEP_SECONDS = 20.0
_encode = msgspec.json.Encoder().encode


async def look(database: Database) -> tuple[dict[str, float], float | None] | None:
    """Of a service that has nothing to sweep, in one statement: its figures, and in how many seconds its next schedule is due.

    None where there is something to sweep.
    """
    rows = await database.one(sweep_sql.look())
    if not rows:
        return None
    return {"Ready": 0, "Running": 0, "OutcomeUnknown": rows[0].unknown, "OldestReadyAgeSeconds": 0.0}, rows[0].due_in


async def figures(database: Database) -> dict[str, float]:
    """What a sweep tells of the service (`emf`)."""
    row = (await database.one(sweep_sql.figures()))[0]
    return {
        "Ready": row.ready,
        "Running": row.running,
        "OutcomeUnknown": row.unknown,
        "OldestReadyAgeSeconds": max(0.0, row.oldest_age),
    }


async def sweep(database: Database, settings: Settings) -> dict[str, Any]:
    """One pass: counts of what was settled, promoted and cleaned. A row held by somebody else is left for the next pass."""
    until = time.monotonic() + SWEEP_SECONDS
    done: dict[str, Any] = {}
    done["promoted"] = await _groups(database, promote_sql.groups, promote_sql.due, until)
    done["lapsed"], done["skipped"] = await _expire(database, until)
    done["woken"] = await _wake(database, until)
    late = await database.one(late_sql.settle())
    await _settled(database, late)
    done["lateStarts"] = len(late)
    done["waitLimit"] = await _wait_limit(database, settings)
    done["followed"] = await ends.repair(database)
    done["admitted"] = await admission.repair(database)
    forgotten = (await database.one(sweep_sql.forget(limit_seconds=max(settings.worker_wait_limit_seconds, 3600))))[0]
    done["instancesForgotten"], done["claimsForgotten"] = forgotten.instances, forgotten.claims
    await database.run(sweep_sql.roll_up(), sweep_sql.done())
    return done


async def _groups(database: Database, groups: Statement, move: Statement, until: float) -> int:
    moved = 0
    while time.monotonic() < until:
        found = await database.one(groups())
        rows = await database.one(move(groups=_json(found))) if found else []
        moved += len(rows)
        await _freed(database, rows)
        if not rows:
            break
    return moved


async def _expire(database: Database, until: float) -> tuple[int, int]:
    settled = 0
    while time.monotonic() < until:
        groups = await database.one(expire_sql.groups())
        lapsed = sum(g.lapsed for g in groups)
        rows = await database.one(expire_sql.lapsed(groups=_json(groups))) if groups else []
        settled += len(rows)
        await _settled(database, [r for r in rows if r.status != "queued"])
        await _freed(database, [r for r in rows if r.status == "queued"])
        if not rows:
            return settled, lapsed
    return settled, 0


async def _wake(database: Database, until: float) -> int:
    """Ends the waits whose time has come."""
    woken = 0
    while time.monotonic() < until and (groups := await database.one(resume_sql.groups())):
        ended = await waits.wake(database, _json(groups))
        woken += ended
        if not ended:
            break
    return woken


async def _wait_limit(database: Database, settings: Settings) -> int:
    limit = settings.worker_wait_limit_seconds
    groups = await database.one(wait_sql.groups(limit_seconds=limit))
    rows = await database.one(wait_sql.settle(groups=_json(groups), limit_seconds=limit)) if groups else []
    await _settled(database, rows)
    return len(rows)


async def _settled(database: Database, rows: list[Row]) -> None:
    for project in sorted({r.project for r in rows}):
        await ends.follow(database, project, [r for r in rows if r.project == project])


async def _freed(database: Database, rows: list[Row]) -> None:
    for project in sorted({r.project for r in rows}):
        mine = [r for r in rows if r.project == project]
        await admission.admit(database, project, [r.concurrency_key for r in mine])
        ready = hints.group(
            (r.type, r.schema_version, r.pool, hints.until(getattr(r, "due_at", None))) for r in mine if r.concurrency_key is None
        )
        if ready:
            await hints.tell(database, hints.payload(project, ready=ready))


def _json(rows: list[Row]) -> str:
    return _encode(
        [{"project": r.project, "type": r.type, "schema_version": r.schema_version, "pool": r.pool} for r in rows]
    ).decode()


async def retain(database: Database, settings: Settings, seconds: float = 20.0, batch: int = 2000) -> dict[str, Any]:
    """Deletes settled tasks that were kept long enough, batch by batch, each committed; counts of what went."""
    until = time.monotonic() + seconds
    done = {"tasks": 0, "events": 0, "keys": 0}
    while time.monotonic() < until:
        row = (await database.one(retention_sql.delete(keep_seconds=settings.retention_seconds, limit=batch)))[0]
        for name in done:
            done[name] += getattr(row, name)
        if not row.tasks:  # a batch that was not full may have let go of children
            break
    await database.run(controls_sql.forget(ttl=settings.idempotency_ttl_seconds, limit=5000), retention_sql.done())
    return done
