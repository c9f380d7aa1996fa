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

watched: list[Drive] | None = None
"""Where `interlock.testing.fixture` collects the runs of a test, to look at them when it is over."""


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
    most_attempts: int = 500,
    allow_unused: bool = False,
) -> Drive:
    """Run a handler, sync or async, as a worker would, against a service in memory.

    `stubs` stand for the functions of steps, by the steps' names, and for children, by name or type: a value, an exception
    to be raised, or a function that is called with the same arguments (a child's: with its input). A child without a stub
    ends when the test says so. `reconciles` are what the hooks find out, by the steps' names. How the handler was declared
    (`worker.handle`) counts here too; `effect_safety` (else idempotent), `retry` and `reconcile` say it for one that was not,
    or say it otherwise. `start` is what the clock shows at first (absent: now). A run that is resumed more than `most_attempts`
    times does not end, and is an AssertionError.

    What the test asks for must come to pass. A run that has ended is an AssertionError to look at where it never came to a
    crash, and one that succeeded where it never came to a stub, to a hook's answer, or to a wait for a signal that was sent
    (`allow_unused` lets these three pass). A run that has not ended is looked at when its `with` block or, with
    `interlock.testing.fixture`, its test is over.

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
    run = Drive(task, Plan(stubs or {}, reconciles or {}), most_attempts, allow_unused)
    if watched is not None:
        watched.append(run)
    return run


class Drive:
    """A driven run. What is read (`status`, `result`, `calls`, …) is read once the run has gone as far as it can."""

    def __init__(self, task: MemoryTask, plan: Plan, most_attempts: int, allow_unused: bool) -> None:
        self._task = task
        self._plan = plan
        self._most_attempts = most_attempts
        self._allow_unused = allow_unused
        self._sent: list[str] = []  # names of signals
        self._told = False  # that it never came to something
        self._error: BaseException | None = None
        self._played = 0

    def __repr__(self) -> str:
        ended = f", failure={self._task.failure!r}" if self._task.failure else ""
        waits = f", waiting={dict(self._task.wait)!r}" if self._task.wait else ""
        return f"Drive(status={self._task.status!r}{waits}{ended}, steps={list(self._task.steps)!r})"

    def __enter__(self) -> Drive:  # noqa: PYI034 (typing.Self is newer than Python 3.10)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.check_reached()

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
        self._sent.append(name)
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

    def check_reached(self) -> None:
        """Raises AssertionError for a crash, or a signal, that the test asked for and that the run has not come to.

        For a run that the test is done with though it has not ended: one that has is looked at whenever something is read.
        Says nothing of a run of which nothing was ever read, and nothing twice.
        """
        if not self._played or self._told:
            return
        self._go_on()
        if self._task.status not in SETTLED:
            signals = [] if self._allow_unused else self._unheard()
            self._check(f"the run was left {self._task.status}", [*self._unmet(), *signals])

    # ---- going on

    def _go_on(self) -> None:
        """As far as it goes without time passing."""
        task = self._task
        while task.status == "queued" and task.due <= task.now:
            self._played += 1
            if self._played > self._most_attempts:
                raise AssertionError(
                    f"the run does not end: it was resumed more than {self._most_attempts} times (most_attempts), at last after "
                    f"{next(reversed(task.steps), None)!r}; the clock shows {task.now} s"
                )
            played = play(task, self._plan)
            self._error = played.error
            if played.crashed:
                task.crash()
            elif played.ended is not None:
                task.complete(decode(getattr(played.ended, "body")))  # noqa: B009
            self._end_stubbed()
            task.look()
        if task.status in SETTLED:
            unused = self._unused() if task.status == "succeeded" and not self._allow_unused else []
            self._check(f"the run ended ({task.status})", [*self._unmet(), *unused])

    def _unmet(self) -> list[str]:
        plan = self._plan
        return [f"the crash at {name!r}" for name in (*plan.after, *(name for name, crashes in plan.within.items() if crashes))]

    def _unheard(self) -> list[str]:
        return [f"a wait for the signal {name!r}" for name in dict.fromkeys(self._sent) if name not in self._task.waited_for]

    def _unused(self) -> list[str]:
        plan = self._plan
        stubs = [f"what the stub {name!r} stands for" for name in plan.stubs if name not in plan.used]
        findings = [f"the step {name!r} whose hook was to answer" for name in plan.findings if name not in plan.reached]
        return [*stubs, *findings, *self._unheard()]

    def _check(self, ended: str, missing: list[str]) -> None:
        if missing:
            self._told = True
            steps, signals = list(self._plan.reached), list(self._task.waited_for)
            raise AssertionError(
                f"{ended} before it came to {', '.join(missing)}: it came to the steps and children {steps}"
                f" and waited for the signals {signals}"
            )

    def _end_stubbed(self) -> None:
        """End the children that have a stub."""
        for child in self._task.children.values():
            known = next((name for name in (child.name, child.task["type"]) if name in self._plan.stubs), "")
            self._plan.used.add(known)
            stub = self._plan.stubs.get(known, Plan)
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
