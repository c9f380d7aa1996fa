"""JSON in and out without loss: integers stay integers, nothing that is not JSON leaves, errors name the place."""

from __future__ import annotations

import json
import math
from typing import Any

from interlock.errors import NotJson

DEEPEST = 64
"""Levels of nesting that the service takes."""

_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def encode(value: Any, name: str = "the value") -> bytes:
    """The value as JSON in UTF-8. Raises NotJson, naming the place, for NaN, infinities, lone surrogates, foreign types."""
    try:
        return _encoder.encode(value).encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        pointer, reason = find_fault(value)
        if reason is None:
            reason = f"cannot be written as JSON: {error}"
        raise NotJson(f"{name} is not JSON: at {pointer or '/'}: {reason}", pointer) from None


def decode(data: bytes | str) -> Any:
    """The value of a JSON text; integers of any size the protocol allows come back as Python ints."""
    return json.loads(data)


def find_fault(value: Any, pointer: str = "", above: tuple[Any, ...] = ()) -> tuple[str, str | None]:
    """The JSON Pointer of the first place that JSON cannot carry, and why; ("", None) if none was found."""
    if isinstance(value, (dict, list, tuple)):
        if any(value is other for other in above):
            return pointer, "it contains itself"
        if len(above) >= DEEPEST:
            return pointer, f"nested deeper than {DEEPEST}"
        for key, member in value.items() if isinstance(value, dict) else enumerate(value):
            if not isinstance(key, (str, int, float, type(None))):
                return pointer, f"a key of type {type(key).__name__}"
            found = find_fault(member, f"{pointer}/{escape(str(key))}", (*above, value))
            if isinstance(key, str) and has_surrogate(key):
                return pointer, "a key with a lone surrogate"
            if found[1]:
                return found
        return "", None
    reason = find_scalar_fault(value)
    return (pointer, reason) if reason else ("", None)


def find_scalar_fault(value: Any) -> str | None:
    """Why JSON cannot carry a value that holds no others; None if it can."""
    if isinstance(value, str):
        return "a lone surrogate" if has_surrogate(value) else None
    if isinstance(value, int):
        try:
            int.__repr__(value)
        except ValueError:
            return "an integer of more digits than the protocol takes"
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{value!r} is not a JSON number"
    return None if value is None else f"a value of type {type(value).__name__}"


def has_surrogate(text: str) -> bool:
    """Whether UTF-8 refuses the text."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def clean_text(text: str, longest: int) -> str:
    """Text that no report fails on: U+0000 and surrogates replaced, cut to `longest` bytes and marked where it was cut."""
    text = text.replace("\x00", "\ufffd")
    if has_surrogate(text):
        text = "".join("\ufffd" if "\ud800" <= letter <= "\udfff" else letter for letter in text)
    data = text.encode("utf-8")
    if len(data) <= longest:
        return data.decode("utf-8")
    mark = "…[truncated]"
    return data[: max(0, longest - len(mark.encode("utf-8")))].decode("utf-8", "ignore") + mark


def escape(part: str) -> str:
    """One part of a JSON Pointer."""
    return part.encode("utf-8", "replace").decode("utf-8").replace("~", "~0").replace("/", "~1")[:200]
