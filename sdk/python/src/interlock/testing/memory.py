"""One task as the service would keep it: stored steps, waits, signals, children, and the transitions of protocol.md §6 and §7."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from interlock.handler import Handler
from interlock.json_text import decode
from interlock.port import ChildRequest, Page, PortRefused, StepReport, StoredStep
from interlock.retry import Retry
from interlock.tasks import read_time, write_time

SETTLED = ("succeeded", "failed", "cancelled")
MOST_STEPS = 10_000
VALUE_BYTES = 256 * 1024


@dataclass
class MemoryChild:
    """A child task: submitted by the run, ended by the test."""

    name: str
    task_id: str
    task: Mapping[str, Any]
    detached: bool
    status: str = "queued"
    result: Any = None
    failure: Mapping[str, Any] | None = None

    def to_wire(self) -> dict[str, Any]:
        """The child as a wait's output has it."""
        told = {"name": self.name, "taskId": self.task_id, "status": self.status, "settled": self.status in SETTLED}
        return {**told, "detached": self.detached, "result": self.result, "failure": self.failure}


@dataclass
class MemoryTask:
    """The task. Times are seconds of a clock that starts at 0 and that only the test moves; `start` is its 0 on the calendar."""

    handler: Handler
    input: Any
    start: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    tags: Mapping[str, str] = field(default_factory=dict)
    page: int = 1000
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    now: float = 0.0
    status: str = "queued"
    due: float = 0.0
    result: Any = None
    failure: Mapping[str, Any] | None = None
    attempts: int = 0  # counted ones
    fence: int = 0
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)
    signals: list[tuple[str, Any, float]] = field(default_factory=list)
    children: dict[str, MemoryChild] = field(default_factory=dict)
    wait: Mapping[str, Any] | None = None
    limit: float | None = None  # until when it waits
    reconcile: Mapping[str, Any] | None = None  # what the next attempt is to find out first
    told: Mapping[str, Any] | None = None  # what this one was to
    orphaned: list[str] = field(default_factory=list)
    waited_for: dict[str, None] = field(default_factory=dict)  # names of signals, in order

    # ---- attempts

    def claim(self) -> dict[str, Any]:
        """Lease it: the claim that a worker gets."""
        assert self.status == "queued"
        self.status = "running"
        self.fence += 1
        self.told, self.reconcile = self.reconcile, None
        views = list(self.steps.values())
        claim: dict[str, Any] = {
            "taskId": self.id, "attemptId": f"attempt-{self.fence}", "attemptNumber": self.attempts + 1,
            "maxAttempts": self.retry.max_attempts, "fence": self.fence, "leaseToken": "none", "leaseSeconds": 60,
            "type": self.handler.type, "schemaVersion": self.handler.schema_version, "pool": "default", "input": self.input,
            "tags": self.tags, "effectScope": self.id, "cancelRequested": False, "reconcile": self.told, "steps": views[: self.page],
        }  # fmt: skip
        if len(views) > self.page:
            claim["stepsCursor"] = str(self.page)
        return claim

    @property
    def retry(self) -> Retry:
        """Its policy."""
        return self.handler.retry or Retry()

    def open_unsafe(self) -> str | None:
        """The step of which nobody knows whether it happened, and which nobody could ask about."""
        for view in self.steps.values():
            if is_open(view) and view["effectSafety"] == "non-idempotent" and not view["reconciles"]:
                return str(view["name"])
        return None

    @property
    def safe(self) -> bool:
        """Whether an attempt may be repeated."""
        return (self.handler.effect_safety != "non-idempotent" or self.handler.reconcile is not None) and not self.open_unsafe()

    def crash(self) -> None:
        """The worker died, and its lease ran out. Costs an attempt, and no time."""
        if not self.safe:
            step = self.open_unsafe()
            text = "the lease expired" + (f" while the step {step!r} ran" if step else "")
            self._end("outcome-unknown", failure=error("LEASE_EXPIRED", text, step))
            return
        if self.handler.effect_safety == "non-idempotent":
            self.reconcile = {"attemptId": f"attempt-{self.fence}", "reason": "LEASE_EXPIRED"}
        self._count(error("LEASE_EXPIRED", "the lease expired"), 0.0)

    def complete(self, report: Mapping[str, Any]) -> None:
        """Take an outcome."""
        outcome: str = report["outcome"]
        fault: dict[str, Any] = report.get("error") or {}
        self.orphaned += [name for name in report.get("orphanedSteps") or () if name not in self.orphaned]
        unsafe = self.open_unsafe()
        if outcome == "succeeded":
            self._end("succeeded", result=report["result"])
        elif outcome == "failed":
            self._end("failed", failure=fault)
        elif outcome == "unknown":
            step = report.get("step")
            details = {**(fault.get("details") or {}), "step": step} if step else fault.get("details")
            self._end("outcome-unknown", failure={**fault, "details": details})
        elif unsafe is not None:
            self._end("outcome-unknown", failure=error("STEP_OPEN", f"the step {unsafe!r} has no outcome", unsafe))
        elif outcome == "suspended":
            self._suspend(report["wait"])
        elif outcome == "cancelled":
            self._end("failed", failure=error("CANCELLED_BY_HANDLER", str(fault.get("message") or "")))
        elif not self.safe:
            self._end("failed", failure=error("RETRY_NOT_SAFE", "the handler must not be run twice"))
        elif self.told is not None and self.attempts + 1 >= self.retry.max_attempts:  # nobody is left to find it out
            self.attempts += 1
            self._end("outcome-unknown", failure=fault)
        else:
            self.reconcile = self.told
            self._count(fault, report.get("retryAfterSeconds"))

    def _count(self, fault: Any, after: float | None) -> None:
        self.attempts += 1
        if self.attempts >= self.retry.max_attempts:
            text = f"{self.attempts} attempts failed"
            self._end("failed", failure={**error("ATTEMPTS_EXHAUSTED", text), "details": {"last": fault}})
            return
        policy = self.retry
        delay = min(policy.max_delay, policy.initial_delay * policy.multiplier ** min(self.attempts - 1, 64))
        self.status, self.due = "queued", self.now + (delay if after is None else after)

    def _end(self, status: str, result: Any = None, failure: Mapping[str, Any] | None = None) -> None:
        self.status, self.result, self.failure = status, result, failure

    # ---- waits

    def _suspend(self, wait: Mapping[str, Any]) -> None:
        self.status, self.wait, self.limit = "waiting", wait, None
        if wait.get("signal") is not None:
            self.waited_for[wait["signal"]] = None
        if wait.get("afterSeconds") is not None:
            self.limit = self.now + wait["afterSeconds"]
        elif wait.get("until") is not None:
            until = read_time(wait["until"])
            assert until is not None
            self.limit = (until - self.start).total_seconds()
        self.look()

    def look(self) -> None:
        """Resume the run if what it waits for is there."""
        wait = self.wait
        if self.status != "waiting" or wait is None:
            return
        output: dict[str, Any] | None = None
        place = next((place for place, signal in enumerate(self.signals) if self._takes(signal)), None)
        if place is not None:
            output = {"signal": self.signals.pop(place)[1]}
        elif "children" in wait and all(self.children[name].status in SETTLED for name in wait["children"]):
            output = {"children": [self.children[name].to_wire() for name in wait["children"]]}
        elif self.limit is not None and self.now >= self.limit:
            output = {"timedOut": True}
        if output is not None:
            self._keep({"name": wait["name"], "kind": "wait", "status": "succeeded", "final": True, "output": output})
            self.status, self.due, self.wait, self.limit = "queued", self.now, None, None

    def _takes(self, signal: tuple[str, Any, float]) -> bool:
        assert self.wait is not None
        return signal[0] == self.wait.get("signal") and (self.limit is None or signal[2] <= self.limit)

    def next_due(self) -> float | None:
        """When something happens by itself."""
        return self.due if self.status == "queued" else self.limit if self.status == "waiting" else None

    def instant(self) -> str:
        """Now, on the calendar."""
        return write_time(self.start + timedelta(seconds=self.now))

    # ---- settling what is unknown

    def resolve(self, how: str, step: str | None, result: Any) -> None:
        """What an operator found out, as §6 says."""
        if self.status != "outcome-unknown":
            raise AssertionError(f"there is nothing to resolve: the task is {self.status}")
        if step is None and how in ("succeeded", "failed"):
            failure = error("RESOLVED_FAILED", "resolved as failed") if how == "failed" else None
            self._end(how, result=result, failure=failure)
            return
        for view in [self.steps[step]] if step is not None else [view for view in self.steps.values() if is_open(view)]:
            if how == "succeeded":
                view.update(status="succeeded", final=True, output=result)
            elif how == "failed":
                view.update(status="failed", final=True, error=error("RESOLVED_FAILED", "resolved as failed"))
            elif how == "requeue":
                view["status"] = "failed"  # closed, and not for good: it runs again
                view["error"] = error("REQUEUED", "resolved as requeue")
            else:
                view["reconciles"] = True
        asks = how == "reconcile" or (step is not None and self.handler.reconcile is not None)  # what ran outside the step
        if asks and self.handler.effect_safety == "non-idempotent":
            self.reconcile = {"attemptId": f"attempt-{self.fence}", "reason": "RESOLVED"}
        self.status, self.due, self.failure = "queued", self.now, None

    # ---- what a run's port asks

    def store_step(self, report: StepReport) -> StoredStep:
        """Store; the first final report wins."""
        before = self.steps.get(report.name)
        if before is not None and before["final"]:
            return StoredStep.read({**before, "duplicate": True})
        if before is None and len(self.steps) >= MOST_STEPS:
            raise PortRefused("LIMIT_EXCEEDED", 422, f"a task has at most {MOST_STEPS} steps")
        if report.output is not None and len(report.output) > VALUE_BYTES:
            raise PortRefused("PAYLOAD_TOO_LARGE", 413, f"an output has at most {VALUE_BYTES} bytes")
        unsafe = report.effect_safety == "non-idempotent"
        tries = before["tries"] if before is not None else 0
        view: dict[str, Any] = {
            "name": report.name, "kind": "step", "status": report.status, "effectSafety": report.effect_safety,
            "reconciles": report.reconciles, "tries": report.tries if report.tries is not None else tries,
            "final": report.status == "succeeded" or (report.status == "failed" and (unsafe or bool(report.final))),
        }  # fmt: skip
        if report.output is not None:
            view["output"] = decode(report.output)
        if report.error is not None:
            view["error"] = decode(report.error)
        self._keep(view)
        return StoredStep.read(view)

    def spawn_child(self, request: ChildRequest) -> str:
        """Submit a child, once per name."""
        known = self.children.get(request.name)
        if known is None:
            task = decode(b"{" + request.encode()[1:] + b"}")
            known = MemoryChild(request.name, f"child-{len(self.children) + 1}", task, request.detached)
            self.children[request.name] = known
            output = {"taskId": known.task_id}
            self._keep({"name": request.name, "kind": "child", "status": "succeeded", "final": True, "output": output})
        return known.task_id

    def read_steps(self, cursor: str | None) -> Page:
        """A page of what is stored."""
        return self._cut(list(self.steps.values()), cursor)

    def read_children(self, cursor: str | None) -> Page:
        """A page of the children."""
        return self._cut([child.to_wire() for child in self.children.values()], cursor)

    def _cut(self, views: Sequence[Mapping[str, Any]], cursor: str | None) -> Page:
        begin = int(cursor or 0)
        end = begin + self.page
        return Page(views[begin:end], str(end) if end < len(views) else None)

    def _keep(self, view: dict[str, Any]) -> None:
        self.steps[view["name"]] = {"effectSafety": "pure", "reconciles": False, "tries": 0, **view}


def is_open(view: Mapping[str, Any]) -> bool:
    """Whether a step was started and has no outcome."""
    return view["status"] == "started" and not view["final"]


def error(code: str, message: str, step: str | None = None) -> dict[str, Any]:
    """A failure as the protocol tells it."""
    return {"code": code, "message": message, **({"details": {"step": step}} if step else {})}
