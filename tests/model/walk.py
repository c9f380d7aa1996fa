"""A random walk: every call is made against the service and its model, and both must say and store the same."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar

import httpx
import psycopg

from model.controls_model import Controls
from model.records import SETTLED, Attempt, Refused, Step, Task, Wait
from model.runs_model import MOST_STEPS
from support.clock import Clock
from support.play import Json, Play

Held = tuple[Task, Attempt, int, Json]  # its token is the attempt's n-th
Body = dict[str, Any] | None
NOWHERE = "00000000-0000-7000-8000-000000000000"
STATE = """SELECT t.id::text, t.status, t.attempts, t.fence, t.cancel_requested, t.max_attempts,
    t.failure::json ->> 'code', t.failure::json -> 'details' ->> 'step', t.parent_id::text, t.rerun_of::text, t.effect_scope::text,
    t.wait::json ->> 'name', extract(epoch FROM t.wake_at - %(zero)s)::double precision,
    CASE WHEN t.status = 'queued' THEN extract(epoch FROM t.due_at - %(zero)s)::double precision END,
    extract(epoch FROM t.finished_at - %(zero)s)::double precision,
    CASE WHEN t.status IN ('queued', 'running', 'waiting') THEN t.releases END,
    CASE WHEN t.finished_at IS NULL THEN t.reconcile::json ->> 'attemptId' END,
    CASE WHEN t.finished_at IS NULL THEN t.reconcile::json ->> 'reason' END,
    t.schedule_owner, t.schedule_name, t.status = 'queued' AND t.hold IS NOT DISTINCT FROM 'previous', t.journal_seq FROM tasks t"""
NO_WORKER = ("NO_ELIGIBLE_WORKER", "NO_ELIGIBLE_INFERENCE_WORKER")
HOUR = timedelta(hours=1)


class Walk:
    """The calls of one walk; what they are is told by the classes that derive from it."""

    CALLS: ClassVar[dict[str, float]] = {}
    """Method (without its underscore) → how often."""
    ASKED: ClassVar[dict[str, str]] = {}
    """What is counted → the method that asks for it, where that is of another name."""

    def __init__(
        self, play: Play, clock: Clock, truth: psycopg.Connection[Any], seed: int, goals: Mapping[str, tuple[str, ...]]
    ) -> None:
        self.play, self.clock, self.truth, self.goals = play, clock, truth, goals
        self.chance = random.Random(seed)
        held = clock.hold()
        into_the_hour = (held - held.min.replace(tzinfo=held.tzinfo)) % HOUR
        self.zero: datetime = clock.advance((HOUR - into_the_hour).total_seconds())  # cron counts from there
        self.model = Controls()
        self.held: list[Held] = []  # every answer with an attempt that was ever given
        self.seen: Counter[tuple[str, str]] = Counter()
        self.before: Counter[tuple[str, str]] = Counter()  # what walks before this one have met
        self.calls = {name: weight for kind in type(self).__mro__ for name, weight in vars(kind).get("CALLS", {}).items()}
        self.asked = {name: call for kind in type(self).__mro__ for name, call in vars(kind).get("ASKED", {}).items()}
        self.claims: list[tuple[int, Json]] = []  # when, and what was asked
        self.given_back: dict[str, dict[str, str]] = {}  # by claim: what its releases answered
        self.said: dict[str, tuple[Json, Wait | None]] = {}  # by attempt: the outcome that ended it, as it was sent
        self.keys: list[tuple[int, str, Json]] = []  # when an idempotency key was first used, and for what
        self.last = "start"
        self.routes: set[tuple[str, str, str]] = set()  # every method and path that was taken, or refused
        self.signals = itertools.count(1)
        self._compared: dict[str, int] = {}  # task → how far its journal was compared

    async def step(self) -> None:
        """One call at least, and the comparison that follows."""
        before = self.seen.total()
        while self.seen.total() == before:
            self.last = self._pick()
            await getattr(self, f"_{self.last}")()
        self.compare()

    def _pick(self) -> str:
        names = [name.partition(" →")[0] for name, _ in self.missing()]
        never = sorted({self.asked.get(name, name.replace(" ", "_").replace("-", "_")) for name in names} & set(self.calls))
        if never and self.odds(0.15):
            return self.chance.choice(never)
        idle = not any(task.status == "running" for task in self.model.tasks.values())
        if idle and self.odds(0.5):
            return "claim"
        found: str = self.chance.choices(list(self.calls), list(self.calls.values()))[0]
        return found

    # chance

    def odds(self, of_one: float) -> bool:
        """True that often."""
        return self.chance.random() < of_one

    def rare(self, of_one: float, name: str, *answers: str) -> bool:
        """True that often, and more often while this call has not had one of these answers."""
        never = any(answer in self.goals.get(name, ()) and not self.seen[name, answer] for answer in answers)
        return self.odds(min(0.4, 6 * of_one) if never else of_one)

    def missing(self) -> list[tuple[str, str]]:
        """What the walk is to meet and has not met."""
        met = (self.before, self.seen, self.model.met)
        wanted = ((name, answer) for name, answers in self.goals.items() for answer in answers)
        return [goal for goal in wanted if not any(counted[goal] for counted in met)]

    def some(self, *status: str) -> Held | None:
        """An attempt, most often the latest of a task in one of these states."""
        likely = [h for h in self.held if h[0].attempt is h[1] and h[0].status in status and not h[1].ended]
        if likely and self.odds(0.88):
            return self.chance.choice(likely[-4:] if self.odds(0.6) else likely)
        return self.chance.choice(self.held[-40:]) if self.held and (likely or self.odds(0.2)) else None

    def some_full(self, name: str) -> Held | None:
        """The attempt of a task that keeps no more steps, while this call has not been refused for that."""
        if not any(goal == (name, "LIMIT_EXCEEDED") for goal in self.missing()):
            return None
        running = [h for h in self.held if h[0].attempt is h[1] and h[0].status == "running" and not h[1].ended]
        full = [held for held in running if len(held[0].steps) >= MOST_STEPS]
        return self.chance.choice(full) if full and self.odds(0.5) else None

    def some_task(self, *status: str) -> Task | None:
        """A task, most often one in one of these states."""
        likely = [t for t in self.model.tasks.values() if t.status in status]
        if likely and self.odds(0.8):
            return self.chance.choice(likely[-3:] if self.odds(0.4) else likely[-30:])
        return self.chance.choice(list(self.model.tasks.values())) if self.model.tasks else None

    def instant(self, seconds: int) -> str:
        """An instant of the walk's clock, as it is sent."""
        return (self.zero + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")

    # calls

    async def call(self, client: httpx.AsyncClient, method: str, path: str, body: Body = None, **more: Any) -> tuple[int, Json]:
        """Status and body of a call; nothing ever ends in a 5xx but what the protocol names."""
        answer = await client.request(method, path, json=body, **more)
        found: Json = answer.json()
        assert answer.status_code < 500 or found["code"] in NO_WORKER, found
        self._note_route(method, path.partition("?")[0], answer.status_code, found)
        if answer.status_code >= 400:
            assert found["next"], found
        return answer.status_code, found

    def _note_route(self, method: str, path: str, status: int, found: Json) -> None:
        """A call was taken or refused; a batch of reports is what its items are."""
        parts = found.get("completions", found.get("attempts", ())) if path.startswith("/v1/attempts/") else ()
        said = {"refused" if "error" in part else "taken" for part in parts} or {"refused" if status >= 400 else "taken"}
        self.routes |= {(method, path, answer) for answer in said}

    def judge(self, name: str, judge: Callable[[], Any], told: Any, error: Json | None, *, again: bool = False) -> bool:
        """The service told the same as the model, or refused with the same code; whether it was taken."""
        try:
            wanted, code = judge(), None
        except Refused as refused:
            wanted, code = None, str(refused)
        says = error["code"] if error else None
        assert says == code, f"{name}: the service says {error or told}, the model {code or wanted}"
        assert error or told == wanted, f"{name}: the service says {told}, the model {wanted}"
        self.count(name, code or ("again" if again else "taken"))
        return code is None

    def refused(self, name: str, answer: tuple[int, Json], code: str) -> None:
        """A call that is refused whatever the state."""
        assert answer[1].get("code") == code, f"{name}: {answer}, not {code}"
        self.count(name, code)

    def count(self, name: str, answer: str) -> None:
        """One more of this call with this answer."""
        self.seen[name, answer] += 1

    # comparison

    def compare(self) -> None:
        """Everything that is stored of every task, and the events and steps of those that changed."""
        rows = self.truth.execute(STATE, {"zero": self.zero}).fetchall()
        stored = {row[0]: row[1:] for row in rows}
        wanted = {task.id: self._state(task) for task in self.model.tasks.values()}
        assert stored == wanted, {
            key: (stored.get(key), wanted.get(key)) for key in stored | wanted if stored.get(key) != wanted.get(key)
        }
        changed = [key for key, row in stored.items() if row[-1] != self._compared.get(key, 0)]
        self._compare_events(changed)
        self._compare_steps(changed)
        self._compared |= {key: stored[key][-1] for key in changed}

    def _state(self, task: Task) -> tuple[Any, ...]:
        wait, asked = task.wait, task.reconcile if task.status not in SETTLED else None
        return (
            task.status,
            task.attempts,
            task.fence,
            task.cancel_requested,
            task.max_attempts,
            task.code,
            task.step,
            task.parent,
            task.rerun_of,
            task.effects,
            wait.name if wait else None,
            wait.wake if wait else None,
            task.due if task.status == "queued" else None,
            task.finished,
            task.releases if task.status in ("queued", "running", "waiting") else None,
            asked[0] if asked else None,
            asked[1] if asked else None,
            (task.schedule[0] or None) if task.schedule else None,
            task.schedule[1] if task.schedule else None,
            task.status == "queued" and self.model.is_held(task),
            len(task.journal),
        )

    def _compare_events(self, changed: list[str]) -> None:
        found: dict[str, list[tuple[int, str]]] = {}
        query = "SELECT task_id::text, seq, kind FROM journal WHERE task_id = ANY(%s::uuid[]) ORDER BY task_id, seq"
        for task_id, seq, kind in self.truth.execute(query, (changed,)):
            found.setdefault(task_id, []).append((seq, kind))
        for task_id in changed:
            kinds = list(enumerate(self.model.tasks[task_id].journal, 1))
            assert found[task_id] == kinds, f"journal of {task_id}: stored {found[task_id]}, the model {kinds}"

    def _compare_steps(self, changed: list[str]) -> None:
        found: dict[str, dict[str, tuple[Any, ...]]] = {task_id: {} for task_id in changed}
        query = (
            "SELECT task_id::text, name, kind, seq, status, final, effect_safety, reconciles, tries, outcome_seq, child_id::text,"
            " detached, output FROM steps WHERE task_id = ANY(%s::uuid[])"
        )
        for task_id, name, *fields, output in self.truth.execute(query, (changed,)):
            found[task_id][name] = (*fields, None if output is None else _shown(json.loads(output)))
        for task_id in changed:
            wanted = {name: _step(step) for name, step in self.model.tasks[task_id].steps.items()}
            assert found[task_id] == wanted, f"steps of {task_id}: stored {found[task_id]}, the model {wanted}"


def _step(step: Step) -> tuple[Any, ...]:
    return (
        step.kind,
        step.seq,
        step.status,
        step.final,
        step.safety,
        step.reconciles,
        step.tries,
        step.ended,
        step.child,
        step.detached,
        step.output,
    )


def _shown(output: Any) -> Any:
    """An output as the model keeps it: of a wait for children, who they are and how they ended."""
    if isinstance(output, dict) and "children" in output:
        return {"children": [(end["name"], end["taskId"], end["status"]) for end in output["children"]]}
    return output
