"""The rules of single fields for msgspec's structs, which read what a cold worker sends first: claims and reports.

Importing pydantic and building its models would be a fifth of a claim's cold start
(docs/decisions/0006-structs-for-claims-and-reports.md); a struct costs next to nothing, in memory and per body too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from typing import Annotated, Any, Literal, Self, TypeVar, get_args, get_origin
from uuid import UUID

import msgspec
from msgspec import Meta
from msgspec.structs import fields

from ..jsontext import clean
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
_T = TypeVar("_T")


class _Id(UUID):
    """Reads what `rules.identity` takes: msgspec's own reading of a UUID takes more, and would take what others refuse."""


Id = Annotated[_Id, Meta(extra_json_schema={"type": "string", "format": "uuid"})]


class Broken(ValueError):
    """A rule that a field's type cannot say; raised while a struct is made."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class Body(msgspec.Struct, rename="camel"):
    """A body of a worker, or one item of it: unknown fields are ignored, since boxes upgrade by themselves."""

    @classmethod
    def read(cls, value: Any, pointer: str = "") -> Self:
        """The body that `value`, which stands at `pointer`, is. Raises InvalidRequest, which names every broken field."""
        try:
            rules.few(value)
        except ValueError as error:
            raise rules.broken([{"pointer": pointer, "message": str(error)}]) from None
        try:
            return _made(value, cls)
        except (msgspec.ValidationError, UnicodeEncodeError):  # the latter: msgspec reads no lone surrogate, nor a key with one
            value = _known(value, cls)
        if errors := list(islice(_wrong(value, cls, pointer), rules.MOST_TOLD)):
            raise rules.broken(errors)
        return _made(value, cls)


def measured(value: float | None, field: str) -> None:
    """Raises Broken for seconds too short to count with."""
    try:
        rules.measurable(value or 0)
    except ValueError as error:
        raise Broken(str(error), field) from None


def _made(value: Any, kind: type[_T]) -> _T:
    return msgspec.convert(value, kind, dec_hook=_custom)


def _custom(kind: Any, value: Any) -> Any:
    return kind(rules.identity(value))


def _known(value: Any, kind: Any) -> Any:
    """The value without the fields that no struct has; what is of any kind stays as it came.

    Not within arrays: those of structs are claims' alone, and a claim with a lone surrogate is no JSON to begin with.
    """
    if isinstance(value, dict) and (model := _struct(kind)):
        return {f.encode_name: _known(value[f.encode_name], f.type) for f in _fields(model) if f.encode_name in value}
    return value


def _wrong(value: Any, kind: Any, at: str) -> Iterator[dict[str, str]]:
    """What keeps `value`, which stands at `at`, from being of `kind`: of each of its parts, or else of the whole."""
    try:
        _made(value, kind)
        return
    except UnicodeEncodeError:  # text where none belongs
        if isinstance(value, str):
            yield from _wrong(clean(value), kind, at)
            return
        told, field, within = "holds a lone surrogate", "", True
    except msgspec.ValidationError as error:
        told, field = str(error), error.__cause__.field if isinstance(error.__cause__, Broken) else ""
        within = " - at `$" in told
    parts = list(islice(_wrong_parts(value, kind, at, within), rules.MOST_TOLD))
    if not parts and told.endswith(f"regex {_TYPE!r}"):
        raise rules.broken_type(value, at)
    yield from parts or [{"pointer": f"{at}/{field}" if field else at, "message": _message(told, kind)}]


def _wrong_parts(value: Any, kind: Any, at: str, within: bool) -> Iterator[dict[str, str]]:
    if isinstance(value, dict) and (model := _struct(kind)):
        for field in _fields(model):
            name = field.encode_name
            if name in value:
                yield from _wrong(value[name], field.type, f"{at}/{name}")
            elif field.required:
                yield {"pointer": f"{at}/{name}", "message": "is required"}
    elif isinstance(value, list) and within and (array := _array(kind)):
        kind, index = get_args(array)[0], 0
        while (sound := _sound(value[index:], kind)) is not None:
            index += sound
            yield from _wrong(value[index], kind, f"{at}/{index}")
            index += 1


def _sound(values: list[Any], kind: Any) -> int | None:
    """How many of the values come before the first that is not of `kind`; None where all are. Asked at once: one by one costs tenfold."""
    try:
        _made(values, list[kind])
    except UnicodeEncodeError:  # which of them it is has to be looked for
        return 0
    except msgspec.ValidationError as error:
        return int(re.split(r"\D", str(error).rpartition(" - at `$[")[2])[0])
    return None


_fields = cache(fields)  # which evaluates every annotation of the struct anew


def _struct(kind: Any) -> type[Body] | None:
    return _inner(kind, lambda part: isinstance(part, type) and issubclass(part, Body))  # type: ignore[no-any-return]


def _array(kind: Any) -> Any:
    return _inner(kind, lambda part: get_origin(part) is list)


def _inner(kind: Any, wanted: Callable[[Any], bool]) -> Any:
    """The part of a type, an annotated one or one of several, that is wanted."""
    if wanted(kind):
        return kind
    parts = () if get_origin(kind) in (list, Literal) else get_args(kind)
    return next((found for part in parts if (found := _inner(part, wanted)) is not None), None)


_WORDS = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
_PATTERNS = {
    _IDENTIFIER: f"{rules.BLANK} and {rules.CONTROL}",
    _PATH_NAME: rules.NO_PATH_NAME,
}
_BOUNDS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}


def _message(told: str, kind: Any) -> str:
    """msgspec's sentence about a value that is to be of `kind`, in the words of all refusals."""
    choices = ", ".join(map(repr, get_args(_inner(kind, lambda part: get_origin(part) is Literal))))
    for pattern, message in _PATTERNS.items():
        if told.endswith(f"regex {pattern!r}"):
            return message
    if told.startswith("Invalid enum value"):
        return f"must be one of {choices}"
    if found := re.fullmatch(r"Expected `([^`]+)`, got `(\w+)`", told):
        wanted = " or ".join(_WORDS.get(word, word) for word in found[1].split(" | ") if word != "null")
        return f"must be {f'one of {choices}' if choices else wanted}, not {_WORDS.get(found[2], found[2])}"
    if found := re.fullmatch(r"Expected `(\w+)` of length (\S+) (\d+)", told):
        return f"must have {_BOUNDS[found[2]]} {found[3]} {'characters' if found[1] == 'str' else 'elements'}"
    if found := re.fullmatch(r"Expected `\w+` (\S+) (\S+)", told):
        return f"must be {_BOUNDS[found[1]]} {found[2].removesuffix('.0')}"
    return {"Number out of range": "is out of range"}.get(told, told)
