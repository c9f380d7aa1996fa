"""The canonical form of a request, by which one idempotency key names one request (protocol.md §1).

Fields equal to their protocol default are left out, keys are sorted by code point, there is no white space, numbers are
written by mathematical value and strings by code point, unnormalised. The SHA-256 of that is stored, with the version of
the form and a short hash per field, so that a conflict can name the first field that differs.
"""

from __future__ import annotations

import hashlib
import json
import re
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any

VERSION = 1
_FRACTION_OR_EXPONENT = re.compile(r"[0-9][.eE]")
_decoder = json.JSONDecoder(parse_float=Decimal)


def canonical(text: str) -> str:
    """The canonical form of one JSON text that was already checked by `jsontext.parse`."""
    if not _FRACTION_OR_EXPONENT.search(text):
        return json.dumps(json.loads(text), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return write(_decoder.decode(text))


def write(value: Any) -> str:
    """The canonical form of a parsed value; fractions may be floats or Decimals."""
    if isinstance(value, str):
        return encode_basestring(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return number(Decimal(repr(value)))
    if isinstance(value, Decimal):
        return number(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{encode_basestring(k)}:{write(value[k])}" for k in sorted(value)) + "}"
    return "[" + ",".join(write(item) for item in value) + "]"


def number(value: Decimal) -> str:
    """A number by its mathematical value: `1`, `1.0` and `1e0` are one text; `-0` is `0`."""
    sign, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    if not text:
        return "0"
    stripped = text.rstrip("0")
    exponent = int(exponent) + len(text) - len(stripped)
    body = stripped + "0" * exponent if exponent >= 0 else f"{stripped}e{exponent}"
    return "-" + body if sign else body


def fingerprint(fields: dict[str, str]) -> tuple[bytes, str]:
    """SHA-256 of a request given as field → canonical text, and the JSON text of its per-field hashes."""
    body = "{" + ",".join(f"{encode_basestring(name)}:{fields[name]}" for name in sorted(fields)) + "}"
    hashes = {name: hashlib.sha256(fields[name].encode()).hexdigest()[:16] for name in sorted(fields)}
    return hashlib.sha256(body.encode()).digest(), json.dumps(hashes, separators=(",", ":"))


def first_difference(stored: str, given: str) -> str | None:
    """The first field, in code-point order, whose hash differs between two texts made by `fingerprint`."""
    ours, theirs = json.loads(stored), json.loads(given)
    for name in sorted({*ours, *theirs}):
        if ours.get(name) != theirs.get(name):
            return str(name)
    return None
