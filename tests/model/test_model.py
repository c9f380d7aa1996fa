"""Random calls against the service and a model of it in plain dicts: equal after every one of them.

Every call of docs/protocol.md, sections 4 to 8, and every operator's call that bears on tasks is taken and is refused, with every
code that its state can lead to. Not asked for here are the refusals that any call has (keys, media types, sizes of bodies, an absent
database), but for calls that are refused in no other way.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from interlock_core import steps, waits
from interlock_core.operations import OPERATIONS
from model.records import SETTLED
from model.runs_model import BIG, MOST_SIGNALS, MOST_STEPS
from model.walk_schedules import ScheduleCalls
from support.clock import Clock
from support.play import Play

pytestmark = pytest.mark.in_process

Goals = dict[str, tuple[str, ...]]
Met = Counter[tuple[str, str]]
Routes = set[tuple[str, str, str]]

ELSEWHERE = (
    "/v1/keys",
    "/v1/projects",
    "/v1/audit",
    "/v1/metrics",
    "/v1/stream-tickets",
    "/healthz",
    "/readyz",
    "/openapi",
    "/tasks.md",
)
"""Where calls of other sections are: keys, projects, streams, and pages that nothing refuses."""

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
    "remove worker": ("taken", "again", "SCOPE_DENIED"),
    "end instance": ("taken", "again", "NOT_FOUND"),
    "drain": ("taken", "again", "NOT_FOUND"),
    "submit that requires": (
        "taken", "TASK_TYPE_NOT_FOUND", "NO_ELIGIBLE_WORKER", "NO_ELIGIBLE_INFERENCE_WORKER",
    ),
    "submit at a rate": ("taken", "RATE_LIMITED", "LIMIT_EXCEEDED"),
    "list workers": ("taken", "INVALID_CURSOR"),
    "get worker": ("taken", "NOT_FOUND"),
    "list types": ("taken", "INVALID_CURSOR"),
    "get type": ("taken", "TASK_TYPE_NOT_FOUND"),
    "doctor": ("taken", "SCOPE_DENIED"),
    "config": ("taken", "UNAUTHENTICATED"),
    **dict.fromkeys(("pause type", "pause project", "resume type", "resume project"), ("taken", "again", "INVALID_REQUEST")),
    "set limit": ("taken", "again", "INVALID_REQUEST"),
    "drop limit": ("taken", "INVALID_REQUEST"),
    "list limits": ("taken", "SCOPE_DENIED"),
    "set rate": ("taken", "INVALID_REQUEST"),
    "bulk": ("taken", "again", "INVALID_REQUEST", "IDEMPOTENCY_CONFLICT"),
    "put schedule": ("taken", "again", "INVALID_REQUEST", "INVALID_TYPE"),
    "get schedule": ("taken", "NOT_FOUND"),
    "list schedules": ("taken", "INVALID_CURSOR"),
    "remove schedule": ("taken", "again", "SCOPE_DENIED"),
    "pause schedule": ("taken", "again", "NOT_FOUND"),
    "resume schedule": ("taken", "again", "NOT_FOUND"),
    "trigger": ("taken", "again", "NOT_FOUND", "IDEMPOTENCY_CONFLICT"),
    "tick": ("taken", "nothing"),
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
    "release → failed": ("ATTEMPTS_EXHAUSTED",),
    "release → outcome-unknown": ("RELEASED_UNSAFE",),
    "cancel of queued": ("taken",),
    "cancel of running": ("taken", "again"),
    "cancel of waiting": ("taken",),
    "cancel → outcome-unknown": ("RELEASED_UNSAFE",),
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
    ),
    "cancel of a child": ("queued", "running", "waiting"),
    "bulk cancel": ("taken", "some refused it"),
    "bulk rerun": ("taken",),
    "put schedule as": ("new", "changed", "again"),
    "trigger that": ("starts", "waits"),
    "catch up": ("none, away", "last, away", "all, away", "late", "in time"),
    "firing": (
        "refused", "allow: fired", "allow: fired behind others", "skip: fired", "skip: skipped", "cancel-previous: fired",
        "cancel-previous: fired behind others", "cancel-previous: skipped",
    ),
    "cancel of the previous": ("queued", "running", "waiting"),
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


EMPTIED = (
    "tasks, journal, steps, signals, claims, instances, handlers, worker_ids, task_types, idempotency, concurrency_keys, schedules,"
    " firings, pauses, answers, roll_ups, allowances"
)


async def walk(
    play: Play,
    clock: Clock,
    truth: psycopg.Connection[Any],
    seed: int,
    least: int,
    most: int,
    goals: Goals,
    before: Met,
    *,
    every_route: bool = False,
) -> tuple[Met, Routes]:
    """A walk of this seed: at least and at most so many calls; in between it ends once, with those before it, it met its goals.

    Returns what all of them have met, and what this one has called.
    """
    print(f"seed {seed}")  # noqa: T201 - shown where the walk fails
    walk = ScheduleCalls(play, clock, truth, seed, goals)
    walk.before = before
    n = 0
    while n < least or (n < most and (walk.missing() or (every_route and uncalled(walk.routes)))):
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
    truth.execute("UPDATE projects SET paused_at = NULL, resumed_at = NULL")
    return before + walk.seen + walk.model.met, walk.routes


def missing(met: Met, goals: Goals) -> list[tuple[str, str]]:
    return [(name, answer) for name, answers in goals.items() for answer in answers if not met[name, answer]]


def uncalled(routes: Routes) -> list[tuple[str, str, str]]:
    """What no call of the walk was, or was not answered so."""
    wanted = [key for key in OPERATIONS if not key[1].startswith(ELSEWHERE)]
    assert len(wanted) > 40
    shapes = {path: re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path))) for _, path in wanted}
    # the more literal path first: a task's name is none of its neighbours'
    order = sorted(shapes, key=lambda path: path.count("{"))
    found = {(method, next(p for p in order if shapes[p].fullmatch(path)), answer) for method, path, answer in routes}
    return sorted((*key, answer) for key in wanted for answer in ("taken", "refused") if (*key, answer) not in found)


async def test_a_short_walk_makes_every_call(play: Play, clock: Clock, truth: psycopg.Connection[Any]) -> None:
    """Each is taken, and each is refused."""
    refusals = {name: [answer for answer in answers if answer.isupper()] for name, answers in ANSWERS.items()}
    goals = {name: (answers[0], *refusals[name][:1]) for name, answers in ANSWERS.items()}
    met, routes = await walk(play, clock, truth, 2, 300, 900, goals, Counter(), every_route=True)
    assert (missing(met, goals), uncalled(routes)) == ([], [])


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_long_walks_meet_every_answer(play: Play, clock: Clock, truth: psycopg.Connection[Any]) -> None:
    goals = ANSWERS | ENDS
    met: Met = Counter()
    for seed in range(10, 18):  # three at least; some answers are rare
        if seed > 12 and not missing(met, goals):
            break
        met, _ = await walk(play, clock, truth, seed, 1500, 2500, goals, met)
    print(dict(sorted(met.items())))  # noqa: T201 - how often each answer was met
    assert missing(met, goals) == []
