"""What watchers read: how journals go on, and what projects do, for many of them in one statement. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .db import Database, Row, statements
from .tasks import event_view

sql = statements("watching")

_encode = msgspec.json.Encoder().encode


async def events(
    database: Database, watched: Sequence[tuple[str, int]], most: int, most_bytes: int, *, always: bool = False
) -> list[Row]:
    """Of each task (id, seq) whose journal does not end at `seq`: its id, status, journal_seq, and the events that follow `seq`.

    At most `most` events of a task, about `most_bytes` of data of all together, at least one event; in order. A task without
    an event that fits has one row with a null `seq`, one that is gone a null `status` too. `always`: also where nothing is new.
    """
    asked = [{"id": task_id, "after": after} for task_id, after in watched]
    return await database.one(sql.events(watched=_encode(asked).decode(), most=most, bytes=most_bytes, always=always))


async def pulse(database: Database, projects: Sequence[str], most: int, offline_seconds: float) -> list[Row]:
    """Of each project: `running`, a text per running attempt that starts with its task's id, `most` at most; and `workers`.

    `workers` is another text whenever something that is shown of the project's workers is another, their slots in use aside.
    """
    return await database.one(sql.pulse(projects=list(projects), most=most, offline_seconds=offline_seconds))


def event_text(row: Row) -> bytes:
    """One event as JSON, as the journal's pages show it."""
    return _encode(event_view(row))
