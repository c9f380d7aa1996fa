"""Tickets: one opening of one stream, by a reader that cannot send a key in a header, such as a browser (protocol.md §9).

A ticket stands in an address, where it may be logged on its way. So it opens one path, once, within a minute, with the rights
of the key that asked for it, and the stream ends with that key.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Any

from .db import Database, statements
from .errors import InvalidRequest, Unauthenticated
from .keys import Key
from .wire.times import when

sql = statements("tickets")

SECONDS = 60.0
_PATH = re.compile(r"/v1/(events|tasks/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})/stream")
_FORM = re.compile(r"[A-Za-z0-9_-]{43}")


async def create(database: Database, key: Key, path: str) -> dict[str, Any]:
    """A ticket for the stream at `path` (POST /v1/stream-tickets). Raises InvalidRequest for any other path."""
    if _PATH.fullmatch(path) is None:
        raise InvalidRequest("path must be /v1/tasks/{id}/stream with the id of a task, or /v1/events/stream", "/path")
    ticket = secrets.token_urlsafe(32)
    rows = await database.one(sql.create(hash=_hash(ticket), key_id=key.id, path=path, seconds=SECONDS))
    return {"ticket": ticket, "expiresAt": when(rows[0].expires_at)}


async def redeem(database: Database, ticket: str, path: str) -> Key:
    """The key behind a ticket, which is used up by this. Raises Unauthenticated."""
    rows = await database.one(sql.redeem(hash=_hash(ticket), path=path)) if _FORM.fullmatch(ticket) else []
    if not rows:
        raise Unauthenticated(
            "the ticket is not known, was used, has expired, is for another path, or its key is no longer good",
            next="Ask for a new ticket: POST /v1/stream-tickets.",
        )
    row = rows[0]
    return Key(row.id, row.project, row.kind, None, None, None, False)


def _hash(ticket: str) -> bytes:
    return hashlib.sha256(ticket.encode()).digest()
