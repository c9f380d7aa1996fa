"""JSON that passes through exactly (protocol.md §1): parsed to be checked, kept as the text that was sent.

`parse` gives the value for validation; `members` and `elements` give the raw text of the parts, so that what is stored is a
slice of the body and nothing is ever re-written. The rules that JSON leaves open are closed here: no duplicate keys, no
NaN or Infinity, no number beyond a double or 4,300 digits, no lone surrogate, no BOM, nesting of at most 64.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from json.decoder import JSONDecoder
from typing import Any

import msgspec

from .errors import InvalidJson

MAX_DEPTH = 64
MAX_DIGITS = 4300
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89abAB]|\\u[dD][c-fC-F]")
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}:,]', re.DOTALL)
_LONG_EXPONENT = re.compile(r"[eE][+-]?0*[0-9]{7}")  # nothing that a double tells apart, and no arithmetic can carry
_SPACE = " \t\n\r"


class _Broken(ValueError):
    """A value rule was broken somewhere; `_explain` finds the place."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _Broken
    return made


def _constant(name: str) -> Any:
    raise _Broken(name)


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value) or _LONG_EXPONENT.search(text):
        raise _Broken
    return value


_strict = JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_float=_float)


def _any_integer(text: str) -> int | float:
    # Beyond what is read at all, it is as one with an exponent beyond a double: never another number, which would be believed.
    return int(text) if len(text.lstrip("-")) <= MAX_DIGITS else math.copysign(math.inf, -1 if text[0] == "-" else 1)


class Doubled(dict[str, Any]):
    """An object in which the key `name` stands twice, leniently read: the last value counts, where it is taken at all."""

    name: str


def _any_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    twice = Doubled(made)
    twice.name = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
    return twice


def doubled(value: Any, pointer: str) -> InvalidJson | None:
    """The refusal of a leniently read object in which a key stands twice."""
    if not isinstance(value, Doubled):
        return None
    return InvalidJson(f"the key {clean(value.name)[:80]!r} stands twice in one object", f"{pointer}/{escape(value.name)}")


_lenient = JSONDecoder(parse_int=_any_integer, object_pairs_hook=_any_object)


def text_of(body: bytes) -> str:
    """The body as text. Raises InvalidJson for a BOM or bytes that are not UTF-8."""
    if body.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise InvalidJson("the body starts with a byte order mark; send UTF-8 without one")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidJson(f"byte {error.start} is not valid UTF-8") from None


def parse(text: str, pointer: str = "") -> Any:
    """The value of `text`, checked against every rule above.

    Raises InvalidJson whose pointer (below `pointer`) names the place of the first broken rule.
    """
    check_depth(text, pointer)
    try:
        value = _strict.decode(text)
    except json.JSONDecodeError as error:
        raise InvalidJson(f"{error.msg} at line {error.lineno} column {error.colno}", pointer) from None
    except ValueError:  # _Broken, or an integer of too many digits
        raise _explain(text, pointer) from None
    if _SURROGATE_ESCAPE.search(text) and (found := _find(value, _has_surrogate, pointer)) is not None:
        raise InvalidJson("a lone surrogate is not a Unicode character", found)
    return value


def parse_leniently(text: str) -> tuple[Any, str]:
    """The value of a batch of reports, in which a broken value rule concerns one item alone, and the text to cut it from.

    Raises InvalidJson only where the text cannot be cut into items at all, or not in one way alone.
    """
    text = _shallow(text, MAX_DEPTH + 8)
    try:
        value = _lenient.decode(text)
    except json.JSONDecodeError as error:
        raise InvalidJson(f"{error.msg} at line {error.lineno} column {error.colno}") from None
    if (twice := doubled(value, "")) is not None:
        raise twice
    return value, text


def _shallow(text: str, limit: int) -> str:
    """The text with everything nested deeper than `limit` replaced by 0: still too deep for its item, but safe to parse."""
    if text.count("[") + text.count("{") <= limit:
        return text
    depth, kept_to, parts = 0, 0, []
    for match in _STRING_OR_BRACKET.finditer(text):
        mark = match.group()
        if mark in "[{":
            depth += 1
            if depth == limit + 1:
                parts.append(text[kept_to : match.start()] + "0")
                kept_to = len(text)
        elif mark in "]}":
            if depth == limit + 1:
                kept_to = match.end()
            depth -= 1
    parts.append(text[kept_to:])
    return "".join(parts)


def check_depth(text: str, pointer: str = "") -> None:
    """Raises InvalidJson at the first place deeper than MAX_DEPTH. Never recurses, whatever the interpreter's own limit is."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        mark = match.group()
        if mark in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise InvalidJson(f"nesting is deeper than {MAX_DEPTH}", pointer + _place(text[: match.start()]))
        elif mark in "]}":
            depth -= 1


def _place(before: str) -> str:
    """The pointer of what comes after the beginning of a JSON text, which may be no JSON: then as well as it can be told."""
    path: list[int | str] = []  # of each array that is open the index, of each object the key
    string = '""'
    for match in _TOKEN.finditer(before):
        mark = match.group()
        if mark in "[{":
            path.append(0 if mark == "[" else "")
        elif not path:
            continue
        elif mark in "]}":
            path.pop()
        elif mark == "," and isinstance(path[-1], int):
            path[-1] += 1
        elif mark == ":" and isinstance(path[-1], str):
            path[-1] = string
        elif mark[0] == '"':
            string = mark
    return "".join(f"/{step}" if isinstance(step, int) else f"/{escape(_key(step))}" for step in path)


def _key(text: str) -> str:
    try:
        return str(_lenient.decode(text))
    except json.JSONDecodeError:  # no JSON: its own parser would say so, if it were not too deep
        return text[1:-1]


def members(text: str) -> dict[str, str]:
    """Member name → raw text, of text that holds one JSON object and was parsed already."""
    try:
        return {key: bytes(raw).decode() for key, raw in _members(text.encode()).items()}
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return _cut(text, "{")


def elements(text: str) -> list[str]:
    """The raw texts of the elements of a JSON array that was parsed already."""
    try:
        return [bytes(raw).decode() for raw in _elements(text.encode())]
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return list(_cut(text, "[").values())


_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode


def _cut(text: str, opening: str) -> dict[str, str]:
    """Slices one level by hand, for text that only the lenient decoder takes (NaN, lone surrogates, huge numbers)."""
    found: dict[str, str] = {}
    at = _skip(text, text.index(opening) + 1)
    while text[at] not in "]}":
        key = str(len(found))
        if opening == "{":
            key, at = _lenient.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)  # over the colon
        _, end = _lenient.raw_decode(text, at)
        found[key] = text[at:end]
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found


def _skip(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at


def _has_surrogate(value: Any) -> bool:
    return isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value)


def escape(key: str) -> str:
    """One reference token of a JSON pointer (RFC 6901), without characters that cannot be sent."""
    return clean(key).replace("~", "~0").replace("/", "~1")


def clean(text: str) -> str:
    """Text as it can be stored: U+0000 and lone surrogates become U+FFFD."""
    return re.sub("[\x00\ud800-\udfff]", "\ufffd", text)


def _find(value: Any, broken: Any, pointer: str) -> str | None:
    if isinstance(value, dict):
        for key, item in value.items():
            here = f"{pointer}/{escape(key)}"
            if broken(key):
                return here
            if (found := _find(item, broken, here)) is not None:
                return found
        return None
    if isinstance(value, list):
        for index, item in enumerate(value):
            if (found := _find(item, broken, f"{pointer}/{index}")) is not None:
                return found
        return None
    return pointer if broken(value) else None


class _Pairs(list[tuple[str, Any]]):
    pass


def _explain(text: str, pointer: str) -> InvalidJson:
    """Parses again, slowly, keeping what was broken, and names the first place."""
    decoder = JSONDecoder(
        object_pairs_hook=_Pairs,
        parse_constant=lambda name: _Broken(f"{name} is not a JSON value"),
        parse_float=lambda t: (
            _Broken(f"{t[:40]} is beyond the range of a double") if math.isinf(float(t)) or _LONG_EXPONENT.search(t) else 0.0
        ),
        parse_int=lambda t: _Broken(f"an integer of more than {MAX_DIGITS} digits") if len(t.lstrip("-")) > MAX_DIGITS else 0,
    )
    message, place = _first_broken(decoder.decode(text), pointer) or ("a value is not acceptable", pointer)
    return InvalidJson(message, place)


def _first_broken(value: Any, pointer: str) -> tuple[str, str] | None:
    if isinstance(value, _Broken):
        return str(value), pointer
    if isinstance(value, _Pairs):
        seen: set[str] = set()
        for key, item in value:
            here = f"{pointer}/{escape(key)}"
            if key in seen:
                return f"the key {clean(key)[:80]!r} stands twice in one object", here
            seen.add(key)
            if (found := _first_broken(item, here)) is not None:
                return found
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if (found := _first_broken(item, f"{pointer}/{index}")) is not None:
                return found
    return None
