"""Instants as text: RFC 3339, UTC, always with microseconds."""

from __future__ import annotations

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
    if len(text) < 20 or text[10] not in "Tt ":
        raise ValueError("must be an RFC 3339 instant such as 2026-01-31T12:00:00Z")
    instant = datetime.fromisoformat(text.upper())
    if instant.tzinfo is None:
        raise ValueError("must name its offset from UTC, such as 2026-01-31T12:00:00Z")
    return instant.astimezone(UTC)
