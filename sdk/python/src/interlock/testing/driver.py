"""A run under a test's hand: no service, a clock that only the test moves, crashes where it wants them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, Literal

from interlock.handler import EffectSafety, Handler, find_declared
from interlock.json_text import decode, encode
from interlock.reconciling import Finding
from interlock.retry import Retry
from interlock.submission import to_seconds
from interlock.tasks import Failure
from interlock.testing.memory import SETTLED, MemoryTask
from interlock.testing.playing import Plan, play

MOST_ATTEMPTS = 10_000


def drive(
    handler: Callable[..., Any],
    input: Any = None,
    *,
    stubs: Mapping[str, Any] | None = None,
    reconciles: Mapping[str, Finding] | None = None,
    effect_safety: EffectSafety | None = None,
    retry: Retry | None = None,
    reconcile: Callable[..., Any] | None = None,
    tags: Mapping[str, str] | None = None,
    start: datetime | None = None,
) -> Drive:
    """Run a handler, sync or async, as a worker would, against a service in memory.

    `stubs` stand for the functions of steps, by the steps' names, and for children, by name or type: a value, an exception
    to be raised, or a function that is called with the same arguments (a child's: with its input). A child without a stub
    ends when the test says so. `reconciles` are what the hooks find out, by the steps' names. How the handler was declared
    (`worker.handle`) counts here too; `effect_safety` (else idempotent), `retry` and `reconcile` say it for one that was not,
    or say it otherwise. `start` is what the clock shows at first (absent: now).

    Nothing runs before the test asks for something: then the run goes on as far as it can without time passing.
    """
    declared = find_declared(handler)
    made = Handler(
        declared.type if declared is not None else "test/driven",
        declared.schema_version if declared is not None else 1,
        handler,
        effect_safety or (declared.effect_safety if declared is not None else "idempotent"),
        retry or (declared.retry if declared is not None else None),
        contract=declared.contract if declared is not None else None,
        reconcile=reconcile or (declared.reconcile if declared is not None else None),
    )
    given = made.contract.write_input(input) if made.contract is not None else input
    task = MemoryTask(made, decode(encode(given, "the input")), start or datetime.now(timezone.utc), tags or {})
    return Drive(task, Plan(stubs or {}, reconciles or {}))


class Drive:
    """A driven run. What is read (`status`, `result`, `calls`, …) is read once the run has gone as far as it can."""

    def __init__(self, task: MemoryTask, plan: Plan) -> None:
        self._task = task
        self._plan = plan
        self._error: BaseException | None = None
        self._played = 0

    def __repr__(self) -> str:
        return f"Drive(status={self._task.status!r}, steps={list(self._task.steps)!r})"

    # ---- what happens to it

    def crash_after(self, step: str) -> None:
        """Let the worker die once, as soon as this step (or child) is stored. The next attempt starts at once."""
        self._plan.after.append(step)

    def crash_inside(self, step: str, *, effect: bool = True) -> None:
        """Let the worker die once inside this step: after its effect but before it is stored, or before it (`effect=False`)."""
        self._plan.within.setdefault(step, []).append(effect)

    def advance(self, seconds: float | timedelta) -> None:
        """Let time pass; whatever becomes due on the way happens at its instant."""
        self._go_on()
        task = self._task
        target = task.now + (to_seconds(seconds) or 0.0)
        while (due := task.next_due()) is not None and task.now < due <= target:
            task.now = due
            task.look()
            if due < target:
                self._go_on()
        task.now = max(task.now, target)
        task.look()

    def signal(self, name: str, payload: Any = None) -> None:
        """Send it a signal. Raises AssertionError for a run that has ended, as the service refuses that."""
        self._go_on()
        self._check_unsettled(f"the signal {name!r}")
        self._task.signals.append((name, decode(encode(payload, f"the signal {name!r}")), self._task.now))
        self._task.look()

    def finish_child(self, name: str, result: Any = None) -> None:
        """Let a child succeed."""
        self._end_child(name, "succeeded", decode(encode(result, f"the result of {name!r}")), None)

    def fail_child(
        self, name: str, code: str = "FAILED", message: str = "", *, status: Literal["failed", "cancelled"] = "failed"
    ) -> None:
        """Let a child fail, or be cancelled."""
        self._end_child(name, status, None, {"code": code, "message": message})

    def cancel(self) -> None:
        """Cancel it while it waits."""
        self._go_on()
        self._check_unsettled("a cancel")
        self._task.status = "cancelled"

    def resolve(
        self, how: Literal["succeeded", "failed", "requeue", "reconcile"], *, step: str | None = None, result: Any = None
    ) -> None:
        """Settle what is unknown, as an operator does: the whole task, or one step of it."""
        self._go_on()
        self._task.resolve(how, step, result)

    def deploy(self, handler: Callable[..., Any]) -> None:
        """Let another program go on with the run from here."""
        self._go_on()
        old = self._task.handler
        self._task.handler = Handler(
            old.type, old.schema_version, handler, old.effect_safety, old.retry, contract=old.contract, reconcile=old.reconcile
        )

    # ---- what became of it

    @property
    def status(self) -> str:
        """The task's status: `waiting`, `queued` (for a retry), `outcome-unknown`, `succeeded`, `failed` or `cancelled`."""
        self._go_on()
        return self._task.status

    @property
    def result(self) -> Any:
        """The task's result."""
        self._go_on()
        return self._task.result

    @property
    def failure(self) -> Failure | None:
        """Why it failed, or is unknown."""
        self._go_on()
        return Failure.read(self._task.failure)

    @property
    def error(self) -> BaseException | None:
        """What the last attempt's handler raised: to be looked at, or raised, by a test that wants its traceback."""
        self._go_on()
        return self._error

    @property
    def now(self) -> datetime:
        """What the clock shows."""
        return self._task.start + timedelta(seconds=self._task.now)

    @property
    def waiting(self) -> Mapping[str, Any] | None:
        """What it waits for, as the protocol has it."""
        self._go_on()
        return self._task.wait

    @property
    def steps(self) -> list[str]:
        """The names of all that is stored, in order."""
        self._go_on()
        return list(self._task.steps)

    @property
    def orphaned(self) -> list[str]:
        """Steps of an older program that the last one did not visit."""
        self._go_on()
        return list(self._task.orphaned)

    @property
    def attempts(self) -> int:
        """How often the handler was called."""
        self._go_on()
        return self._played

    @property
    def children(self) -> dict[str, str]:
        """The children's names and statuses."""
        self._go_on()
        return {name: child.status for name, child in self._task.children.items()}

    def calls(self, step: str) -> int:
        """How often the step's function, or its stub, was called."""
        self._go_on()
        return len(self._plan.calls.get(step, ()))

    def arguments(self, step: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        """With what it was called: positional and named arguments of each call."""
        self._go_on()
        return list(self._plan.calls.get(step, ()))

    # ---- going on

    def _go_on(self) -> None:
        """As far as it goes without time passing."""
        task = self._task
        while task.status == "queued" and task.due <= task.now:
            self._played += 1
            if self._played > MOST_ATTEMPTS:
                raise AssertionError(f"the run does not end: {MOST_ATTEMPTS} attempts")
            played = play(task, self._plan)
            self._error = played.error
            if played.crashed:
                task.crash()
            elif played.ended is not None:
                task.complete(decode(getattr(played.ended, "body")))  # noqa: B009
            self._end_stubbed()
            task.look()
        left = [*self._plan.after, *(name for name, crashes in self._plan.within.items() if crashes)]
        if left and task.status in SETTLED:
            raise AssertionError(f"the run ended ({task.status}) before it came to the crash at {left[0]!r}")

    def _end_stubbed(self) -> None:
        """End the children that have a stub."""
        for child in self._task.children.values():
            stub = self._plan.stubs.get(child.name, self._plan.stubs.get(child.task["type"], Plan))
            if stub is Plan or child.status in SETTLED:
                continue
            try:
                if isinstance(stub, BaseException):
                    raise stub
                value = stub(child.task["input"]) if callable(stub) else stub
                child.status, child.result = "succeeded", decode(encode(value, f"the result of {child.name!r}"))
            except Exception as error:
                code = getattr(error, "code", None) or type(error).__name__
                child.status, child.failure = "failed", {"code": code, "message": str(error)}

    def _end_child(self, name: str, status: str, result: Any, failure: Mapping[str, Any] | None) -> None:
        self._go_on()
        child = self._task.children.get(name)
        if child is None:
            raise AssertionError(f"there is no child {name!r}; there are {list(self._task.children)}")
        if child.status in SETTLED:
            raise AssertionError(f"the child {name!r} has ended already: {child.status}")
        child.status, child.result, child.failure = status, result, failure
        self._task.look()

    def _check_unsettled(self, what: str) -> None:
        if self._task.status in SETTLED:
            raise AssertionError(f"{what} comes too late: the task is {self._task.status}")
