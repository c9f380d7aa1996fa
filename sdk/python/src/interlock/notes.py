"""Progress and log lines of one attempt, waiting for the next heartbeat: bounded, and never a reason to fail."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from interlock.errors import NotJson
from interlock.json_text import clean_text, encode
from interlock.tasks import write_time

LINE_BYTES = 16 * 1024
LINES = 10_000
LOG_BYTES = 4 * 1024 * 1024
HEARTBEAT_BYTES = 512 * 1024
"""How much log one attempt puts into one heartbeat, so that a chatty one does not crowd the others out."""


class Notes:
    """What a handler told. `take` gives what is to be sent; `settle` forgets what was accepted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: deque[tuple[int, bytes]] = deque()
        self._seq = 0
        self._bytes = 0
        self._full = False
        self._progress: bytes | None = None
        self._progress_version = 0
        self.sent_at = float("-inf")  # when notes were last put into a heartbeat (interlock.clock)

    def set_progress(self, percent: float | None, message: str | None) -> None:
        """Remember the latest progress; an earlier one that was not sent yet is replaced."""
        fields: dict[str, Any] = {}
        if percent is not None and not math.isnan(percent):
            fields["percent"] = min(100, max(0, percent))
        if message is not None:
            fields["message"] = clean_text(str(message), LINE_BYTES)
        with self._lock:
            self._progress = encode(fields)
            self._progress_version += 1

    def add_line(self, level: str, message: str, fields: Mapping[str, Any] | None) -> None:
        """Add a log line; behind the limit one last line says so, and the rest is dropped."""
        line: dict[str, Any] = {
            "level": level,
            "message": clean_text(message, LINE_BYTES),
            "at": write_time(datetime.now(timezone.utc)),
        }
        if fields:
            line["fields"] = storable(fields)
        with self._lock:
            if self._full:
                return
            size = len(line["message"]) + 100
            if self._seq >= LINES - 1 or self._bytes + size > LOG_BYTES:
                self._full = True
                line = {"level": "warning", "message": "log truncated: the attempt's limit is reached", "at": line["at"]}
            self._seq += 1
            encoded = encode({"seq": self._seq, **line})
            self._bytes += len(encoded)
            self._lines.append((self._seq, encoded))

    def take(self) -> tuple[bytes, tuple[int, int]] | None:
        """The fields for a heartbeat (`,"progress":…,"logs":[…]`) and the mark to settle them by; None: nothing new."""
        with self._lock:
            parts: list[bytes] = []
            mark = 0
            if self._progress is not None:
                parts.append(b',"progress":' + self._progress)
            if self._lines:
                lines: list[bytes] = []
                size = 0
                for seq, encoded in self._lines:
                    if lines and size + len(encoded) > HEARTBEAT_BYTES:
                        break
                    lines.append(encoded)
                    size += len(encoded)
                    mark = seq
                parts.append(b',"logs":[' + b",".join(lines) + b"]")
            return (b"".join(parts), (mark, self._progress_version)) if parts else None

    def settle(self, mark: tuple[int, int]) -> None:
        """Forget what the service has."""
        seq, version = mark
        with self._lock:
            while self._lines and self._lines[0][0] <= seq:
                self._lines.popleft()
            if self._progress_version == version:
                self._progress = None

    @property
    def waiting(self) -> bool:
        """Whether something is to be sent."""
        return bool(self._lines) or self._progress is not None


def storable(fields: Mapping[str, Any]) -> Any:
    """The fields as JSON can carry them, within a line's limit."""
    try:
        if len(encode(dict(fields))) <= LINE_BYTES:
            return dict(fields)
    except NotJson:
        pass
    return {clean_text(str(name), 255): clean_text(str(value), 1024) for name, value in list(fields.items())[:50]}
