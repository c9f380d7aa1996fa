"""Text of others shown harmlessly: no control, ANSI, bidirectional or invisible character reaches a terminal."""

from __future__ import annotations

import json
import re
from typing import Any

# C1 controls (0x9b begins an ANSI sequence), soft hyphen, bidirectional marks and overrides, zero-width and invisible
# characters, line and paragraph separators, the byte order mark, interlinear and tag characters, lone surrogates.
INVISIBLE = (
    "\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff"
)
IN_TEXT = re.compile(f"[\x00-\x1f{INVISIBLE}]")
IN_JSON = re.compile(f"[{INVISIBLE}]")
SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def show_plainly(text: str) -> str:
    r"""The text on one line, each harmful character as an escape such as `\x1b` or `\u202e`."""
    return IN_TEXT.sub(lambda match: SHORT.get(match[0]) or escape(match[0]), text)


def show_lines(text: str) -> list[str]:
    """The text with its line breaks kept, each line harmless."""
    return [show_plainly(line.replace("\t", "    ")) for line in re.split(r"\r\n|\n", text)]


def escape(letter: str) -> str:
    """The character as an escape."""
    code = ord(letter)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def escape_in_json(letter: str) -> str:
    """The character as JSON escapes it."""
    return json.dumps(letter)[1:-1] if ord(letter) > 0x7F else f"\\u{ord(letter):04x}"


def to_json(value: Any, *, indent: int | None = None, ascii_only: bool = False) -> str:
    """The value as JSON that is harmless on a terminal and equal to the value: integers of any size, every character."""
    separators = (",", ":") if indent is None else (",", ": ")
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent, separators=separators)
    return IN_JSON.sub(lambda match: escape_in_json(match[0]), text)


def shorten(text: str, longest: int = 120) -> str:
    """One harmless line of at most so many characters, marked where it was cut. Never used for an id."""
    plain = show_plainly(text)
    return plain if len(plain) <= longest else plain[: longest - 1] + "…"
