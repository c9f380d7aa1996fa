"""Steps, children and signals in the model."""

from __future__ import annotations

from typing import Any

from model.ends_model import Ends
from model.records import UNSAFE, Attempt, Refused, Signal, Step, Task, Wait

MOST_STEPS, MOST_SIGNALS, MOST_BIG = 6, 4, 1
"""The limits that the walks set: small enough to be met. `MOST_BIG`: outputs of `BIG` bytes that a task has room for."""
BIG = 60_000


class Runs(Ends):
    """What attempts store beside their ends, and what is sent to them."""

    def store_step(
        self,
        task: Task,
        attempt: Attempt,
        token: int,
        name: str,
        status: str,
        *,
        safety: str | None = None,
        reconciles: bool = False,
        final: bool = False,
        tries: int | None = None,
        output: Any = None,
        big: bool = False,
    ) -> tuple[Step, bool]:
        """The stored step, and whether nothing new was stored."""
        known = self._enter(task, attempt, token, name, "step")
        is_unsafe = (safety or (known.safety if known else None) or attempt.safety) == UNSAFE
        safe = safety or (known.safety if known else None) or attempt.safety
        again = known is not None and known.status == status == "started" and known.attempt == attempt.id
        counted = known is not None and status == "failed" and tries is not None and known.tries >= tries
        if known is not None and (known.final or counted or (again and (known.safety, known.reconciles) == (safe, reconciles))):
            return known, True
        if known is None and len(task.steps) >= MOST_STEPS:
            raise Refused("LIMIT_EXCEEDED")
        if big and task.big >= MOST_BIG:
            raise Refused("LIMIT_EXCEEDED")
        seq = task.note("step")
        task.releases = 0
        task.big += big
        ends = status == "succeeded" or (status == "failed" and (final or is_unsafe))
        task.steps[name] = Step(
            kind="step",
            seq=known.seq if known else seq,
            status=status,
            final=ends,
            safety=safe,
            reconciles=reconciles,
            tries=(known.tries if known else 0) + (status != "started"),
            output=output if status == "succeeded" else None,
            ended=seq if ends else None,
            attempt=attempt.id,
        )
        return task.steps[name], False

    def spawn(
        self, task: Task, attempt: Attempt, token: int, name: str, child_id: str, body: dict[str, Any], *, detached: bool
    ) -> tuple[str | None, bool]:
        """(the child's id, whether it was there before); `child_id` is what the service called a new one."""
        known = self._enter(task, attempt, token, name, "child")
        if known is not None:
            return known.child, True
        if len(task.steps) >= MOST_STEPS:
            raise Refused("LIMIT_EXCEEDED")
        seq = task.note("step")
        task.releases = 0
        self.add(child_id, "demo/child", body, parent=task.id)
        task.steps[name] = Step(
            "child", seq, "succeeded", True, output={"taskId": child_id}, ended=seq, child=child_id, detached=detached
        )
        return child_id, False

    def _enter(self, task: Task, attempt: Attempt, token: int, name: str, kind: str) -> Step | None:
        """What the name stands for; the attempt is recovered first."""
        self.check_current(task, attempt, token)
        self.recover(task, attempt, renew=True)
        attempt.reported = True
        known = task.steps.get(name)
        if known is not None and known.kind != kind:
            raise Refused("INVALID_REQUEST")
        return known

    def add(self, task_id: str, type_: str, body: dict[str, Any], *, parent: str | None = None, due: int | None = None) -> Task:
        """A new task, as it was submitted."""
        due = self.now + body.get("delaySeconds", 0) if due is None else due
        within = body.get("startDeadlineSeconds")
        task = Task(
            id=task_id,
            type=type_,
            body=body,
            due=due,
            first_due=due,
            max_attempts=body["retry"]["maxAttempts"],
            start_deadline=None if within is None else due + within,
            parent=parent,
            effects=task_id,
        )
        task.note("submitted")
        self.tasks[task_id] = task
        self.start_deadlines(task)
        return task

    def start_deadlines(self, task: Task) -> None:
        """What else bounds the time to its start."""
        raise NotImplementedError

    def check_suspension(self, task: Task, attempt: Attempt, wait: Wait) -> None:
        """Raises Refused where a current attempt may not wait so: it goes on."""
        if attempt.safety == UNSAFE or any(name not in task.children() for name in wait.children or ()):
            raise Refused("INVALID_REQUEST")
        if wait.name in task.steps and task.steps[wait.name].kind != "wait":
            raise Refused("INVALID_REQUEST")
        if len(task.steps) >= MOST_STEPS:
            raise Refused("LIMIT_EXCEEDED")

    def signal(self, task: Task, name: str, key: str, payload: Any) -> tuple[int, bool]:
        """(its seq, whether it was known). Whatever is answered, a wait whose time has come is over now."""
        try:
            return self._keep(task, name, key, payload)
        finally:
            self.look(task)

    def _keep(self, task: Task, name: str, key: str, payload: Any) -> tuple[int, bool]:
        if (known := task.signals.get(key)) is not None:
            if (known.name, known.payload) != (name, payload):
                raise Refused("IDEMPOTENCY_CONFLICT")
            return known.seq, True
        if task.finished is not None:
            raise Refused("TASK_FINISHED")
        if sum(signal.taken is None for signal in task.signals.values()) >= MOST_SIGNALS:
            raise Refused("LIMIT_EXCEEDED")
        seq = task.note("signalled")
        task.signals[key] = Signal(name, payload, self.now, seq)
        return seq, False
