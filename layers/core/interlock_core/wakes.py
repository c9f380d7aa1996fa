"""What the stream reads: hints as they arrive, and the truth behind them. Decides nothing and changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from .db import Database, Row, statements

sql = statements("wakes")

_encode = msgspec.json.Encoder().encode
All = Literal["*"]


class Hint(msgspec.Struct, rename={"project": "p"}):
    """One notice (see hints.py for its form). `"*"`: read everything of that kind again."""

    project: str = ""
    ready: list[tuple[str, str, int, float]] | All = []
    done: list[str] | All = []
    cancel: list[tuple[str, str, str, str]] | All = []
    drain: list[str] | All = []  # worker ids


_decode = msgspec.json.Decoder(Hint).decode


def read_hint(payload: str) -> Hint:
    """A notice's payload. Unknown members are ignored: a newer service may say more. Raises msgspec.MsgspecError."""
    return _decode(payload)


async def outlook(database: Database, groups: Sequence[dict[str, Any]]) -> list[Row]:
    """Of each group {n, project, type, schema_version, pool, most, leases}: n, claimable, lapsed, due_in, lease_in (seconds or None)."""
    return await database.one(sql.outlook(groups=_encode(groups).decode()))


async def full(database: Database, instances: Sequence[tuple[str, str, str]]) -> set[tuple[str, str, str]]:
    """Of these (project, worker id, instance id): those known to have no slot free, or to be draining."""
    asked = [{"project": project, "worker_id": worker, "instance_id": instance} for project, worker, instance in instances]
    rows = await database.one(sql.full(instances=_encode(asked).decode()))
    return {(row.project, row.worker_id, row.instance_id) for row in rows}


async def cancels(database: Database, projects: Sequence[str]) -> list[Row]:
    """Running attempts that were asked to stop: project, worker_id, instance_id, id, attempt_id."""
    return await database.one(sql.cancels(projects=list(projects)))


async def gone(database: Database, key_ids: Sequence[str]) -> dict[str, bool]:
    """Of these keys those that are no longer good: True if revoked, False if expired."""
    return {row.id: row.revoked for row in await database.one(sql.gone(ids=list(key_ids)))}
