"""Reading what people type: JSON values that pass through exactly, durations, instants, tags, types with a version."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NoReturn

import typer

from interlock.json_text import encode
from interlock.tasks import write_time

UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)(ms|s|m|h|d|)")
DATED = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")  # what else is wrong with an instant the service says
VERSIONED = re.compile(r"(?P<type>[^@\s]+)@(?P<version>[0-9]{1,10})")


def read_json(given: str, option: str) -> str:
    """The JSON text that an option names (itself, `@file`, or `-` for standard input), as it was written.

    Raises BadParameter unless it is exactly one JSON value that the service may take. The text is not rewritten, so
    that every digit arrives.
    """
    text = read_source(given, option)
    try:
        json.loads(text, object_pairs_hook=refuse_duplicates, parse_constant=refuse_constant)
    except RecursionError:
        bad(option, "it is nested too deeply")
    except json.JSONDecodeError as error:
        hint = "" if given.startswith(("@", "-")) else " (a shell may have eaten quotes: '{\"a\": 1}', @file and - are safe)"
        bad(option, f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}{hint}")
    except ValueError as error:
        bad(option, str(error))
    return text


def read_source(given: str, option: str) -> str:
    """The text of an option, of `@file`, or of standard input."""
    try:
        if given == "-":
            data = sys.stdin.buffer.read()
        elif given.startswith("@"):
            data = read_path(given[1:]).read_bytes()
        else:
            # On POSIX, bytes that are not UTF-8 arrive as lone surrogates.
            data = given.encode("utf-8", "surrogateescape")
        text = data.decode("utf-8")
    except OSError as error:
        bad(option, f"{given[1:]} cannot be read: {error.strerror}")
    except UnicodeError as error:
        bad(option, f"not UTF-8: {getattr(error, 'reason', error)}")
    if text.startswith("\ufeff"):
        bad(option, "it begins with a byte order mark: save the file as UTF-8 without one")
    return text


def read_path(given: str) -> Path:
    """The path that was typed, also where the locale cannot express it."""
    return Path(os.fsdecode(given.encode("utf-8", "surrogateescape")) if os.name != "nt" else given)


def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object, unless a key stands in it twice: which one counts would be a guess."""
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the key {name!r} stands twice in one object")
            seen.add(name)
    return found


def refuse_constant(name: str) -> NoReturn:
    """NaN and the infinities are no JSON."""
    raise ValueError(f"{name} is not a JSON number")


def splice(fields: dict[str, Any], name: str, text: str | None) -> bytes:
    """The fields as JSON, with one more member whose value is JSON text already."""
    body = encode(fields, "the request")
    if text is None:
        return body
    comma = b"," if fields else b""
    return body[:-1] + comma + encode(name) + b":" + text.encode("utf-8") + b"}"


def read_duration(given: str | None, option: str) -> float | None:
    """Seconds of a duration such as `90`, `1.5s`, `15m`, `2h` or `7d`."""
    if given is None:
        return None
    match = DURATION.fullmatch(given.strip())
    if match is None:
        bad(option, f"{given!r} is no duration: write seconds (90) or a number with ms, s, m, h or d (15m)")
    return float(match[1]) * UNITS[match[2]]


def read_instant(given: str | None, option: str, *, past: bool) -> str | None:
    """An instant for the service: RFC 3339 as it stands, or a duration counted from now by this machine's clock."""
    if given is None:
        return None
    if DURATION.fullmatch(given.strip()):
        seconds = read_duration(given, option) or 0.0
        now = datetime.now(timezone.utc)
        try:
            return write_time(now - timedelta(seconds=seconds) if past else now + timedelta(seconds=seconds))
        except OverflowError:
            bad(option, f"{given!r} leads out of the calendar")
    if DATED.match(given.strip()) is None:
        bad(
            option,
            f"{given!r} is no time: write RFC 3339 (2026-01-31T12:00:00Z), or how long {'ago' if past else 'from now'} (2h)",
        )
    return given


def read_tags(given: Sequence[str]) -> dict[str, str]:
    """Tags of `key=value` options."""
    tags: dict[str, str] = {}
    for item in given:
        key, sign, value = item.partition("=")
        if not sign or not key:
            bad("--tag", f"{item!r} is not key=value")
        if key in tags:
            bad("--tag", f"{key!r} is given twice")
        tags[key] = value
    return tags


def read_type(given: str, version: int | None) -> tuple[str, int | None]:
    """(type, version): `group/name@2` is understood as both, as tables show them; what else is wrong the service says."""
    match = VERSIONED.fullmatch(given)
    if match is None and "@" in given:  # no type holds an @, and the service's words for that name no version
        bad("TYPE", f"{given!r} ends in no version: a version is a whole number, as in group/name@2; without @ it is 1")
    if match is None:
        return given, version
    told = int(match["version"])
    if version is not None and version != told:
        bad("TYPE", f"{given} names version {told}, but --schema-version says {version}; give one of them")
    return match["type"], told


def read_list(given: Iterable[str] | None) -> list[str] | None:
    """The values of an option that may be repeated, or hold several with commas."""
    found = [part.strip() for item in given or () for part in item.split(",") if part.strip()]
    return found or None


def bad(option: str, reason: str) -> NoReturn:
    """Refuse an option's value."""
    raise typer.BadParameter(reason, param_hint=option)
