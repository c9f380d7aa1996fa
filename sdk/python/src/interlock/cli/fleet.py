"""`interlock tasks workers | types`: who works, and on what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from interlock.cli.health import seconds_of
from interlock.cli.lists import All, Limit, show_list
from interlock.cli.session import READERS, Session
from interlock.cli.show import moment, type_of

View = Mapping[str, Any]


def workers(session: Session, limit: Limit = 50, all: All = False) -> None:
    """List the workers: their state, their slots, what they serve."""
    head = ("WORKER", "STATE", "POOL", "USED", "PROCESSES", "LAST SEEN", "SERVES")
    show_list(session.out, session.client(*READERS), "/v1/workers", None if all else limit, head, worker_row)


def worker_row(worker: View) -> list[str]:
    """The cells of a worker."""
    serves = ", ".join(f"{type_of(handler)} ({handler.get('effectSafety')})" for handler in worker.get("handlers") or ())
    return [
        str(worker.get("workerId")), str(worker.get("state")), str(worker.get("pool") or ""),
        f"{worker.get('used', 0)}/{worker.get('slots', 0)}", str(worker.get("instanceCount", len(worker.get("instances") or ()))),
        moment(worker.get("lastSeen")), serves,
    ]  # fmt: skip


def types(session: Session, limit: Limit = 50, all: All = False) -> None:
    """List the task types: their queues, who serves them, their outcomes of the last hour and day."""
    head = (
        "TYPE",
        "QUEUED",
        "RUNNING",
        "WAITING",
        "UNKNOWN",
        "OLDEST DUE",
        "FREE SLOTS",
        "HOUR ok/failed",
        "DAY ok/failed",
        "WORKERS",
    )
    show_list(session.out, session.client(*READERS), "/v1/task-types", None if all else limit, head, type_row)


def type_row(view: View) -> list[str]:
    """The cells of a task type."""
    outcomes = view.get("outcomes") or {}
    online = view.get("online") or {}
    age = view.get("oldestDueAgeSeconds")
    serving = ", ".join(str(handler.get("workerId")) for handler in view.get("handlers") or ())
    return [
        type_of(view), *(str(view.get(name, 0)) for name in ("queued", "running", "waiting", "outcomeUnknown")),
        "" if not age else seconds_of(age), f"{online.get('free', 0)}/{online.get('slots', 0)}", outcome_text(outcomes.get("hour")),
        outcome_text(outcomes.get("day")), serving or "nobody",
    ]  # fmt: skip


def outcome_text(counts: Any) -> str:
    """Succeeded and failed."""
    return f"{counts.get('succeeded', 0)}/{counts.get('failed', 0)}" if isinstance(counts, Mapping) else ""
