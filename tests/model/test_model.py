"""Random calls against the service and a model of it in plain dicts: equal after every one of them.

Every call of docs/protocol.md, sections 4 to 8, is taken and is refused with every code that its state can lead to. Not asked for
here are the refusals that any call has (keys, media types, sizes of bodies, rates, an absent database).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from interlock_core import steps, waits
from model.records import SETTLED
from model.runs_model import BIG, MOST_SIGNALS, MOST_STEPS
from model.walk_tasks import TaskCalls
from support.clock import Clock
from support.play import Play

pytestmark = pytest.mark.in_process

Goals = dict[str, tuple[str, ...]]
Met = Counter[tuple[str, str]]

STALE = ("STALE_ATTEMPT", "EPOCH_CHANGED")
ANSWERS: Goals = {
    "submit": (
        "taken", "again", "INVALID_REQUEST", "INVALID_TYPE", "PAYLOAD_TOO_LARGE", "TASK_TYPE_NOT_FOUND", "NO_ELIGIBLE_WORKER",
        "IDEMPOTENCY_CONFLICT",
    ),
    "batch": ("taken", "INVALID_REQUEST", "INVALID_TYPE", "PAYLOAD_TOO_LARGE", "IDEMPOTENCY_CONFLICT"),
    "get": ("taken", "NOT_FOUND"),
    "list": ("taken", "INVALID_CURSOR"),
    "list journal": ("taken", "NOT_FOUND", "INVALID_CURSOR"),
    "list steps": ("taken", "NOT_FOUND", "INVALID_CURSOR"),
    "list children": ("taken", "NOT_FOUND", "INVALID_CURSOR"),
    "signal": (
        "taken", "again", "IDEMPOTENCY_CONFLICT", "TASK_FINISHED", "LIMIT_EXCEEDED", "NOT_FOUND", "PAYLOAD_TOO_LARGE",
    ),
    "cancel": ("taken", "again", "TASK_FINISHED", "OUTCOME_UNKNOWN", "NOT_FOUND"),
    "rerun": (
        "taken", "again", "TASK_NOT_FINISHED", "OUTCOME_UNKNOWN", "INVALID_REQUEST", "IDEMPOTENCY_CONFLICT", "NOT_FOUND",
    ),
    "claim": ("taken", "nothing", "INVALID_REQUEST"),
    "repeat": ("taken", "nothing"),
    "give-back": ("taken", "again", "nothing"),
    "reports": ("of two", "of one"),
    "heartbeat": ("taken", *STALE),
    **dict.fromkeys(("succeeded", "failed", "retryable", "unknown", "cancelled"), ("taken", "again", *STALE)),
    "suspended": ("taken", "again", *STALE, "INVALID_REQUEST", "LIMIT_EXCEEDED"),
    "release": ("taken", "again", *STALE),
    "step": ("taken", "again", *STALE, "INVALID_REQUEST", "LIMIT_EXCEEDED", "PAYLOAD_TOO_LARGE"),
    "child": ("taken", "again", *STALE, "INVALID_REQUEST", "LIMIT_EXCEEDED", "PAYLOAD_TOO_LARGE"),
    "read": ("taken", *STALE, "INVALID_REQUEST", "INVALID_CURSOR"),
    "resolve": ("taken", "again", "TASK_NOT_UNKNOWN", "INVALID_REQUEST", "NOT_FOUND", "PAYLOAD_TOO_LARGE"),
    "register": ("taken", "WORKER_ID_CONFLICT", "INVALID_REQUEST"),
    "end instance": ("taken", "again", "NOT_FOUND"),
}  # fmt: skip
ENDS: Goals = {
    "succeeded → succeeded": ("taken",),
    "failed → failed": ("BAD",),
    "retryable → queued": ("taken",),
    "retryable → failed": ("RETRY_NOT_SAFE", "ATTEMPTS_EXHAUSTED"),
    "retryable → cancelled": ("taken",),
    "retryable → outcome-unknown": ("BAD",),
    "unknown → outcome-unknown": ("BAD",),
    "cancelled → cancelled": ("taken",),
    "cancelled → failed": ("CANCELLED_BY_HANDLER", "ATTEMPT_TIMEOUT", "ATTEMPTS_EXHAUSTED"),
    "cancelled → queued": ("taken",),
    "cancelled → outcome-unknown": ("RELEASED_UNSAFE",),
    "suspended → queued": ("taken",),
    "suspended → cancelled": ("taken",),
    "suspended → failed": ("ATTEMPTS_EXHAUSTED",),
    "suspended → outcome-unknown": ("RELEASED_UNSAFE",),
    "release → queued": ("taken",),
    "release → cancelled": ("taken",),
    "release → failed": ("ATTEMPT_TIMEOUT", "ATTEMPTS_EXHAUSTED"),
    "release → outcome-unknown": ("RELEASED_UNSAFE",),
    "cancel of queued": ("taken",),
    "cancel of running": ("taken", "again"),
    "cancel of waiting": ("taken",),
    "resolve as succeeded": ("taken", "again"),
    "resolve as failed": ("taken", "again"),
    "resolve as requeue": ("taken", "again"),
    "resolve as reconcile": ("taken", "again"),
    "resolve a step as succeeded": ("taken", "again"),
    "resolve a step as failed": ("taken", "again"),
    "resolve a step as requeue": ("taken", "again"),
    "rerun from a step": ("keeps", "nothing kept", "not asked"),
    "wait limit": ("failed", "outcome-unknown"),
    "expiry → queued": ("taken",),
    "expiry → failed": ("ATTEMPTS_EXHAUSTED",),
    "expiry → cancelled": ("taken",),
    "expiry → outcome-unknown": ("LEASE_EXPIRED", "ATTEMPT_TIMEOUT"),
    "recovery": ("taken", "renewed", "told"),
    "start deadline": ("taken",),
    "wait": (
        "signal", "signal at once", "children", "children at once", "time", "time at once", "known at once", "time before a signal",
        "time before the children",
    ),
    "cancel of a child": ("queued", "running", "waiting"),
}  # fmt: skip


@pytest.fixture
def truth(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """What the service stored."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small enough for a walk to meet."""
    monkeypatch.setattr(steps, "MOST_STEPS", MOST_STEPS)
    monkeypatch.setattr(steps, "MOST_BYTES", BIG * 3 // 2)
    monkeypatch.setattr(waits, "MOST_SIGNALS", MOST_SIGNALS)


EMPTIED = "tasks, journal, steps, signals, claims, instances, handlers, worker_ids, task_types, idempotency, concurrency_keys"


async def walk(
    play: Play, clock: Clock, truth: psycopg.Connection[Any], seed: int, least: int, most: int, goals: Goals, before: Met
) -> Met:
    """A walk of this seed: at least and at most so many calls; in between it ends once, with those before it, it met its goals.

    Returns what all of them have met.
    """
    print(f"seed {seed}")  # noqa: T201 - shown where the walk fails
    walk = TaskCalls(play, clock, truth, seed, goals)
    walk.before = before
    n = 0
    while n < least or (n < most and walk.missing()):
        try:
            await walk.step()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, call {n}, {walk.last}: {error}") from error
        n += 1
    for task in list(walk.model.tasks.values())[-5:]:
        kinds = await play.kinds(task.id) if len(task.journal) <= 200 else task.journal
        assert kinds == task.journal
        assert sum(kind in SETTLED for kind in kinds) == (task.status in SETTLED)
    truth.execute(f"TRUNCATE {EMPTIED}")
    return before + walk.seen + walk.model.met


def missing(met: Met, goals: Goals) -> list[tuple[str, str]]:
    return [(name, answer) for name, answers in goals.items() for answer in answers if not met[name, answer]]


async def test_a_short_walk_makes_every_call(play: Play, clock: Clock, truth: psycopg.Connection[Any]) -> None:
    goals = {name: answers[:1] for name, answers in ANSWERS.items()}
    assert missing(await walk(play, clock, truth, 34, 150, 500, goals, Counter()), goals) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_long_walks_meet_every_answer(play: Play, clock: Clock, truth: psycopg.Connection[Any]) -> None:
    goals = ANSWERS | ENDS
    met: Met = Counter()
    for seed in (10, 11, 12):
        met = await walk(play, clock, truth, seed, 1500, 6000, goals, met)
    print(dict(sorted(met.items())))  # noqa: T201 - how often each answer was met
    assert missing(met, goals) == []
