"""The rules of single fields and sizes (protocol.md §1, §3, §4), as plain functions and numbers.

`fields` makes pydantic's models of them and `structs` msgspec's, so that a rule is the same whoever checks it.
"""

from __future__ import annotations

import re
import unicodedata
from datetime import datetime

from ..errors import InvalidRequest, InvalidType, PayloadTooLarge
from .times import read

TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}/[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
PATH_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_VERSIONED = re.compile(r"(?P<type>[^@\s]+/[^@\s]+)@(?P<version>[0-9]+)")
INLINE_BYTES = 256 * 1024
TEXT_BYTES = 16 * 1024
LONGEST_NAME = 255
LONGEST_SECONDS = 315_360_000  # ten years
SMALLEST = 1e-6  # of seconds and fractions
GREATEST_INT = 2_147_483_647  # of what is stored as Postgres' integer
MOST_FIELDS = 300  # more than any body has
MOST_TOLD = 50  # of the broken fields of a body

BLANK = "must not be blank"
CONTROL = "must not contain control characters"
NO_TYPE = "must be group/name: two parts of letters, digits, '.', '_', '-' and one '/'"
NO_PATH_NAME = "must be 1 to 128 of letters, digits, '.', '_', '-', starting with a letter or digit"
NO_ID = "must be an id such as 019a0000-0000-7000-8000-000000000000"
NO_INSTANT = "must be an RFC 3339 instant such as 2026-01-31T12:00:00Z"
NO_YEAR = "must lie between the years 1970 and 9000"


def few(value: object) -> None:
    """An object with more fields than any body has is refused at once: telling each of a million would cost seconds."""
    if isinstance(value, dict) and len(value) > MOST_FIELDS:
        raise ValueError(f"has {len(value)} fields")


def identifier(value: str) -> str:
    """What people and programs name things with."""
    if not value.strip():
        raise ValueError(BLANK)
    if any(unicodedata.category(c) == "Cc" for c in value):
        raise ValueError(CONTROL)
    return value


def tag_key(value: str) -> str:
    """The name of a tag, besides what an identifier is."""
    if ":" in value:
        raise ValueError("a tag key must not contain ':'")
    return value


def storable(value: str) -> str:
    """Text that Postgres takes."""
    if "\x00" in value:
        raise ValueError("must not contain U+0000")
    return value


def task_type(value: str) -> str:
    """`group/name`."""
    if TYPE.fullmatch(value) is None:
        raise ValueError(NO_TYPE)
    return value


def is_path_name(value: str) -> bool:
    """Whether `value` may be a worker id or a schedule name, which stand in paths."""
    return PATH_NAME.fullmatch(value) is not None


def path_name(value: str) -> str:
    """A worker id or a schedule name."""
    if not is_path_name(value):
        raise ValueError(NO_PATH_NAME)
    return value


def identity(value: object) -> str:
    """An id, as the service writes them; in capitals, too."""
    if not isinstance(value, str) or _ID.fullmatch(value) is None:
        raise ValueError(NO_ID)
    return value


def instant(value: object) -> datetime:
    """An instant of text."""
    if not isinstance(value, str):
        raise ValueError(NO_INSTANT)  # told as every other broken rule
    try:
        found = read(value)
    except OverflowError:  # in UTC it would be in a year that no calendar here has
        raise ValueError(NO_YEAR) from None
    # What is stored is read again in any time zone: at the ends of the calendar that would be a year that cannot be told.
    if not 1970 <= found.year < 9000:
        raise ValueError(NO_YEAR)
    return found


def measurable(value: float) -> float:
    """Below this, arithmetic on the value ends in an underflow: in Postgres an error, in whatever statement meets the row."""
    if 0 < value < SMALLEST:
        raise ValueError("must be 0 or at least 0.000001")
    return value


def check_size(text: str, pointer: str) -> None:
    """Raises PayloadTooLarge where inline JSON exceeds its cap."""
    if len(text) > INLINE_BYTES // 4 and (size := len(text.encode())) > INLINE_BYTES:
        message = f"has {size} bytes, more than the {INLINE_BYTES} that fit"
        raise PayloadTooLarge(f"{pointer} {message}", errors=[{"pointer": pointer, "message": message}])


def broken(errors: list[dict[str, str]]) -> InvalidRequest:
    """The refusal for a body, of every broken field with its JSON pointer."""
    errors = errors[:MOST_TOLD]
    return InvalidRequest("; ".join(f"{e['pointer'] or 'the body'} {e['message']}" for e in errors[:3]), errors=errors)


def broken_type(given: str, pointer: str) -> InvalidType:
    """The refusal for a body whose task type is none, with what to write instead where that can be seen."""
    match = _VERSIONED.fullmatch(given)
    advice = None
    if match is None and "@" in given:
        advice = 'Send a "type" without @, and its "schemaVersion", a whole number, as a field of its own.'
    elif match is not None:
        advice = f'Send "type": "{match["type"][:130]}" and "schemaVersion": {match["version"][:10]} as two fields.'
    return InvalidType(f"the task type {NO_TYPE}", pointer, next=advice)
