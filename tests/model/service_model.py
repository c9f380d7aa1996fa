"""The service in plain dicts and whole seconds: what every call must answer and lead to (docs/protocol.md, sections 4 to 8)."""

from __future__ import annotations

from typing import Any

from model.fleet_model import POLICY
from model.records import SETTLED, UNENDED, UNSAFE, Attempt, Refused, Step, Task
from model.schedules_model import Schedules

TYPES = ("demo/hello", "demo/child")
STRICT = ("pure", "idempotent", UNSAFE)
WAIT_LIMIT = 86_400


class Model(Schedules):
    """Every call either returns what is answered or raises Refused; `now` is moved by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.submits: dict[str, tuple[str, dict[str, Any]]] = {}  # by idempotency key: the task, and what was asked

    # producers

    def named(self, key: str | None, asked: dict[str, Any]) -> str | None:
        """The task that the idempotency key names already."""
        if key is None or key not in self.submits:
            return None
        task_id, before = self.submits[key]
        if before != asked:
            raise Refused("IDEMPOTENCY_CONFLICT")
        return task_id

    def remember(self, key: str | None, task_id: str, asked: dict[str, Any]) -> None:
        """The key names this task from now on."""
        if key is not None:
            self.submits[key] = (task_id, asked)

    def submit(
        self, task_id: str, body: dict[str, Any], key: str | None = None, *, type_: str = "demo/hello", require: str | None = None
    ) -> tuple[str, bool]:
        """(the task, whether it was there before); `task_id` is what the service called a new one."""
        if (known := self.named(key, body)) is not None:
            return known, True
        self.require(type_, require)
        self.add(task_id, type_, body)
        self.remember(key, task_id, body)
        return task_id, False

    def rerun(
        self, source: Task, new_id: str, from_step: str | None, key: str | None, *, keep_keys: bool = False
    ) -> tuple[str, bool]:
        """(the new task, whether it was there before)."""
        asked = {"rerunOf": source.id, "fromStep": from_step, "keepEffectKeys": keep_keys}
        if (known := self.named(key, asked)) is not None:
            return known, True
        if source.status not in SETTLED:
            raise Refused("OUTCOME_UNKNOWN" if source.status == "outcome-unknown" else "TASK_NOT_FINISHED")
        kept = self._kept(source, from_step)
        task = self.add(new_id, source.type, {k: v for k, v in source.body.items() if k != "delaySeconds"})
        task.rerun_of = source.id
        task.effects = source.effects if keep_keys else new_id
        for name, step in kept:
            seq = task.note("step")
            task.steps[name] = Step(
                step.kind, seq, step.status, True, step.safety, step.reconciles, step.tries, step.output, seq, "", step.child, step.detached
            )  # fmt: skip
            task.big += isinstance(step.output, str) and len(step.output) > 1000
        self.remember(key, new_id, asked)
        return new_id, False

    def _kept(self, source: Task, from_step: str | None) -> list[tuple[str, Step]]:
        """What was stored for good before the step's first event, in the order of the outcomes."""
        if from_step is None:
            return []
        if from_step not in source.steps:
            raise Refused("INVALID_REQUEST")
        first = source.steps[from_step].seq
        kept = [(name, step) for name, step in source.steps.items() if step.ended is not None and step.ended < first]
        if any(step.child is not None and self.tasks[step.child].finished is None for _, step in kept):
            raise Refused("TASK_NOT_FINISHED")
        return sorted(kept, key=lambda item: item[1].ended or 0)

    def cancel(self, task: Task) -> bool:
        """Whether it was asked for before."""
        if task.status in ("succeeded", "failed"):
            raise Refused("TASK_FINISHED")
        if task.status == "outcome-unknown":
            raise Refused("OUTCOME_UNKNOWN")
        return not self.ask_to_cancel(task)

    # operators

    def resolve(self, task: Task, verdict: str, attempt: Attempt, step: str | None, result: Any) -> bool:
        """Whether the same verdict was given before."""
        if step is not None and verdict == "reconcile":
            raise Refused("INVALID_REQUEST")
        mine = task.status == "outcome-unknown" and task.attempt is attempt
        if mine and (step is None or (step in task.steps and task.steps[step].status == "started")):
            task.resolved.add((attempt.id, verdict, step, result))
            attempt.ended = True
            task.releases = 0
            task.note("resolved")
            if step is None and verdict in ("succeeded", "failed"):
                self._close(task, verdict, result)
            else:
                self._go_on(task, verdict, attempt, step, result)
            return False
        if (attempt.id, verdict, step, result) in task.resolved:
            return True
        raise Refused("INVALID_REQUEST" if mine else "TASK_NOT_UNKNOWN")

    def _close(self, task: Task, verdict: str, result: Any) -> None:
        task.move(verdict, self.now)
        task.result = result
        task.reconcile = None
        task.fail(None if verdict == "succeeded" else "RESOLVED_FAILED")
        task.note(verdict)
        self.follow(task)

    def _go_on(self, task: Task, verdict: str, attempt: Attempt, name: str | None, result: Any) -> None:
        for step in [task.steps[name]] if name else task.steps.values():
            if step.status == "started" and verdict != "reconcile":
                step.status = "succeeded" if verdict == "succeeded" else "failed"
                step.final = verdict != "requeue"
                step.ended = len(task.journal) if step.final else None
                step.tries += 1
                step.output = result if verdict == "succeeded" else None
        kept = task.reconcile if name is not None else None  # nobody was asked about what ran outside the step
        asks = verdict == "reconcile" or (name is not None and attempt.reconciles and kept is None)
        task.reconcile = (attempt.id, "RESOLVED") if asks and attempt.safety == UNSAFE else kept
        task.max_attempts = max(task.max_attempts, task.attempts + 1)
        task.cancel_requested = False
        unasked = [(s.seq, n) for n, s in task.steps.items() if s.open and not s.reconciles]
        if name is not None and unasked:
            task.fail(task.code, min(unasked)[1])
            return
        task.move("queued", self.now)
        task.due = self.now
        task.fail(None)

    # claims

    def claimable(self, type_: str) -> list[Task]:
        """What a claim may hand out, best first, its keys not yet counted."""
        if self.is_paused(type_):
            return []
        due = [t for t in self.tasks.values() if t.type == type_ and t.status == "queued" and t.due <= self.now]
        ready = (t for t in due if not self._late(t) and not self.is_held(t))
        return sorted(ready, key=lambda t: (-t.body["priority"], t.due, t.id))

    def best(self, type_: str, slots: int) -> list[Task]:
        """What a claim hands out where every key's best tasks were let in."""
        held = self.held()
        found = []
        for task in self.claimable(type_):
            if task.key is None or held.get(task.key, 0) < self.limit_of(task):
                found.append(task)
                if task.key is not None:
                    held[task.key] = held.get(task.key, 0) + 1
        return found[:slots]

    def start(self, task: Task, attempt_id: str, worker: str, handler: dict[str, Any], claim: str) -> Attempt:
        """The claim leased this task: with what it said of its handler, or what its worker id registered if that is stricter."""
        task.move("running", self.now)
        task.fence += 1
        task.note("claimed")
        if task.attempt is not None:
            task.attempt.ended = True
        registered = self.handler(worker, task.type)
        if task.fence == 1:
            task.policy = {name: registered[name] for name in POLICY if name in registered}
        asks = registered.get("reconciles", not registered)
        safety = max(registered.get("effectSafety", "pure"), handler["effectSafety"], key=STRICT.index)
        timeout = task.policy_of("timeoutSeconds")
        deadline = None if timeout is None else self.now + timeout
        task.attempt = Attempt(
            id=attempt_id,
            fence=task.fence,
            safety=safety,
            reconciles=asks and handler.get("reconciles", False),
            told=task.reconcile,
            lease_end=self.lease_end(task, deadline),
            deadline=deadline,
            claim=claim,
        )
        return task.attempt

    def repeat(self, claim: str) -> list[tuple[Task, Attempt]]:
        """The claim's answer was lost: its current attempts, with leases renewed and other tokens."""
        found = []
        for task, attempt in self.open_attempts(claim):
            if task.status == "running" or attempt.deadline is None or attempt.deadline > self.now:
                self.recover(task, attempt)
                attempt.lease_end = self.lease_end(task, attempt.deadline)
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

    def heartbeat(self, task: Task, attempt: Attempt, token: int) -> str | None:
        """What the holder is told: None, `cancel` or `timeout`."""
        self.check_current(task, attempt, token)
        attempt.reported = True
        if attempt.deadline is not None and attempt.deadline <= self.now:
            return "timeout"
        self.recover(task, attempt)
        attempt.lease_end = self.lease_end(task, attempt.deadline)
        return "cancel" if task.cancel_requested else None

    def read(self, task: Task, attempt: Attempt, token: int, *, valid: bool = True) -> None:
        """Whether the attempt may read what its task has stored; a lease comes before a cursor."""
        self.check_current(task, attempt, token)
        if not valid:
            raise Refused("INVALID_CURSOR")

    # the sweep

    def sweep(self) -> None:
        """What a sweep settles, but for the wait limit."""
        self.follow(*self.expire(*TYPES))
        self.wake(*TYPES)
        for task in list(self.tasks.values()):
            if task.status == "queued" and self._late(task):
                task.move("failed", self.now)
                task.fail("START_DEADLINE_EXCEEDED")
                self.met["start deadline", "taken"] += 1
                task.note("failed")
                self.follow(task)

    def starved(self) -> list[Task]:
        """What nobody served for too long, as nobody was heard of for as long."""
        since = self.now - WAIT_LIMIT
        queued = [t for t in self.tasks.values() if t.status == "queued" and t.due <= since]
        waited = [t for t in queued if max(self.last_served(t.type), self.since_resume(t.type)) < since]
        return [t for t in waited if not self.is_paused(t.type) and not self.is_held(t)]

    def forget(self) -> None:
        """Processes that were not heard of for so long."""
        self.instances = {key: found for key, found in self.instances.items() if found.seen >= self.now - WAIT_LIMIT}

    def starve(self, task: Task) -> None:
        """The wait limit: failed, unless somebody was to be asked what an earlier attempt did."""
        asks = task.reconcile is not None or task.is_open(False)
        task.move("outcome-unknown" if asks else "failed", self.now)
        task.fail("WORKER_WAIT_LIMIT", task.open_step() if asks else None)
        task.note(task.status)
        if task.attempt is not None:
            task.attempt.ended = True
        self.follow(task)

    def _late(self, task: Task) -> bool:
        return task.start_deadline is not None and task.fence == 0 and task.start_deadline <= self.now
