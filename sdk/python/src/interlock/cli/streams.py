"""Standard output and error that never end in a traceback.

A reader that goes away (`| head`) becomes OutputClosed, told apart from every other error; characters that the encoding
of the terminal or of a redirection lacks are written as escapes; a standard error that cannot be written is no fault.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path
from typing import IO, TextIO

GONE = {errno.EPIPE, errno.ESHUTDOWN, errno.EINVAL, errno.EBADF}
"""Windows says EINVAL for a pipe without a reader; EBADF is an output that was closed before we started."""


class OutputClosed(Exception):
    """Nobody reads standard output any more."""


class GuardedStream(io.TextIOWrapper):
    """A standard stream. Not OSError but OutputClosed when its reader is gone, so that no library swallows it."""

    lossy = False

    def write(self, text: str) -> int:
        """Write, as TextIOWrapper. Raises OutputClosed."""
        try:
            return super().write(text)
        except (OSError, ValueError) as error:
            return self._judge(error)

    def flush(self) -> None:
        """Flush, as TextIOWrapper. Raises OutputClosed."""
        try:
            super().flush()
        except (OSError, ValueError) as error:
            self._judge(error)

    def _judge(self, error: OSError | ValueError) -> int:
        if self.lossy:
            return 0
        if isinstance(error, ValueError) or error.errno in GONE:
            raise OutputClosed from None
        raise error


class LossyStream(GuardedStream):
    """Standard error: what cannot be said there cannot be said at all."""

    lossy = True


def guard_streams() -> None:
    """Put guarded streams in the place of standard output and error."""
    sys.stdout = guard(sys.stdout, GuardedStream)
    sys.stderr = guard(sys.stderr, LossyStream)


def guard(stream: TextIO | None, kind: type[GuardedStream]) -> TextIO:
    """The stream, guarded; where there is none (a service without a console), one that leads nowhere."""
    if stream is None:
        return Path(os.devnull).open("w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper) or isinstance(stream, GuardedStream):
        return stream
    encoding, lines, through = stream.encoding, stream.line_buffering, stream.write_through
    return kind(stream.detach(), encoding=encoding, errors="backslashreplace", line_buffering=lines, write_through=through)


def discard_output() -> None:
    """Lead standard output nowhere, so that what is still buffered does no harm when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, sys.__stdout__.fileno() if sys.stdout is None else sys.stdout.fileno())  # type: ignore[union-attr]
    except (OSError, ValueError):
        return
    finally:
        os.close(nowhere)


def speaks_utf8(stream: IO[str]) -> bool:
    """Whether every character can be written to the stream as it is."""
    return (getattr(stream, "encoding", None) or "").lower().replace("-", "").replace("_", "") in ("utf8", "utf8sig")
