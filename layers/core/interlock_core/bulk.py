"""One action on all tasks of a filter (protocol.md §10): bounded, repeatable, never on what is unknown."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec

from . import cancel as cancelling
from . import rerun as rerunning
from . import tasks
from .controls import sql
from .db import Database
from .errors import IdempotencyConflict, Problem
from .ids import new_id
from .keys import Key
from .settings import Settings
from .wire.operator import Bulk
from .wire.producer import Rerun

MOST = 10_000
_PAGE = 500


async def bulk(database: Database, settings: Settings, key: Key, request: Bulk, filters: dict[str, Any]) -> dict[str, Any]:
    """Cancels or reruns the tasks of a filter as it finds them, newest first, at most 10,000 a call.

    {"matched", "changed", "skipped"}: skipped are those whose state refuses the action. The same idempotencyKey answers the
    first answer. Raises IdempotencyConflict.
    """
    digest = hashlib.sha256(json.dumps(request.model_dump(mode="json"), sort_keys=True).encode()).digest()
    if (found := await _first_answer(database, key, request.idempotency_key, digest)) is not None:
        return {**found, "duplicate": True}
    matched = changed = 0
    after: list[Any] | None = None
    while matched < MOST:
        rows = (await tasks.find_all(database, key.project, filters, after, min(_PAGE, MOST - matched)))[:_PAGE]
        rows = rows[: MOST - matched]
        if not rows:
            break
        matched += len(rows)
        after = [rows[-1].created_at, rows[-1].id]
        if not request.dry_run:
            changed += await _act(database, settings, key, request, rows)
    answer = {
        "matched": matched,
        "changed": changed,
        "skipped": 0 if request.dry_run else matched - changed,
        "more": matched >= MOST,
    }
    if not request.dry_run:
        text = json.dumps(answer)
        await database.run(
            sql.keep_answer(project=key.project, key=request.idempotency_key, hash=digest, answer=text),
            sql.note(
                project=key.project, audit_id=new_id(), key_id=key.id, action=f"bulk-{request.action}", target=None, detail=text
            ),
        )
    return {**answer, "duplicate": False}


async def _first_answer(database: Database, key: Key, name: str, digest: bytes) -> dict[str, Any] | None:
    rows = await database.one(sql.answer(project=key.project, key=name))
    if not rows:
        return None
    if bytes(rows[0].hash) != digest:
        raise IdempotencyConflict(f"the idempotency key {name!r} names another bulk call")
    found: dict[str, Any] = msgspec.json.decode(rows[0].answer)
    return found


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
        except Problem:
            continue
    return changed
