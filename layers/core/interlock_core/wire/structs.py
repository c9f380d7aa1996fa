"""The rules of single fields for msgspec's structs, which read what a cold worker sends first: claims and reports.

Importing pydantic and building its models is a quarter of what a claim's cold start would cost
(docs/decisions/0006-structs-for-claims-and-reports.md); a struct costs next to nothing, in memory and per body too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self, get_args, get_origin
from uuid import UUID

import msgspec
from msgspec import Meta
from msgspec.structs import fields

from ..errors import InvalidRequest
from . import rules

_IDENTIFIER = r"\A(?=.*\S)[^\x00-\x1f\x7f-\x9f\ud800-\udfff]*\Z"  # as rules.identifier; and reports may hold lone surrogates
_TYPE = rf"\A{rules.TYPE.pattern}\Z"
_PATH_NAME = rf"\A{rules.PATH_NAME.pattern}\Z"

Identifier = Annotated[str, Meta(min_length=1, max_length=rules.LONGEST_NAME, pattern=_IDENTIFIER)]
TaskType = Annotated[str, Meta(pattern=_TYPE)]
PathName = Annotated[str, Meta(pattern=_PATH_NAME)]
SchemaVersion = Annotated[int, Meta(ge=1, le=rules.GREATEST_INT)]
Seconds = Annotated[float, Meta(ge=0, le=rules.LONGEST_SECONDS)]  # those below SMALLEST: `measured`
EffectSafety = Literal["pure", "idempotent", "non-idempotent"]
Slots = Annotated[int, Meta(ge=1, le=10_000)]
Text = Annotated[str, Meta(max_length=1_000_000)]
Id = UUID


class Broken(ValueError):
    """A rule that a field's type cannot say; raised while a struct is made."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class Body(msgspec.Struct, rename="camel"):
    """A body of a worker, or one item of it: unknown fields are ignored, since boxes upgrade by themselves."""

    @classmethod
    def read(cls, value: Any, pointer: str = "") -> Self:
        """The body that `value`, which stands at `pointer`, is. Raises InvalidRequest, which names the broken fields."""
        try:
            rules.few(value)
            return msgspec.convert(value, cls)
        except (msgspec.ValidationError, ValueError):  # the latter: a lone surrogate, too many fields
            raise _problem(cls, value, pointer) from None


def measured(value: float | None, field: str) -> None:
    """Raises Broken for seconds too short to count with."""
    try:
        rules.measurable(value or 0)
    except ValueError as error:
        raise Broken(str(error), field) from None


def _problem(model: type[Body], value: Any, pointer: str) -> InvalidRequest:
    """What is wrong with `value`: of each field the first thing, or else what the model says of the whole."""
    try:
        rules.few(value)
    except ValueError as error:
        return rules.broken([{"pointer": pointer, "message": str(error)}])
    found = []
    for field in fields(model) if isinstance(value, dict) else ():
        name = field.encode_name
        if name not in value:
            if field.required:
                found.append({"pointer": f"{pointer}/{name}", "message": "is required"})
            continue
        try:
            msgspec.convert([value[name]], list[field.type])  # type: ignore[name-defined]  # in a list: so that the place is told
        except UnicodeEncodeError:
            found.append({"pointer": f"{pointer}/{name}", "message": "holds a lone surrogate"})
        except msgspec.ValidationError as error:
            told, _, place = str(error).rpartition(" - at `$[0]")
            parts = [name, *re.findall(r"\w+", place)]
            at = pointer + "".join(f"/{part}" for part in parts)
            if isinstance(error.__cause__, Broken) and error.__cause__.field:
                at += f"/{error.__cause__.field}"
            if told.endswith(f"regex {_TYPE!r}"):
                return rules.broken_type(_stands(value, parts), at)
            if missing := re.fullmatch(r"Object missing required field `(\w+)`", told):
                at, told = f"{at}/{missing[1]}", "is required"
            found.append(
                {"pointer": at, "message": _message(told, field.type, [part for part in parts[1:] if not part.isdigit()])}
            )
    return rules.broken(found or [_whole(model, value, pointer)])


def _whole(model: type[Body], value: Any, pointer: str) -> dict[str, str]:
    try:
        msgspec.convert(value, model)
    except msgspec.ValidationError as error:
        field = error.__cause__.field if isinstance(error.__cause__, Broken) else ""
        return {"pointer": f"{pointer}/{field}" if field else pointer, "message": _message(str(error), model, [])}
    raise AssertionError("what could not be read can be read now")


def _stands(value: Any, parts: Sequence[str]) -> str:
    for part in parts:
        value = value[int(part) if isinstance(value, list) else part]
    return str(value)


_WORDS = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
    "uuid": "an id",
}
_PATTERNS = {
    _IDENTIFIER: f"{rules.BLANK} and {rules.CONTROL}",
    _PATH_NAME: rules.NO_PATH_NAME,
}
_BOUNDS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}


def _message(told: str, kind: Any, names: Sequence[str]) -> str:
    """msgspec's sentence about a value, in the words of all refusals. The value is to be of `kind`, or of that of its field `names`."""
    for pattern, message in _PATTERNS.items():
        if told.endswith(f"regex {pattern!r}"):
            return message
    if found := re.fullmatch(r"Expected `([^`]+)`, got `(\w+)`", told):
        wanted = " or ".join(_WORDS.get(word, word) for word in found[1].split(" | ") if word != "null")
        return f"must be {_one_of(kind, names) or wanted}, not {_WORDS.get(found[2], found[2])}"
    if found := re.fullmatch(r"Expected `(\w+)` of length (\S+) (\d+)", told):
        return f"must have {_BOUNDS[found[2]]} {found[3]} {'characters' if found[1] == 'str' else 'elements'}"
    if found := re.fullmatch(r"Expected `\w+` (\S+) (\S+)", told):
        return f"must be {_BOUNDS[found[1]]} {found[2].removesuffix('.0')}"
    if told.startswith("Invalid enum value"):
        return f"must be {_one_of(kind, names)}"
    return {"Invalid UUID": rules.NO_ID, "Number out of range": "is out of range"}.get(told, told)


def _one_of(kind: Any, names: Sequence[str]) -> str:
    choices = _choices(kind, names)
    return f"one of {', '.join(map(repr, choices))}" if choices else ""


def _choices(kind: Any, names: Sequence[str]) -> list[str]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [choice for field in fields(kind) if field.encode_name in names[:1] for choice in _choices(field.type, names[1:])]
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [choice for part in get_args(kind) for choice in _choices(part, names)]
