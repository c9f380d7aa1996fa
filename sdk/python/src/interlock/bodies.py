"""What comes behind the headers: a whole body, or the lines of a stream. Both within a bound."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from interlock.errors import Unreachable

LONGEST_ANSWER = 64 * 1024 * 1024
"""Bytes. The service's answers end at 6 MB; something that sends more is not the service."""

LONGEST_LINE = 16 * 1024 * 1024
"""Bytes of one line of a stream, and of one event of it: the largest event of a journal is far below."""

ENCODING = "gzip"
"""What an answer may be packed in. Others, or several at once, can swell a few bytes without any bound."""

_LINE_END = re.compile(rb"\r\n|\n|\r")


class BadAnswer(Exception):
    """An answer that is none, whatever its status says: it drips, swells, or does not end."""


class Unconnected(BadAnswer):
    """There was no time left to connect, so that nothing was sent."""


class Body(Protocol):
    """What an HTTP response gives."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Its headers, by names in any case."""

    def iter_bytes(self) -> Iterator[bytes]:
        """Its body, unpacked."""


def read_body(response: Body, deadline: float) -> bytes:
    """The whole body. Raises BadAnswer, also when it drips past the deadline (time.monotonic)."""
    check_encoding(response)
    chunks: list[bytes] = []
    size = 0
    for chunk in response.iter_bytes():
        chunks.append(chunk)
        size += len(chunk)
        if size > LONGEST_ANSWER:
            raise BadAnswer("the answer does not end")
        if time.monotonic() > deadline:
            raise BadAnswer("the answer came too slowly")
    return b"".join(chunks)


def check_encoding(response: Body) -> None:
    """Raises BadAnswer for an answer that is packed in a way that was not asked for."""
    if response.headers.get("content-encoding", "identity").strip().lower() not in (ENCODING, "identity", ""):
        raise BadAnswer("the answer is encoded in a way that was not asked for")


def read_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """The lines of an event stream, as its standard ends them. Raises Unreachable for one that does not end."""
    line = bytearray()
    returned = False  # the chunk before ended with a carriage return, whose line feed may come now
    first = True
    for chunk in chunks:
        data = chunk[1:] if returned and chunk.startswith(b"\n") else chunk
        returned = (returned and not chunk) or data.endswith(b"\r")
        *whole, rest = _LINE_END.split(data)
        for part in whole:
            line += part
            text = line.decode("utf-8", "replace")
            yield text.removeprefix("\ufeff") if first else text
            first = False
            line.clear()
        line += rest
        if len(line) > LONGEST_LINE:
            raise Unreachable("the stream sends a line that does not end")
