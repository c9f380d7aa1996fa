"""Hints to the stream: "read the truth again". Losing every one of them costs at most a polling interval.

A payload is compact JSON: `{"p": project, "ready": [[type@version, pool, tasks, in-seconds]], "done": [task ids],
"cancel": [[worker, instance, task, attempt]],
"drain": [worker]}`. Payloads stay below Postgres's 8,000 bytes; what does not fit becomes `"*"`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from .db import Database, Step, statements

CHANNEL = "interlock"
MAX_BYTES = 7_000
_encode = msgspec.json.Encoder().encode

sql = statements("hints")

Group = tuple[str, str, int, float]  # type@version, pool, tasks, seconds until they are due


def payload(
    project: str,
    *,
    ready: Iterable[Group] = (),
    done: Iterable[UUID] = (),
    cancel: Iterable[tuple[str, str, UUID, UUID]] = (),
    drain: Iterable[str] = (),
) -> str:
    """One hint. Anything too long for a notice is replaced by `"*"`: re-read everything of that kind."""
    parts: dict[str, Any] = {"p": project}
    if groups := list(ready):
        parts["ready"] = groups
    if ids := list(done):
        parts["done"] = ids
    if holders := list(cancel):
        parts["cancel"] = holders
    if workers := list(drain):
        parts["drain"] = workers
    text = _encode(parts)
    if len(text) > MAX_BYTES:
        text = _encode({"p": project} | {kind: "*" for kind in parts if kind != "p"})
    return text.decode()


def send(*payloads: str) -> Step:
    """The step that notifies; give it to `Database.run(…, notify=…)` or run it alone."""
    return sql.send(payloads=list(payloads))


async def tell(database: Database, text: str) -> None:
    """Sends one hint after the work was committed; that it cannot be sent is no failure of the work."""
    await database.tell(send(text))


def group(rows: Iterable[tuple[str, int, str, float]]) -> list[Group]:
    """(type, version, pool, seconds until due) of single tasks → one Group each, with counts."""
    counted: dict[tuple[str, str], tuple[int, float]] = {}
    for task_type, version, pool, seconds in rows:
        name = (f"{task_type}@{version}", pool)
        count, soonest = counted.get(name, (0, seconds))
        counted[name] = (count + 1, min(soonest, seconds))
    return [(name, pool, count, round(max(0.0, seconds), 3)) for (name, pool), (count, seconds) in counted.items()]


def until(instant: datetime | None) -> float:
    """Seconds from now to an instant, for a hint only: no decision hangs on this process's clock."""
    return 0.0 if instant is None else max(0.0, (instant - datetime.now(UTC)).total_seconds())
