"""The service in plain dicts and whole seconds: what every call must answer and lead to (docs/protocol.md, transitions)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SETTLED = ("succeeded", "failed", "cancelled")
UNENDED = ("running", "queued", "outcome-unknown")


class Refused(Exception):
    """The call is refused with this code."""


@dataclass
class Attempt:
    """One lease of one task."""

    id: str
    fence: int
    safe: bool
    started: int
    lease_end: int
    deadline: int | None
    claim: str
    tokens: int = 1  # how many were given: only the latest counts
    reported: bool = False
    expired: bool = False  # its expiry was counted
    ended: bool = False
    report: tuple[Any, ...] | None = None  # what ended it, where that was its own report
    led_to: str = ""


@dataclass
class Task:
    """One task; its events are counted by kind."""

    id: str
    order: int
    priority: int
    due: int
    key: str | None
    limit: int
    max_attempts: int
    delay: int
    lease: int
    timeout: int | None
    start_deadline: int | None
    status: str = "queued"
    attempts: int = 0
    fence: int = 0
    cancel_requested: bool = False
    code: str | None = None
    attempt: Attempt | None = None
    resolved: set[tuple[str, str]] = field(default_factory=set)


class Model:
    """Every call either returns what is answered or raises Refused; `now` is moved by hand."""

    def __init__(self) -> None:
        self.now = 0
        self.tasks: dict[str, Task] = {}

    def submit(self, task_id: str, body: dict[str, Any]) -> None:
        due = self.now + body.get("delaySeconds", 0)
        within = body.get("startDeadlineSeconds")
        self.tasks[task_id] = Task(
            id=task_id,
            order=len(self.tasks),
            priority=body["priority"],
            due=due,
            key=body["concurrency"]["key"] if "concurrency" in body else None,
            limit=body["concurrency"]["limit"] if "concurrency" in body else 0,
            max_attempts=body["retry"]["maxAttempts"],
            delay=body["retry"]["initialDelaySeconds"],
            lease=body["leaseSeconds"],
            timeout=body.get("timeoutSeconds"),
            start_deadline=None if within is None else due + within,
        )

    # claims

    def claimable(self) -> list[Task]:
        """What a claim may hand out, best first, its keys not yet counted."""
        found = [t for t in self.tasks.values() if t.status == "queued" and t.due <= self.now and not self._late(t)]
        return sorted(found, key=lambda t: (-t.priority, t.due, t.order))

    def best(self, slots: int) -> list[Task]:
        """What a claim hands out where every key's best tasks were let in."""
        held = self.held()
        found = []
        for task in self.claimable():
            if task.key is None or held.get(task.key, 0) < task.limit:
                found.append(task)
                if task.key is not None:
                    held[task.key] = held.get(task.key, 0) + 1
        return found[:slots]

    def held(self) -> dict[str, int]:
        """How many running tasks hold each key."""
        counts: dict[str, int] = {}
        for task in self.tasks.values():
            if task.status == "running" and task.key is not None:
                counts[task.key] = counts.get(task.key, 0) + 1
        return counts

    def start(self, task: Task, attempt_id: str, safe: bool, claim: str) -> Attempt:
        """The claim leased this task."""
        task.status, task.fence = "running", task.fence + 1
        if task.attempt is not None:
            task.attempt.ended = True
        deadline = None if task.timeout is None else self.now + task.timeout
        task.attempt = Attempt(attempt_id, task.fence, safe, self.now, self._lease_end(task, deadline), deadline, claim)
        return task.attempt

    def _lease_end(self, task: Task, deadline: int | None) -> int:
        return self.now + task.lease if deadline is None else min(self.now + task.lease, deadline + 30)

    def repeat(self, claim: str) -> list[tuple[Task, Attempt]]:
        """The claim's answer was lost: its current attempts, with leases renewed and other tokens."""
        found = []
        for task, attempt in self.open_attempts(claim):
            if task.status == "running" or attempt.deadline is None or attempt.deadline > self.now:
                self._recover(task, attempt)
                attempt.lease_end = self._lease_end(task, attempt.deadline)
                attempt.tokens += 1
                found.append((task, attempt))
        return found

    def give_back(self, claim: str) -> dict[str, str]:
        """The claim's attempts that never reported, given back: attempt → status of its task."""
        found = [(task, attempt) for task, attempt in self.open_attempts(claim) if not attempt.reported]
        return {attempt.id: self.report(task, attempt, attempt.tokens, "released", False)[0] for task, attempt in found}

    def open_attempts(self, claim: str) -> list[tuple[Task, Attempt]]:
        """What the claim leased and nothing has ended."""
        held = [(t, t.attempt) for t in self.tasks.values() if t.attempt is not None and t.attempt.claim == claim]
        return [(task, attempt) for task, attempt in held if not attempt.ended and task.status in UNENDED]

    def expire(self) -> None:
        """Settles the leases that ended; a claim does so first, a sweep too."""
        for task in self.tasks.values():
            attempt = task.attempt
            if task.status != "running" or attempt is None or attempt.lease_end > self.now:
                continue
            overdue = attempt.deadline is not None and attempt.deadline <= self.now
            before = task.attempts
            task.attempts += 1
            attempt.expired = True
            if not attempt.safe:
                task.status, task.code = "outcome-unknown", "ATTEMPT_TIMEOUT" if overdue else "LEASE_EXPIRED"
            elif task.cancel_requested:
                task.status = "cancelled"
            elif task.attempts < task.max_attempts:
                task.status, task.due = "queued", self.now + self._backoff(task, before + 1)
            else:
                task.status, task.code = "failed", "ATTEMPTS_EXHAUSTED"
            attempt.ended = task.status in SETTLED

    def sweep(self) -> None:
        self.expire()
        for task in self.tasks.values():
            if task.status == "queued" and self._late(task):
                task.status, task.code = "failed", "START_DEADLINE_EXCEEDED"

    def _late(self, task: Task) -> bool:
        return task.start_deadline is not None and task.fence == 0 and task.start_deadline <= self.now

    # reports

    def heartbeat(self, task: Task, attempt: Attempt, token: int) -> str | None:
        """What the holder is told: None, `cancel` or `timeout`."""
        self._check_current(task, attempt, token)
        attempt.reported = True
        if attempt.deadline is not None and attempt.deadline <= self.now:
            return "timeout"
        self._recover(task, attempt)
        attempt.lease_end = self._lease_end(task, attempt.deadline)
        return "cancel" if task.cancel_requested else None

    def report(self, task: Task, attempt: Attempt, token: int, said: str, *given: Any) -> tuple[str, bool]:
        """(status that it led to, whether it is a repeat) of an outcome, or of `released` with (started,)."""
        report = (said, *given)
        if attempt.report == report and attempt.tokens == token:
            return attempt.led_to, True
        self._check_current(task, attempt, token)
        self._recover(task, attempt)
        overdue = attempt.deadline is not None and attempt.deadline <= self.now
        before = task.attempts
        status, code, counts = self._end(task, attempt, said, bool(given and given[0]), overdue)
        task.status, task.code = status, code
        task.attempts += counts
        if status == "queued":
            task.due = self.now + self._backoff(task, before + 1) if counts else min(task.due, self.now)
        attempt.ended, attempt.report, attempt.led_to = True, report, status
        return status, False

    def _end(self, task: Task, attempt: Attempt, said: str, started: bool, overdue: bool) -> tuple[str, str | None, bool]:
        again = ("queued", None, True) if task.attempts + 1 < task.max_attempts else ("failed", "ATTEMPTS_EXHAUSTED", True)
        if said == "succeeded":
            return "succeeded", None, False
        if said in ("failed", "unknown"):
            return "failed" if said == "failed" else "outcome-unknown", "BAD", False
        if task.cancel_requested and (said != "released" or overdue or not started or attempt.safe):
            return "cancelled", None, said == "retryable"
        if said == "retryable":
            return again if attempt.safe else ("failed", "RETRY_NOT_SAFE", True)
        if overdue:
            return again if attempt.safe else ("failed", "ATTEMPT_TIMEOUT", True)
        if said == "cancelled":
            return "failed", "CANCELLED_BY_HANDLER", False
        return ("queued", None, False) if attempt.safe or not started else ("outcome-unknown", "RELEASED_UNSAFE", False)

    def _check_current(self, task: Task, attempt: Attempt, token: int) -> None:
        if attempt.ended or attempt.tokens != token or task.attempt is not attempt or task.status not in UNENDED:
            raise Refused("STALE_ATTEMPT")

    def _recover(self, task: Task, attempt: Attempt) -> None:
        if task.status != "running":
            task.status, task.code = "running", None
            task.attempts -= attempt.expired
        attempt.expired = False

    def _backoff(self, task: Task, n: int) -> int:
        return min(300, task.delay * 2 ** (n - 1))

    # producers and operators

    def cancel(self, task: Task) -> bool:
        """Whether it was asked for before."""
        if task.status in ("succeeded", "failed"):
            raise Refused("TASK_FINISHED")
        if task.status == "outcome-unknown":
            raise Refused("OUTCOME_UNKNOWN")
        if task.status == "cancelled" or (task.status == "running" and task.cancel_requested):
            return True
        task.cancel_requested = True
        if task.status == "queued":
            task.status = "cancelled"
            if task.attempt is not None:
                task.attempt.ended = True
        return False

    def resolve(self, task: Task, verdict: str, attempt: Attempt) -> bool:
        """Whether the same verdict was given before."""
        if task.status == "outcome-unknown" and task.attempt is attempt:
            task.resolved.add((attempt.id, verdict))
            attempt.ended = True
            if verdict == "requeue":
                task.status, task.due, task.code, task.cancel_requested = "queued", self.now, None, False
                task.max_attempts = max(task.max_attempts, task.attempts + 1)
            else:
                task.status, task.code = verdict, None if verdict == "succeeded" else "RESOLVED_FAILED"
            return False
        if (attempt.id, verdict) in task.resolved:
            return True
        raise Refused("TASK_NOT_UNKNOWN")
