"""Why does it wait? Compares a waiting task with the fleet and says what would start it (protocol.md §3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from .db import Step, statements
from .settings import Settings
from .wire.times import when

sql = statements("fleet")


@dataclass(frozen=True)
class Serving:
    """The online instances that serve one type@version in one pool."""

    instances: int
    draining: int
    slots: int
    used: int


@dataclass(frozen=True)
class Fleet:
    """What is known of the fleet for some types."""

    serving: dict[tuple[str, str], Serving]
    nearest: list[Any]
    paused: frozenset[str]  # type@version; "project" for all of it


NOBODY = Fleet({}, [], frozenset())


def state(project: str, types: Iterable[tuple[str, int]], settings: Settings) -> Step:
    """The step that reads the fleet for (type, version) pairs; `read` takes its rows."""
    pairs = sorted(set(types))
    return sql.state(
        project=project,
        names=[f"{task_type}@{version}" for task_type, version in pairs],
        offline_seconds=settings.offline_seconds,
        folded=[t.lower() for t, _ in pairs],
        first_parts=[t.split("/")[0] for t, _ in pairs],
        last_parts=[t.split("/")[-1] for t, _ in pairs],
    )


def read(rows: list[Any]) -> Fleet:
    """The fleet from the rows of `state`."""
    serving = {(r.serves, r.pool): Serving(r.instances, r.draining, r.slots, r.used) for r in rows if r.serves is not None}
    others = [r for r in rows if r.serves is None]
    paused = frozenset(
        "project" if r.schema_version is None else f"{r.type}@{r.schema_version}" for r in others if r.worker_id is None
    )
    return Fleet(serving, [r for r in others if r.worker_id is not None], paused)


def waiting(row: Any, fleet: Fleet) -> dict[str, str] | None:
    """Reason, detail and next step for a queued or waiting task; None for any other."""
    if row.status == "waiting":
        return _suspended(row)
    if row.status != "queued":
        return None
    if row.due_at > row.now:
        if row.attempts > 0:
            return _because(
                "retry-delay",
                f"attempt {row.attempts + 1} of {row.max_attempts} is due at {when(row.due_at)}",
                "It is tried again by itself at that time.",
            )
        return _because("not-due", f"the task is due at {when(row.due_at)}", "It starts by itself at or after that time.")
    name = f"{row.type}@{row.schema_version}"
    if name in fleet.paused:
        return _because("paused", f"{name} is paused", "An operator resumes the type.")
    if "project" in fleet.paused:
        return _because("paused", f"the project {row.project} is paused", "An operator resumes the project.")
    if row.hold == "previous":
        return _because(
            "previous-running",
            f"an earlier task of the schedule {row.schedule_name} has not ended",
            "It starts when that one has ended; an outcome-unknown one has to be resolved.",
        )
    if row.hold == "concurrency":
        return _because(
            "concurrency-limit",
            f"{row.concurrency_limit} tasks at most may hold the concurrency key {row.concurrency_key!r}",
            "It starts when a holder of the key ends; or submit with a higher limit.",
        )
    found = fleet.serving.get((name, row.pool))
    if found is None:
        return _no_worker(row, name, fleet)
    if found.draining == found.instances:
        return _because(
            "workers-draining",
            f"all {found.instances} instances serving {name} in pool {row.pool} are draining",
            "Start another worker.",
        )
    if found.used >= found.slots:
        return _because(
            "workers-full",
            f"{found.used} of {found.slots} slots are used by the workers serving {name}",
            "It starts when a slot is free; or add workers.",
        )
    free = found.slots - found.used
    return _because(
        "no-worker",
        f"it waits for a worker's next claim; {'1 slot is' if free == 1 else f'{free} slots are'} free for {name}",
        "Nothing: a worker claims it within one poll.",
    )


def _suspended(row: Any) -> dict[str, str]:
    wait = msgspec.json.decode(row.wait)
    until = f", until {when(row.wake_at)} at the latest" if row.wake_at is not None else ""
    if wait["signal"] is not None:
        return _because("signal", f"it waits for the signal {wait['signal']!r}{until}", f"Send it the signal {wait['signal']!r}.")
    if wait["children"] is not None:
        names = ", ".join(wait["children"][:5]) + (", …" if len(wait["children"]) > 5 else "")
        return _because("children", f"it waits for its children {names}{until}", "It goes on when all of them are settled.")
    return _because("sleeping", f"it sleeps until {when(row.wake_at)}", "It goes on by itself at that time.")


def _because(reason: str, detail: str, next_step: str) -> dict[str, str]:
    return {"reason": reason, "detail": detail, "next": next_step}


def _no_worker(row: Any, name: str, fleet: Fleet) -> dict[str, str]:
    wanted = f"{name} in pool {row.pool}"
    elsewhere = [pool for (served, pool) in fleet.serving if served == name]
    if elsewhere:
        return _because(
            "no-worker",
            f"no online worker serves {wanted}; {name} is served in pool {', '.join(sorted(elsewhere))}",
            "Start a worker in the task's pool, or submit to the pool that is served.",
        )
    same = [h for h in fleet.nearest if h.type == row.type]
    if any(h.schema_version == row.schema_version and h.pool == row.pool for h in same):
        worker = next(h.worker_id for h in same if h.schema_version == row.schema_version and h.pool == row.pool)
        return _because(
            "no-worker", f"worker {worker} serves {wanted} but no instance of it is online", f"Start worker {worker}."
        )
    near = (same or fleet.nearest)[:3]
    if near:
        told = "; ".join(f"worker {h.worker_id} serves {h.type}@{h.schema_version} in pool {h.pool}" for h in near)
        return _because(
            "no-worker",
            f"no worker serves {wanted}; {told}",
            "Compare type, version and pool, and start a worker or submit what is served.",
        )
    return _because(
        "no-worker", f"no worker ever registered {wanted} in this project", "Start a worker that handles this type and version."
    )
