"""What operators do to many tasks at once, and how fast a key may submit, in the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from model.records import SETTLED, Refused, Task
from model.service_model import Model


@dataclass
class Rate:
    """An allowance of submits: `burst` at most, `per_second` more with every second."""

    per_second: float
    burst: int
    left: float
    at: int

    def take(self, submits: int, now: int) -> None:
        """Raises Refused where so many are too many, for now or ever."""
        if submits > self.burst:
            raise Refused("LIMIT_EXCEEDED")
        self.left, self.at = min(self.burst, self.left + (now - self.at) * self.per_second), now
        if self.left < submits:
            raise Refused("RATE_LIMITED")
        self.left -= submits


class Controls(Model):
    """The whole model."""

    def __init__(self) -> None:
        super().__init__()
        self.bulks: dict[str, tuple[int, Any, tuple[int, int, int]]] = {}  # by key: when, what was asked, what was answered

    def bulk(self, action: str, tasks: list[Task], *, dry: bool) -> tuple[int, int, int]:
        """(matched, changed, skipped); the new tasks of a rerun are the caller's."""
        if action == "rerun":
            changes = [task for task in tasks if task.status in SETTLED]
        else:
            changes = [
                t for t in tasks if t.status in ("queued", "waiting") or (t.status == "running" and not t.cancel_requested)
            ]
        if dry:
            return len(tasks), 0, 0
        for task in changes if action == "cancel" else ():
            self.ask_to_cancel(task)
        return len(tasks), len(changes), len(tasks) - len(changes)

    def reruns_of(self, source: Task) -> list[str]:
        """The tasks that are reruns of this one."""
        return [task.id for task in self.tasks.values() if task.rerun_of == source.id]
