"""The rules of single fields (protocol.md §1, §3, §4) and how a broken one is told."""

from __future__ import annotations

import re
import unicodedata
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from ..errors import InvalidRequest, InvalidType, PayloadTooLarge
from ..jsontext import clean, escape
from .times import read

TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}/[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VERSIONED = re.compile(r"(?P<type>[^@\s]+/[^@\s]+)@(?P<version>[0-9]+)")
_PATH_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
INLINE_BYTES = 256 * 1024
TEXT_BYTES = 16 * 1024
SMALLEST = 1e-6  # of seconds and fractions


MOST_FIELDS = 300


class _Few(BaseModel):
    """An object with more fields than any body has is refused at once: telling each of a million would cost seconds."""

    model_config = ConfigDict(defer_build=True)  # here and below: what reads a body is built when the first such body comes

    @model_validator(mode="before")
    @classmethod
    def _few(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > MOST_FIELDS:
            raise PydanticCustomError("fields", "has {count} fields", {"count": len(value)})
        return value


class Strict(_Few):
    """A body of a producer or an operator: unknown fields are refused, a typo must not be silently ignored."""

    model_config = ConfigDict(strict=True, extra="forbid", alias_generator=to_camel, frozen=True, defer_build=True)


class Tolerant(_Few):
    """A body of a worker: unknown fields are ignored, since boxes upgrade by themselves."""

    model_config = ConfigDict(strict=True, extra="ignore", alias_generator=to_camel, frozen=True, defer_build=True)


def _identifier(value: str) -> str:
    if not value.strip():
        raise PydanticCustomError("identifier", "must not be blank")
    if any(unicodedata.category(c) == "Cc" for c in value):
        raise PydanticCustomError("identifier", "must not contain control characters")
    return value


def _tag_key(value: str) -> str:
    if ":" in value:
        raise PydanticCustomError("tag_key", "a tag key must not contain ':'")
    return value


def _storable(value: str) -> str:
    if "\x00" in value:
        raise PydanticCustomError("storable", "must not contain U+0000")
    return value


def _type(value: str) -> str:
    if TYPE.fullmatch(value) is None:
        raise PydanticCustomError(
            "task_type", "must be group/name: two parts of letters, digits, '.', '_', '-' and one '/'", {"given": value[:200]}
        )
    return value


def is_path_name(value: str) -> bool:
    """Whether `value` may be a worker id or a schedule name, which stand in paths."""
    return _PATH_NAME.fullmatch(value) is not None


def _path_name(value: str) -> str:
    if not is_path_name(value):
        raise PydanticCustomError(
            "path_name", "must be 1 to 128 of letters, digits, '.', '_', '-', starting with a letter or digit"
        )
    return value


def _instant(value: Any) -> datetime:
    if not isinstance(value, str):
        raise PydanticCustomError("instant", "must be an RFC 3339 instant such as 2026-01-31T12:00:00Z")
    try:
        instant = read(value)
    except (ValueError, OverflowError) as error:
        raise PydanticCustomError("instant", "{reason}", {"reason": str(error)[:200]}) from None
    # What is stored is read again in any time zone: at the ends of the calendar that would be a year that cannot be told.
    if not 1970 <= instant.year < 9000:
        raise PydanticCustomError("instant", "must lie between the years 1970 and 9000")
    return instant


def _measurable(value: float) -> float:
    # Below this, arithmetic on the value ends in an underflow: in Postgres an error, in whatever statement meets the row.
    if 0 < value < SMALLEST:
        raise PydanticCustomError("measurable", "must be 0 or at least 0.000001")
    return value


def _uuid(value: Any) -> UUID:
    if isinstance(value, str) and len(value) == 36:
        try:
            return UUID(value)
        except ValueError:
            pass
    raise PydanticCustomError("uuid", "must be an id such as 019a0000-0000-7000-8000-000000000000")


Identifier = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_identifier)]
TagKey = Annotated[Identifier, AfterValidator(_tag_key)]
TagValue = Annotated[str, Field(max_length=255), AfterValidator(_storable)]
TaskType = Annotated[str, Field(json_schema_extra={"pattern": "^" + TYPE.pattern + "$"}), AfterValidator(_type)]
SchemaVersion = Annotated[int, Field(ge=1, le=2_147_483_647)]
PathName = Annotated[str, Field(json_schema_extra={"pattern": "^" + _PATH_NAME.pattern + "$"}), AfterValidator(_path_name)]
Instant = Annotated[datetime, BeforeValidator(_instant, json_schema_input_type=str)]
Id = Annotated[UUID, BeforeValidator(_uuid, json_schema_input_type=str)]
Measurable = AfterValidator(_measurable)
Seconds = Annotated[float, Field(ge=0, le=315_360_000, allow_inf_nan=False), Measurable]  # at most ten years
PositiveSeconds = Annotated[float, Field(gt=0, le=315_360_000, allow_inf_nan=False), Measurable]
Priority = Annotated[int, Field(ge=-100, le=100)]
Limit = Annotated[int, Field(ge=1, le=1_000_000)]
Note = Annotated[str, Field(max_length=TEXT_BYTES), AfterValidator(clean)]


def check_size(text: str, pointer: str) -> None:
    """Raises PayloadTooLarge where inline JSON exceeds its cap."""
    if len(text) > INLINE_BYTES // 4 and (size := len(text.encode())) > INLINE_BYTES:
        message = f"has {size} bytes, more than the {INLINE_BYTES} that fit"
        raise PayloadTooLarge(f"{pointer} {message}", errors=[{"pointer": pointer, "message": message}])


def problem(error: ValidationError, prefix: str = "") -> InvalidRequest:
    """The refusal for a body that a model did not take: every broken field with its JSON pointer."""
    errors = []
    try:
        found = error.errors(include_url=False, include_input=True)
    except UnicodeEncodeError:  # of a leniently read report: its text cannot even be told back
        return InvalidRequest("a text holds a lone surrogate", prefix)
    for item in found:
        pointer = prefix + "".join(f"/{escape(str(part))}" for part in item["loc"])
        message = {"missing": "is required", "extra_forbidden": "is not a known field"}.get(item["type"], item["msg"])
        errors.append({"pointer": pointer, "message": message})
        if item["type"] == "task_type":
            return _type_problem(str(item["input"]), pointer, message)
    errors = errors[:50]
    return InvalidRequest("; ".join(f"{e['pointer'] or 'the body'} {e['message']}" for e in errors[:3]), errors=errors)


def _type_problem(given: str, pointer: str, message: str) -> InvalidType:
    match = _VERSIONED.fullmatch(given)
    advice = None
    if match is None and "@" in given:
        advice = 'Send a "type" without @, and its "schemaVersion", a whole number, as a field of its own.'
    elif match is not None:
        advice = f'Send "type": "{match["type"][:130]}" and "schemaVersion": {match["version"][:10]} as two fields.'
    return InvalidType(f"the task type {message}", pointer, next=advice)
