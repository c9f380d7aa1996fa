"""Programs and their processes, pauses, limits of keys, and what all of them do to claims, in the model (docs/protocol.md, 8, 11)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from model.records import SETTLED, Refused, Task
from model.runs_model import Runs

OFFLINE, LATE = 45, 5
"""Seconds after which a process that was told nothing else is offline; that may be counted from so much before it last spoke."""
LONGEST_POLL = 60
POLICY = ("leaseSeconds", "timeoutSeconds")
"""What a handler may say for tasks whose submits did not. (The walks always say how to retry: jitter is not theirs to foretell.)"""
EVERYTHING = "*"
"""The project, among what may be paused."""


@dataclass
class Instance:
    """One process."""

    serves: set[str]
    seen: int
    told: float = 0  # seconds until it was last asked to come again
    asked_to_end: bool = False
    ended: bool = False
    drains: bool = False  # it said so

    def is_surely_online(self, now: int) -> bool:
        """Whether it was heard of so lately that it must count as online."""
        return not self.ended and now < self.seen + max(OFFLINE, 1.5 * self.told) - LATE

    def may_be_online(self, now: int) -> bool:
        """Whether it may count as online: what it was told last may be less than the poll interval that it was asked to keep."""
        return not self.ended and now < self.seen + 1.5 * LONGEST_POLL

    @property
    def is_draining(self) -> bool:
        """Whether it starts nothing new."""
        return self.asked_to_end or self.drains


@dataclass
class Worker:
    """A registration of a program."""

    build: str | None
    handlers: dict[str, dict[str, Any]] = field(default_factory=dict)  # by type


class Fleet(Runs):
    """Who serves what, and what may be claimed."""

    def __init__(self) -> None:
        super().__init__()
        self.workers: dict[str, Worker] = {}
        self.instances: dict[tuple[str, str], Instance] = {}
        self.known: set[str] = set()  # types that were ever registered
        self.paused: set[str] = set()
        self.resumed: dict[str, int] = {}
        self.limits: dict[str, int] = {}  # of keys, by an operator

    # programs and processes

    def handler(self, worker: str, type_: str) -> dict[str, Any]:
        """What the worker id registered for the type; empty: nothing."""
        return self.workers[worker].handlers.get(type_, {}) if worker in self.workers else {}

    def register(
        self, worker: str, instance: str, build: str | None, handlers: list[dict[str, Any]], *, replace: bool = False
    ) -> None:
        """The worker id serves these types, and nothing else."""
        before = self.workers[worker].build if worker in self.workers else None
        if before is not None and build is not None and before > build and not replace:
            raise Refused("WORKER_ID_CONFLICT")
        self.workers[worker] = Worker(build, {handler["type"]: handler for handler in handlers})
        self.hear(worker, instance, {handler["type"] for handler in handlers})
        for handler in handlers:
            self.known.add(handler["type"])
            within = handler.get("startDeadlineSeconds")
            for task in self.tasks.values():
                if task.type == handler["type"] and task.status == "queued" and task.fence == 0:
                    self._bound(task, within)

    def start_deadlines(self, task: Task) -> None:
        """A new task starts within what any registration of its type says."""
        for worker in self.workers.values():
            self._bound(task, worker.handlers.get(task.type, {}).get("startDeadlineSeconds"))

    def _bound(self, task: Task, within: int | None) -> None:
        if within is not None:
            ends = task.first_due + within
            task.start_deadline = ends if task.start_deadline is None else min(task.start_deadline, ends)

    def remove_worker(self, worker: str) -> bool:
        """Whether there was no registration, and no process of it that had ended; others go on."""
        over = [key for key, found in self.instances.items() if key[0] == worker and found.ended]
        for key in over:
            del self.instances[key]
        return self.workers.pop(worker, None) is None and not over

    def hear(self, worker: str, instance: str, serves: set[str] | None = None, told: float | None = None) -> None:
        """A process has spoken; `serves`: and said what it can do."""
        found = self.instances.get((worker, instance))
        if found is None:
            if serves is None:
                return
            found = self.instances[worker, instance] = Instance(set(serves), self.now)
        found.seen = self.now
        if found.ended:
            found.ended, found.asked_to_end, found.drains = False, False, False
        if serves is not None:
            found.serves = set(serves)
        if told is not None:
            found.told = told

    def end_instance(self, worker: str, name: str) -> bool:
        """Whether the process had ended before."""
        found = self.instances.get((worker, name))
        if found is None:
            raise Refused("NOT_FOUND")
        before, found.ended = found.ended, True
        return before

    def drain(self, worker: str) -> tuple[list[str], bool]:
        """(the processes that have not ended and are asked to, whether all of them were before). One may only be out of reach."""
        if worker not in self.workers and not any(owner == worker for owner, _ in self.instances):
            raise Refused("NOT_FOUND")
        alive = {key: found for key, found in self.instances.items() if key[0] == worker and not found.ended}
        again = all(found.asked_to_end for found in alive.values())
        for found in alive.values():
            found.asked_to_end = True
        return sorted(name for _, name in alive), again

    def is_told_to_end(self, worker: str, instance: str) -> bool:
        """What a process is answered when it speaks."""
        found = self.instances.get((worker, instance))
        return found is not None and found.asked_to_end

    def online(self, type_: str, *, surely: bool) -> list[Instance]:
        """The processes that serve the type: those that must count as online, or those that may."""
        serving = [found for found in self.instances.values() if type_ in found.serves]
        return [f for f in serving if (f.is_surely_online(self.now) if surely else f.may_be_online(self.now))]

    def last_served(self, type_: str) -> int:
        """When a process was last heard of that serves the type."""
        return max((found.seen for found in self.instances.values() if type_ in found.serves), default=-1)

    def require(self, type_: str, wanted: str | None) -> None:
        """Raises Refused where a submit wants a worker that there is not."""
        if wanted == "registered" and type_ not in self.known:
            raise Refused("TASK_TYPE_NOT_FOUND")
        if wanted == "online" and not self.online(type_, surely=True):
            raise Refused("NO_ELIGIBLE_INFERENCE_WORKER" if type_.startswith("inference/") else "NO_ELIGIBLE_WORKER")

    # pauses and limits

    def pause(self, what: str) -> bool:
        """Nothing of a type, or of the project, is claimed; whether that was so before."""
        before = what in self.paused
        self.paused.add(what)
        return before

    def resume(self, what: str) -> bool:
        """Whether it was not paused."""
        if what not in self.paused:
            return True
        self.paused.remove(what)
        self.resumed[what] = self.now
        return False

    def is_paused(self, type_: str) -> bool:
        """Whether nothing of the type is claimed."""
        return bool({type_, EVERYTHING} & self.paused)

    def since_resume(self, type_: str) -> int:
        """When it was last resumed."""
        return max(self.resumed.get(type_, -1), self.resumed.get(EVERYTHING, -1))

    def limit_of(self, task: Task) -> int:
        """How many may hold the task's key for it to start."""
        return min(task.limit, self.limits.get(task.key or "", task.limit))

    def set_limit(self, key: str, limit: int | None) -> bool:
        """Whether that was the limit before; None: none."""
        before = self.limits.get(key)
        self.limits.pop(key, None)
        if limit is not None:
            self.limits[key] = limit
        return before == limit

    def held(self) -> dict[str, int]:
        """How many running tasks hold each key."""
        counts: dict[str, int] = {}
        for task in self.tasks.values():
            if task.status == "running" and task.key is not None:
                counts[task.key] = counts.get(task.key, 0) + 1
        return counts

    # what a queued task waits for

    def is_held(self, task: Task) -> bool:
        """Whether an earlier task of its schedule has not ended."""
        return any(self.tasks[before].status not in SETTLED for before in task.before)

    def reasons(self, task: Task) -> set[str]:
        """What may be told of a task that is queued or waiting: every reason that holds."""
        if task.wait is not None:
            wait = task.wait
            told = {"signal": wait.signal, "children": wait.children, "sleeping": wait.wake is not None}
            return {reason for reason, there in told.items() if there}
        found = set()
        if self.is_paused(task.type):
            found.add("paused")
        if task.due > self.now:
            found |= {"not-due", "retry-delay"} if task.fence else {"not-due"}
        if self.is_held(task):
            found.add("previous-running")
        others = [t for t in self.tasks.values() if t.key == task.key and t.status in ("queued", "running") and t is not task]
        if task.key is not None and len(others) >= self.limit_of(task):  # one that was let in before it need not have started
            found.add("concurrency-limit")
        surely, maybe = self.online(task.type, surely=True), self.online(task.type, surely=False)
        if all(instance.is_draining for instance in surely):
            found |= {"workers-draining"} if maybe else set()
        if any(not instance.is_draining for instance in maybe):
            found.add("workers-full")
        if not surely or not all(instance.is_draining for instance in maybe):
            found.add("no-worker")  # or none of them has claimed it yet
        return found
