"""Opaque keyset cursors, bound to their filter and project: pages neither skip nor repeat when rows come or go between them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from ..errors import InvalidCursor, InvalidRequest
from .sizes import encoded_bytes
from .times import read as read_instant

DEFAULT_LIMIT = 50
MAX_LIMIT = 200
PAGE_BYTES = 5_000_000  # of a page's items, as the platform encodes them; an answer carries half a megabyte more
_encode = msgspec.json.Encoder().encode


def page_limit(text: str | None) -> int:
    """`?limit=`. Raises InvalidRequest outside 1–200."""
    if text is None:
        return DEFAULT_LIMIT
    if not text.isascii() or not text.isdigit() or len(text) > 4 or not 1 <= int(text) <= MAX_LIMIT:
        raise InvalidRequest(f"limit must be a whole number from 1 to {MAX_LIMIT}", "/limit")
    return int(text)


def write(scope: Any, anchor: list[Any]) -> str:
    """A cursor that goes on after `anchor` within `scope` (project and filter, JSON-able)."""
    text = json.dumps([_digest(scope), anchor], separators=(",", ":"), default=str)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read(scope: Any, cursor: str | None, *kinds: Callable[[Any], Any]) -> list[Any] | None:
    """The anchor of a cursor made for the same scope, each part read by its kind (`instant`, `name`, `number`, UUID).

    Raises InvalidCursor for any other text: a cursor is a caller's, whatever it was made from.
    """
    if cursor is None:
        return None
    try:
        found = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
        digest, anchor = found
        if digest != _digest(scope) or not isinstance(anchor, list):
            raise ValueError
        return [kind(part) for kind, part in zip(kinds, anchor, strict=True)]
    except (ValueError, TypeError, AttributeError, OverflowError, binascii.Error, RecursionError):
        raise InvalidCursor("the cursor was made for another list, filter or project, or is not a cursor") from None


def page(scope: Any, items: list[dict[str, Any]], anchors: Sequence[list[Any]], *, more: bool) -> dict[str, Any]:
    """A page as it is answered: {items, nextCursor}, one item at least, and fewer than were found where not all fit an answer.

    `anchors` are those of the items, in their order; `more`: whether there are others after them.
    """
    shown = items
    if encoded_bytes(_encode(items)) > PAGE_BYTES:
        texts = [_encode(item) for item in items]
        # the more items, the larger: halved until the last that fits is found
        fits = bisect_right(range(1, len(items) + 1), PAGE_BYTES, key=lambda count: encoded_bytes(b",".join(texts[:count])))
        shown = items[: max(fits, 1)]
    more = more or len(shown) < len(items)
    return {"items": shown, "nextCursor": write(scope, anchors[len(shown) - 1]) if more else None}


def instant(part: Any) -> datetime:
    """A part of an anchor that is an instant, microseconds kept. Raises ValueError."""
    return read_instant(part)


def name(part: Any) -> str:
    """A part of an anchor that is a text. Raises ValueError."""
    if not isinstance(part, str) or "\x00" in part:
        raise ValueError
    part.encode()
    return part


def number(part: Any) -> int:
    """A part of an anchor that is a count. Raises ValueError."""
    if type(part) is not int or not 0 <= part <= 2_147_483_647:
        raise ValueError
    return part


def _digest(scope: Any) -> str:
    return hashlib.sha256(json.dumps(scope, sort_keys=True, default=str).encode()).hexdigest()[:16]


def wait_seconds(text: str | None) -> float:
    """`?waitSeconds=`: how long a caller would wait. Raises InvalidRequest outside 0–20."""
    if text is None:
        return 0.0
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 20:
        raise InvalidRequest("waitSeconds must be a number from 0 to 20", "/waitSeconds")
    return seconds


def after_seq(text: str | None) -> int:
    """`?after=`: a journal seq. Raises InvalidRequest for anything that is not a whole number from 0."""
    if text is None:
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise InvalidRequest("after must be the seq of an event", "/after")
    return int(text)


def fitting(events: list[dict[str, Any]], limit: int = 2_000_000) -> list[dict[str, Any]]:
    """The first events that fit one answer (at least one)."""
    size = 0
    for index, event in enumerate(events):
        size += len(bytes(event["data"])) + 200
        if size > limit and index > 0:
            return events[:index]
    return events
