"""SIGTERM and Ctrl-C ask a worker to drain; where signals cannot be caught, that is said once, and Ctrl-C still drains."""

from __future__ import annotations

import logging
import queue
import signal
from types import FrameType
from typing import Any

from interlock.forking import leave_to_parent

log = logging.getLogger("interlock")


class Signals:
    """Catches the signals while it is open. `heard` counts them."""

    def __init__(self) -> None:
        # A SimpleQueue may be put into by a signal handler that interrupted a get; an Event may not.
        self._heard: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:  # noqa: PYI034 (typing.Self is newer than Python 3.10)
        for number in (signal.SIGTERM, signal.SIGINT, *([signal.SIGBREAK] if hasattr(signal, "SIGBREAK") else [])):
            try:
                self._before[number] = signal.signal(number, self._hear)
            except (ValueError, OSError, NotImplementedError, AttributeError) as error:
                log.warning("signals cannot be caught here (%s): stop the worker with Ctrl-C or drain()", error)
                break
        leave_to_parent(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.forget_parent()

    def forget_parent(self) -> None:
        """Catch no more. In a forked child nobody would heed what is caught: it could not be ended."""
        for number, before in self._before.items():
            signal.signal(number, before if before is not None else signal.SIG_DFL)
        self._before = {}

    def wait(self, seconds: float) -> bool:
        """Wait for a signal; whether one came. Ctrl-C counts also where it could not be caught."""
        try:
            self._heard.get(timeout=seconds)
        except queue.Empty:
            return False
        except KeyboardInterrupt:
            return True
        return True

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        self._heard.put(number)
