"""GET /v1/metrics: Prometheus text, derived from the database, so that it is the same whoever answers (protocol.md §10)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from . import overview
from .db import Database, statements
from .settings import Settings

sql = statements("overview")

CONTENT_TYPE = "text/plain; version=0.0.4"
MAX_TYPES = 1000  # a scrape stays bounded, however many types a project has
Sample = tuple[dict[str, Any], float | None]
Family = tuple[str, str, list[Sample]]  # name, what it is, its samples by labels; a sample that is None is left out


async def metrics(database: Database, settings: Settings, project: str) -> str:
    """The figures of one project, as gauges: they are counted anew at each scrape."""
    names = (await overview.type_names(database, project, None, MAX_TYPES))[:MAX_TYPES]
    types = await overview.task_types(database, settings, project, names)
    vitals, outbox = await database.run(
        sql.vitals(project=project, offline_seconds=settings.offline_seconds, keep_seconds=settings.retention_seconds),
        sql.outbox(project=project, offline_seconds=settings.offline_seconds),
    )
    row, owed = vitals[0], outbox[0]
    return write(_families(types, row, owed))


def write(families: Iterable[Family]) -> str:
    """Prometheus text of these figures: counters where the name says so (`…_total`), else gauges."""
    lines: list[str] = []
    for name, text, samples in families:
        written = [f"{name}{_labels(labels)} {_number(value)}" for labels, value in samples if value is not None]
        if written:
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *written]
    return "\n".join(lines) + "\n"


def _families(types: list[dict[str, Any]], row: Any, owed: Any) -> Iterable[Family]:
    states = (("ready", "ready"), ("not_due", "notDue"), ("blocked", "blocked"), ("running", "running"), ("waiting", "waiting"))
    yield (
        "interlock_tasks",
        "Live tasks by state.",
        [
            ({**_of(t), "state": state}, t[name])
            for t in types
            for state, name in (*states, ("outcome_unknown", "outcomeUnknown"))
        ],
    )
    yield "interlock_oldest_due_age_seconds", "Age of the oldest due task.", [(_of(t), t["oldestDueAgeSeconds"]) for t in types]
    yield (
        "interlock_slots",
        "Slots of online workers that are not draining.",
        [({**_of(t), "pool": p["pool"], "use": use}, p[use]) for t in types for p in t["pools"] for use in ("used", "free")],
    )
    yield (
        "interlock_outcomes_last_hour",
        "Tasks settled within the last hour.",
        [({**_of(t), "outcome": outcome}, count) for t in types for outcome, count in t["outcomes"]["hour"].items()],
    )
    yield (
        "interlock_wait_seconds",
        "From due to started, within the last hour.",
        [({**_of(t), "quantile": q}, t["waitSeconds"][p]) for t in types for q, p in (("0.5", "p50"), ("0.95", "p95"))],
    )
    yield (
        "interlock_run_seconds",
        "From the last start to the end, within the last hour.",
        [({**_of(t), "quantile": q}, t["runSeconds"][p]) for t in types for q, p in (("0.5", "p50"), ("0.95", "p95"))],
    )
    yield "interlock_queue_depth", "Due tasks that nobody has started.", [({}, row.queue_depth)]
    yield "interlock_online_workers", "Worker ids with an online process.", [({}, row.online_workers)]
    yield "interlock_expired_leases", "Lapsed leases not settled yet.", [({}, row.expired_leases)]
    yield "interlock_due_with_free_slot", "Tasks due for longer than a poll while a slot for them is free.", [({}, owed.tasks)]
    yield (
        "interlock_retention_backlog",
        "Settled tasks kept for longer than they should be, counted up to 10000.",
        [({}, row.retention_backlog)],
    )
    yield "interlock_sweep_age_seconds", "Since the last finished sweep.", [({}, _age(row.now, row.swept_at))]
    yield "interlock_retention_age_seconds", "Since the last finished retention run.", [({}, _age(row.now, row.retained_at))]
    yield "interlock_oldest_transaction_seconds", "Age of the database's oldest transaction.", [({}, row.transaction_seconds)]


def _of(view: dict[str, Any]) -> dict[str, Any]:
    return {"type": view["type"], "version": view["schemaVersion"]}


def _age(now: Any, then: Any) -> float | None:
    return None if then is None else max(0.0, (now - then).total_seconds())


def _labels(labels: dict[str, Any]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(str(value))}"' for name, value in labels.items()) + "}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.6f}"
