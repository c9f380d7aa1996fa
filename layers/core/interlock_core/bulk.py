"""One action on all tasks of a filter (protocol.md §10): bounded, repeatable, never on what is unknown."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from typing import Any

import msgspec

from . import cancel as cancelling
from . import rerun as rerunning
from . import tasks
from .controls import sql
from .db import Database, Refused
from .errors import IdempotencyConflict, Problem, Unavailable
from .ids import new_id
from .keys import Key
from .settings import Settings
from .wire.operator import Bulk
from .wire.producer import Rerun
from .wire.times import when

MOST = 10_000
_PAGE = {
    "cancel": 500,
    "rerun": 100,
}  # a page of cancels is one transaction; one of reruns is to be done long before LEFT_SECONDS
LEFT_SECONDS = 30.0  # a call that was not heard of for so long was cut: a repeat goes on from where it came to


async def bulk(database: Database, settings: Settings, key: Key, request: Bulk, filters: dict[str, Any]) -> dict[str, Any]:
    """Cancels or reruns the tasks of a filter that are there when it begins, newest first, at most 10,000 a call.

    {"matched", "changed", "skipped"}: skipped are those whose state refuses the action. The same idempotencyKey answers the
    first answer; where the first call was cut, the repeat goes on from there. Raises IdempotencyConflict, and Unavailable
    while the first call is under way.
    """
    digest = hashlib.sha256(json.dumps(request.model_dump(mode="json"), sort_keys=True).encode()).digest()
    if request.dry_run:
        return await _first_answer(database, settings, key, request, digest) or await _count(database, key, request, filters)
    named = {"project": key.project, "key": request.idempotency_key}
    terms = {"hash": digest, "ttl": settings.idempotency_ttl_seconds, "left_seconds": LEFT_SECONDS}
    mine = await database.one(sql.enter(**named, **terms))
    if not mine:
        found = await _first_answer(database, settings, key, request, digest)
        if found is None:
            raise Unavailable("the same call is under way, and has not been answered yet")
        return found
    progress: dict[str, Any] = msgspec.json.decode(mine[0].answer)
    held = mine[0].at
    try:
        while progress["matched"] < MOST:
            rows = await _page(database, key, request, filters, progress)
            if not rows:
                break
            changed = await _act(database, settings, key, request, rows)
            _count_in(progress, rows, changed)
            held = (await database.one(sql.advance(**named, held=held, answer=json.dumps(progress))))[0].at
        answer = _answer(progress["matched"], progress["changed"])
        text = json.dumps(answer)
        action = f"bulk-{request.action}"
        note = sql.note(project=key.project, audit_id=new_id(), key_id=key.id, action=action, target=None, detail=text)
        await database.run(sql.advance(**named, held=held, answer=text), note)
    except Refused:
        raise Unavailable("the call took long, and a repeat of it has taken over") from None
    except Exception:
        with suppress(Unavailable):
            await database.one(sql.let_go(**named, held=held, left_seconds=LEFT_SECONDS))
        raise
    return {**answer, "duplicate": False}


async def _first_answer(database: Database, settings: Settings, key: Key, request: Bulk, digest: bytes) -> dict[str, Any] | None:
    """What the first call with the key was answered; None where it was not yet, or there is none."""
    name = request.idempotency_key
    rows = await database.one(sql.answer(project=key.project, key=name, ttl=settings.idempotency_ttl_seconds))
    if not rows:
        return None
    if bytes(rows[0].hash) != digest:
        raise IdempotencyConflict(f"the idempotency key {name!r} names another bulk call")
    found: dict[str, Any] = msgspec.json.decode(rows[0].answer)
    return None if "underWay" in found else {**found, "duplicate": True}


async def _count(database: Database, key: Key, request: Bulk, filters: dict[str, Any]) -> dict[str, Any]:
    """What a call would match, and change nothing."""
    progress: dict[str, Any] = {"matched": 0, "changed": 0}
    while progress["matched"] < MOST and (rows := await _page(database, key, request, filters, progress)):
        _count_in(progress, rows, len(rows))
    return {**_answer(progress["matched"], progress["matched"]), "changed": 0, "duplicate": False}


async def _page(database: Database, key: Key, request: Bulk, filters: dict[str, Any], progress: dict[str, Any]) -> list[Any]:
    most = min(_PAGE[request.action], MOST - progress["matched"])
    after = [progress["afterAt"], progress["afterId"]] if "afterAt" in progress else None
    return (await tasks.find_all(database, key.project, filters, after, most))[:most]


def _count_in(progress: dict[str, Any], rows: list[Any], changed: int) -> None:
    progress["matched"] += len(rows)
    progress["changed"] += changed
    progress["afterAt"], progress["afterId"] = when(rows[-1].created_at), str(rows[-1].id)


def _answer(matched: int, changed: int) -> dict[str, Any]:
    return {"matched": matched, "changed": changed, "skipped": matched - changed, "more": matched >= MOST}


async def _act(database: Database, settings: Settings, key: Key, request: Bulk, rows: list[Any]) -> int:
    if request.action == "cancel":
        wanted = [row.id for row in rows if row.status in ("queued", "waiting", "running")]
        return await cancelling.cancel_all(database, key.project, wanted, "bulk cancel")
    digest = hashlib.sha256(request.idempotency_key.encode())
    changed = 0
    for row in rows:
        if row.finished_at is None:
            continue
        # one rerun of each task under the call's key, also where the first call was cut in the middle
        again = Rerun.model_construct(input=None, keep_effect_keys=False, idempotency_key=f"bulk:{digest.hexdigest()}:{row.id}")
        try:
            await rerunning.insert(database, settings, key.project, row.id, again, None)
            changed += 1
        except Unavailable:
            raise  # neither done nor refused: a repeat goes on here
        except Problem:
            continue
    return changed
