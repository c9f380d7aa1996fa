"""Claiming: ready work is leased to one instance, repeatably by its claimId (protocol.md §5)."""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

import msgspec

from . import admission, ends, steps, waits
from .db import Database, Row, statements
from .ids import new_id
from .keys import Key
from .settings import Settings
from .views import raw
from .wire.claim import Claim
from .wire.times import when

claim_sql = statements("claim")
expire_sql = statements("expire")
promote_sql = statements("promote")

CLAIM_BYTES = 2 * 1024 * 1024
STEP_BYTES = 1024 * 1024  # of the stored steps that ride along with an attempt
_encode = msgspec.json.Encoder().encode


async def claim(database: Database, settings: Settings, key: Key, request: Claim) -> dict[str, Any]:
    """Leases up to `slots` ready tasks of these handlers, best priority first, then oldest due.

    A repeated claimId answers its own current attempts again, with leases renewed and fresh tokens, and leases nothing new.
    Raises ScopeDenied outside the key's narrowing.
    """
    key.check_worker(request.worker_id, request.pool, [h.type for h in request.handlers])
    handlers = {(h.type, h.schema_version): h for h in request.handlers}
    text = _json(
        [
            {
                "type": t,
                "schema_version": v,
                "effect_safety": h.effect_safety,
                "reconciles": h.reconciles,
                "slots": min(h.slots or request.slots, request.slots),
            }
            for (t, v), h in handlers.items()
        ]
    )
    groups = _json([{"project": key.project, "type": t, "schema_version": v, "pool": request.pool} for t, v in handlers])
    seed = secrets.token_urlsafe(32)
    call = new_id()
    who = {
        "project": key.project,
        "worker_id": request.worker_id,
        "instance_id": request.instance_id,
        "claim_id": request.claim_id,
    }
    poll = settings.stream_poll_seconds if settings.stream_url else settings.poll_seconds
    find = (
        claim_sql.lock_keys(project=key.project, pool=request.pool, handlers=text, call=call),
        claim_sql.pick(
            **who,
            call=call,
            seed=seed,
            slots=request.slots,
            pool=request.pool,
            handlers=text,
            budget=CLAIM_BYTES,
            step_budget=STEP_BYTES,
        ),
        claim_sql.outlook(
            **who, call=call, pool=request.pool, handlers=text, poll_seconds=poll, idle_poll_seconds=settings.idle_poll_seconds
        ),
    )
    _, _, lapsed, due, _, picked, outlook = await database.run(
        claim_sql.enter(
            project=key.project,
            worker_id=request.worker_id,
            instance_id=request.instance_id,
            pool=request.pool,
            slots=request.slots,
            serves=sorted(f"{t}@{v}" for t, v in handlers),
        ),
        claim_sql.remember(**who, call=call),
        expire_sql.lapsed(groups=groups),
        promote_sql.due(groups=groups),
        *find,
    )
    if outlook[0].mine and outlook[0].wakes and await waits.wake(database, groups) and picked[0].id is None:
        _, picked, outlook = await database.run(*find)  # nothing else was ready: take what woke a moment ago
    view = outlook[0]
    rows = (
        [row for row in picked if row.id is not None]
        if view.mine
        else await database.one(claim_sql.repeat(**who, seed=seed, scope=key.scope))
    )
    refused: list[str] = picked[0].refused or []
    await _after_claim(database, key.project, lapsed, due, rows, refused)
    stored = await steps.of_claims(database, [row.id for row in rows if row.steps_stored], STEP_BYTES, CLAIM_BYTES)
    wait = view.told if view.next_in is None else min(view.told, view.next_in)
    if refused and len(rows) < request.slots:
        wait = 0.0  # what stood in the way is out of it now: ask again
    answer = {
        "attempts": [_claimed(row, _lease_token(seed, row.n), stored.get(row.id, [])) for row in rows],
        "more": bool(view.more),
        "pollAfterSeconds": round(max(0.2, wait), 3),
        "serverTime": when(view.now),
    }
    if view.drain:
        answer["drain"] = True
    return answer


async def _after_claim(
    database: Database, project: str, lapsed: list[Row], due: list[Row], rows: list[Row], refused: list[str]
) -> None:
    """What a claim set free or met: keys of lapsed leases, keyed work that became due or does not fit, and hints to others."""
    await admission.admit(database, project, [*(r.concurrency_key for r in (*due, *rows)), *refused])
    await ends.follow(database, project, lapsed)


def _lease_token(seed: str, n: int) -> str:
    """The secret of the n-th attempt of an answer; the statements store its SHA-256. One tells nothing of another."""
    return hashlib.sha256(f"{seed}{n}".encode()).hexdigest()


def _claimed(row: Row, token: str, stored: list[dict[str, Any]]) -> dict[str, Any]:
    claim = {
        "taskId": row.id,
        "attemptId": row.attempt_id,
        "attemptNumber": row.attempts + 1,
        "maxAttempts": row.max_attempts,
        "fence": row.fence,
        "leaseToken": f"{row.epoch}.{token}",
        "leaseExpiresAt": when(row.lease_expires_at),
        "leaseSeconds": row.lease_seconds,
        "deadlineAt": when(row.deadline_at),
        "reconcile": raw(row.reconcile),
        "type": row.type,
        "schemaVersion": row.schema_version,
        "pool": row.pool,
        "input": raw(row.input),
        "tags": row.tags or {},
        "trace": raw(row.trace),
        "effectScope": row.effect_scope,
        "cancelRequested": row.cancel_requested,
        "steps": stored,
        "rerunOf": row.rerun_of,
        "parentId": row.parent_id,
    }
    if len(stored) < row.steps_stored:
        claim["stepsCursor"] = steps.cursor(row.id, stored[-1]["seq"] if stored else 0)
    return claim


def _json(value: Any) -> str:
    return _encode(value).decode()
