"""Children: tasks that an attempt submits, once per name, with its lease as authority (protocol.md §7)."""

from __future__ import annotations

from typing import Any

import msgspec

from . import admission, hints, reports, steps, submit
from .db import Database, statements
from .errors import ScopeDenied
from .ids import new_id
from .keys import Key
from .settings import Settings
from .wire.children import ChildSubmit
from .wire.rules import check_size

sql = statements("spawn")
_encode = msgspec.json.Encoder().encode


async def spawn(database: Database, settings: Settings, key: Key, request: ChildSubmit, input_text: str) -> dict[str, Any]:
    """Submits the child, or finds the one of that name: {taskId, duplicate}.

    Raises StaleAttempt, EpochChanged, InvalidRequest, PayloadTooLarge, LimitExceeded, and ScopeDenied outside a narrowed key.
    """
    if not key.allows_type(request.type):
        raise ScopeDenied(f"the key is narrowed to the types {', '.join(key.types or ())}; the child's is {request.type}")
    if key.pools is not None and request.pool not in key.pools:
        raise ScopeDenied(f"the key is narrowed to the pools {', '.join(key.pools)}; the child's is {request.pool}")
    check_size(input_text, "/input")
    item = reports.fence(request) | submit.stored_fields(request, settings, input_text)
    item |= {"name": request.name, "detached": request.detached, "id": new_id()}
    row = await steps.write(
        database,
        key,
        item,
        sql.spawn(project=key.project, scope=key.scope, item=_encode(item).decode(), most_steps=steps.MOST_STEPS),
    )
    steps.refuse(row.verdict, request.name)
    stored = row.verdict == "stored"
    if stored and request.concurrency is not None:
        await database.one(submit.sql.lock_keys(project=key.project, keys=[request.concurrency.key], call=new_id()))
        await admission.admit(database, key.project, [request.concurrency.key])
    elif stored:
        ready = [(f"{request.type}@{request.schema_version}", request.pool, 1, hints.until(row.due_at))]
        await hints.tell(database, hints.payload(key.project, ready=ready))
    return {"taskId": row.child_id, "duplicate": not stored}
