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


def find_fault(value: Any) -> tuple[str, str | None]:
    """The JSON Pointer of the first place that JSON cannot carry, and why; ("", None) if none was found."""
    trail: set[int] = set()

    def look(item: Any, pointer: str, depth: int) -> tuple[str, str] | None:
        if item is None or isinstance(item, bool):
            return None
        if isinstance(item, str):
            return (pointer, "a lone surrogate") if has_surrogate(item) else None
        if isinstance(item, int):
            try:
                int.__repr__(item)
            except ValueError:
                return pointer, "an integer of more digits than the protocol takes"
            return None
        if isinstance(item, float):
            return (pointer, f"{item!r} is not a JSON number") if not math.isfinite(item) else None
        if isinstance(item, (dict, list, tuple)):
            if depth > DEEPEST:
                return pointer, f"nested deeper than {DEEPEST}" if id(item) not in trail else "it contains itself"
            trail.add(id(item))
            pairs = item.items() if isinstance(item, dict) else enumerate(item)
            for key, member in pairs:
                place = f"{pointer}/{escape(str(key))}"
                if isinstance(item, dict):
                    if not isinstance(key, (str, int, float, bool, type(None))):
                        return place, f"a key of type {type(key).__name__}"
                    if isinstance(key, str) and has_surrogate(key):
                        return pointer, "a key with a lone surrogate"
                found = look(member, place, depth + 1)
                if found:
                    return found
            trail.discard(id(item))
            return None
        return pointer, f"a value of type {type(item).__name__}"

    return look(value, "", 1) or ("", None)


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
