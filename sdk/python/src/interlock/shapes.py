"""Typed values and JSON: dataclasses and what they are made of, read strictly; pydantic models by their own rules.

Nothing here needs pydantic: a model is known by its methods.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from interlock.errors import NotValid
from interlock.json_text import encode, escape
from interlock.tasks import read_time, write_time

SEQUENCES = (list, tuple, set, frozenset)
SCALARS: dict[Any, str] = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def is_model(kind: Any) -> bool:
    """Whether a type is a pydantic model."""
    return isinstance(kind, type) and hasattr(kind, "model_validate_json") and hasattr(kind, "model_dump")


def check_kind(kind: Any, name: str, seen: frozenset[Any] = frozenset()) -> None:
    """Raises TypeError for a type that values cannot be read as, naming the place."""
    if (
        kind in seen
        or kind in (Any, None, type(None), datetime, dict, list, Mapping, Sequence)
        or kind in SCALARS
        or is_model(kind)
    ):
        return
    if isinstance(kind, type) and is_dataclass(kind):
        try:
            hints = get_type_hints(kind)
        except NameError as error:
            raise TypeError(f"{name}: the types of {kind.__name__} cannot be resolved: {error}") from None
        for field in fields(kind):
            check_kind(hints[field.name], f"{name}.{field.name}", seen | {kind})
        return
    origin = get_origin(kind)
    if origin is Literal or (isinstance(kind, type) and issubclass(kind, Enum)):
        return
    if origin in (Union, types.UnionType, dict, Mapping, Sequence, *SEQUENCES):
        for part in get_args(kind):
            if part is not Ellipsis:
                check_kind(part, name, seen)
        return
    raise TypeError(f"{name}: {kind!r} is neither a pydantic model nor a dataclass, nor made of lists, dicts, texts and numbers")


def read_as(kind: Any, value: Any, at: str = "") -> Any:
    """A JSON value as the type says. Raises NotValid with the JSON Pointer of the first place that does not fit."""
    if kind is Any:
        return value
    if is_model(kind):
        return read_model(kind, value, at)
    if isinstance(kind, type) and is_dataclass(kind):
        return read_dataclass(kind, value, at)
    if kind in SCALARS:
        return read_scalar(kind, value, at)
    origin = get_origin(kind) or kind
    if origin in (Union, types.UnionType):
        return read_union(get_args(kind), value, at)
    if origin is Literal or (isinstance(kind, type) and issubclass(kind, Enum)):
        return read_choice(kind, value, at)
    if kind in (None, type(None)):
        return require(value is None, "null", value, at)
    if kind is datetime:
        return require((time := read_time(value)) is not None, "a time (RFC 3339)", time, at)
    if origin in (dict, Mapping):
        require(isinstance(value, dict), "an object", value, at)
        inner = (get_args(kind) or (str, Any))[1]
        return {name: read_as(inner, member, f"{at}/{escape(name)}") for name, member in value.items()}
    return read_sequence(origin, get_args(kind), value, at)


def read_choice(kind: Any, value: Any, at: str) -> Any:
    """A member of a Literal or an Enum."""
    choices: dict[Any, Any] = {one: one for one in get_args(kind)} or {one.value: one for one in kind}
    for given, member in choices.items():
        if value == given and type(value) is type(given):
            return member
    raise NotValid(f"must be one of {', '.join(map(repr, choices))}", at)


def read_model(kind: Any, value: Any, at: str) -> Any:
    """A pydantic model. Read as JSON, so that a strict model takes a time's text."""
    try:
        return kind.model_validate_json(encode(value))
    except Exception as error:  # a validator of the user's may raise anything
        told = error.errors() if hasattr(error, "errors") else ()
        if not told:
            raise NotValid(f"{kind.__name__}: {error}", at) from None
        # Never the input itself, which the model's own text would quote.
        places = [("".join(f"/{escape(str(part))}" for part in one["loc"]), one["msg"]) for one in told]
        more = "".join(f"; {at}{place}: {text}" for place, text in places[1:5])
        raise NotValid(f"{places[0][1]}{more}", at + places[0][0]) from None


def read_dataclass(kind: Any, value: Any, at: str) -> Any:
    """A dataclass from an object; members that it does not know are left out, as a newer caller may send them."""
    require(isinstance(value, dict), "an object", value, at)
    hints = get_type_hints(kind)
    given: dict[str, Any] = {}
    for field in fields(kind):
        if not field.init:
            continue
        if field.name in value:
            given[field.name] = read_as(hints[field.name], value[field.name], f"{at}/{escape(field.name)}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise NotValid("is missing", f"{at}/{escape(field.name)}")
    try:
        return kind(**given)
    except Exception as error:  # its own __post_init__ may refuse
        raise NotValid(f"{kind.__name__}: {error}", at) from None


def read_scalar(kind: Any, value: Any, at: str) -> Any:
    """A text, number or truth value. A whole number is a number too; true is no number."""
    if kind is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise NotValid("is too large for a float", at) from None
    if kind is int and type(value) is float and value.is_integer():
        return int(value)
    return require(type(value) is kind, SCALARS[kind], value, at)


def read_union(kinds: Sequence[Any], value: Any, at: str) -> Any:
    """The first of several types that fits; the message is that of the last one that came nearest to it."""
    faults: list[NotValid] = []
    for kind in kinds:
        try:
            return read_as(kind, value, at)
        except NotValid as error:
            faults.append(error)
    raise max(faults, key=lambda fault: len(fault.pointer))


def read_sequence(origin: Any, parts: tuple[Any, ...], value: Any, at: str) -> Any:
    """A list, tuple or set from an array."""
    require(isinstance(value, list), "an array", value, at)
    if origin is tuple and parts and parts[-1] is not Ellipsis:
        require(len(value) == len(parts), f"an array of {len(parts)}", value, at)
        return tuple(read_as(kind, member, f"{at}/{place}") for place, (kind, member) in enumerate(zip(parts, value)))  # noqa: B905 (lengths are equal)
    inner = parts[0] if parts else Any
    members = [read_as(inner, member, f"{at}/{place}") for place, member in enumerate(value)]
    return members if origin in (list, Sequence) else origin(members)


def require(fits: bool, what: str, value: Any, at: str) -> Any:
    """The value, or NotValid."""
    if not fits:
        raise NotValid(f"must be {what}", at)
    return value


def write(value: Any) -> Any:
    """The value as JSON knows it: dataclasses and models as objects, sets and tuples as arrays, times as RFC 3339."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: write(getattr(value, field.name)) for field in fields(value) if field.init}
    if is_model(type(value)):
        return value.model_dump(mode="json", by_alias=True)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return write_time(value)
    if isinstance(value, Mapping):
        return {name: write(member) for name, member in value.items()}
    if isinstance(value, SEQUENCES):
        return [write(member) for member in value]
    return value
