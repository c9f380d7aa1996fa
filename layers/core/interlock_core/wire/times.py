"""Instants as text: RFC 3339, UTC, always with microseconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import overload


@overload
def when(instant: datetime) -> str: ...
@overload
def when(instant: None) -> None: ...
def when(instant: datetime | None) -> str | None:
    """`2026-01-31T12:00:00.000000Z`, or None for None."""
    if instant is None:
        return None
    return instant.astimezone(UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def read(text: str) -> datetime:
    """An RFC 3339 instant. Raises ValueError where the offset is missing or the text is not an instant."""
    found = _INSTANT.fullmatch(text)
    if found is None:
        raise ValueError("must be an RFC 3339 instant such as 2026-01-31T12:00:00Z")
    if found["offset"] is None:
        raise ValueError("must name its offset from UTC, such as 2026-01-31T12:00:00Z")
    return datetime.fromisoformat(text.upper()).astimezone(UTC)


# Python reads more of ISO 8601 than RFC 3339 has, such as weeks and seconds left out.
_INSTANT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(?P<offset>[Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])?"
)
