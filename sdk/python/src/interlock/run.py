"""What one attempt knows of its task's durable past, and the rules of its program: names, order, one way out.

A run is made when a handler first calls a step, a wait or a child, or when there is something to resume. Names are
allotted when the context is called (`allot`), so that a replay meets them in the same order. What must not be caught away
is kept: `fault` (the task fails, or is unknown, whatever the handler makes of the exception) and `wait` (it suspends).
"""

from __future__ import annotations

import asyncio
import os
import threading
import unicodedata
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, TypeVar

from interlock.attempt import Attempt
from interlock.errors import RunError, UnknownOutcome
from interlock.hands import Hands, run_now
from interlock.outcome import RESULT_BYTES
from interlock.port import Port, PortRefused, StepReport, StoredStep
from interlock.suspending import Suspend

Result = TypeVar("Result")

current_step: ContextVar[str | None] = ContextVar("interlock_step", default=None)
"""The step whose function or hook runs here."""


@dataclass
class Base:
    """A name as it was given, and what is known of its calls: how many, and which have not ended."""

    count: int = 0
    elsewhere: bool = False
    pending: set[Call] = field(default_factory=set)

    def is_ordered(self, at_once: bool) -> bool:
        """Whether the next call of it is known to come after the others, on every replay."""
        return not self.elsewhere and (at_once or not self.pending)


@dataclass(eq=False)
class Call:
    """One call of the context under a name of its own. `begun`: somebody has awaited it."""

    name: str
    base: Base
    begun: bool = False
    coroutine: Coroutine[Any, Any, Any] | None = None

    def finish(self) -> None:
        """It has ended, in whatever way."""
        self.base.pending.discard(self)


class Run:
    """The durable state of one attempt. `owner` is the thread (sync) or asyncio task that the handler runs in."""

    def __init__(self, attempt: Attempt, port: Port, hands: Hands, owner: Any, value_bytes: int = RESULT_BYTES) -> None:
        self.attempt = attempt
        self.port = port
        self.hands = hands
        self.owner = owner
        self.value_bytes = value_bytes
        self.is_async = attempt.handler.is_async
        self.steps: dict[str, StoredStep] = {}
        self.fault: BaseException | None = None
        self.wait: dict[str, Any] | None = None
        self.suspended_by_owner = False
        self.lingered = 0.0  # seconds that the wait was held back by steps that still ran
        self.entered = True  # the handler itself was called
        self.tasks: set[asyncio.Task[Any]] = set()  # tasks other than the handler's that called the context
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._idle_told: Callable[[], None] | None = None
        self._flying = 0
        self._bases: dict[str, Base] = {}
        self._names: set[str] = set()
        self._marks: dict[str, bool] = {}
        self._add(attempt.claim.get("steps") or ())

    # ---- the past

    async def load(self) -> None:
        """Read the steps that did not fit into the claim."""
        cursor = self.attempt.claim.get("stepsCursor")
        while cursor:
            page = await self.hands.call(partial(self.port.read_steps, cursor))
            self._add(page.items)
            cursor = page.cursor

    def _add(self, views: Any) -> None:
        for view in views:
            step = StoredStep.read(view)
            self.steps[step.name] = step

    def orphans(self) -> list[str]:
        """What is stored and was not visited: an older program's, if this one has come to its end."""
        if not self.entered:
            return []
        return [name for name in self.steps if name not in self._names and not name.startswith("patched:")]

    def find(self, call: Call, kind: str) -> StoredStep | None:
        """What is stored under the call's name. Raises RunError where that is of another kind."""
        stored = self.steps.get(call.name)
        if stored is not None and stored.kind != kind:
            text = f"{call.name!r} is stored as a {stored.kind}, and is now called as a {kind}: give it another name"
            self.fail(RunError("STEP_KIND_CHANGED", text))
        return stored

    def is_patched(self, name: str) -> bool:
        """Whether the run is to go the new way: unless it went past this place before the program knew it."""
        full = f"patched:{name}"
        self._refuse_child()
        with self._lock:
            self._refuse_late()
            known = self._marks.get(full)
            if known is not None:
                return known
            stored = self.steps.get(full)
            if stored is not None:
                new = bool(stored.output)
            else:
                new = all(step in self._names or step.startswith("patched:") for step in self.steps)
            self._marks[full] = new
            self._names.add(full)
            return new

    # ---- names

    def allot(self, base: str, key: str | None = None, *, at_once: bool = False) -> Call:
        """A name for one call. Raises RunError where a replay could give it to another call, ValueError for no name.

        `at_once`: several of one name may be on their way, as long as the handler's own thread or task calls them in order.
        """
        check_name(base)
        full = base if key is None else f"{base}:{check_name(key)}"
        check_name(full)
        self._refuse_child()
        elsewhere = self._find_place()
        inside = current_step.get()
        with self._lock:
            self._refuse_late()
            if inside is not None:
                self.fail(RunError("STEP_IN_STEP", f"{full!r} is called inside the step {inside!r}: a step holds no other"))
            known = self._bases.setdefault(full, Base())
            if known.count and key is not None:
                self.fail(RunError("REPEATED_NAME", f"{base!r} is called twice with the key {key!r}"))
            if known.count and (elsewhere or not known.is_ordered(at_once)):
                text = (
                    f"{base!r} is called again while another call of it runs, or from another thread or task: on a replay the "
                    "two could be taken for each other; give each a key (key=…) or a name of its own"
                )
                self.fail(RunError("REPEATED_NAME", text))
            name, number = full, known.count + 1
            while name in self._names or (number > 1 and name == full):
                name, number = f"{full}-{max(number, 2)}", max(number, 2) + 1
            call = Call(name, known)
            known.count += 1
            known.elsewhere = known.elsewhere or elsewhere
            known.pending.add(call)
            self._names.add(name)
            return call

    def _find_place(self) -> bool:
        """Whether this is called elsewhere than in the handler's own thread or task."""
        if not self.is_async:
            return bool(threading.get_ident() != self.owner)
        try:
            task = asyncio.current_task()
        except RuntimeError:
            raise RunError("WRONG_THREAD", "an async handler calls its context on its own loop, not in another thread") from None
        if task is not self.owner and task is not None:
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        return task is not self.owner

    def _refuse_child(self) -> None:
        """Nothing begins in a child that the handler forked. Called without the lock: a thread of the parent may hold it."""
        if os.getpid() != self.attempt.pid:
            raise RunError("WRONG_PROCESS", "a forked child calls its parent's context: the run and its lease are the parent's")

    def _refuse_late(self) -> None:
        """Nothing new begins once the run is to fail or to suspend."""
        if self.fault is not None:
            raise self.fault
        if self.wait is not None:
            if self._is_owner():
                self.suspended_by_owner = True
            raise Suspend

    def _is_owner(self) -> bool:
        if not self.is_async:
            return bool(threading.get_ident() == self.owner)
        return asyncio.current_task() is self.owner

    # ---- calls on their way

    def begin(self, call: Call, coroutine: Coroutine[Any, Any, Result]) -> Any:
        """The call's result, or for an async handler the coroutine that gives it."""
        if not self.is_async:
            return run_now(coroutine)
        call.coroutine = coroutine
        return coroutine

    def begin_lasting(self, call: Call, make: Callable[[], Coroutine[Any, Any, Result]]) -> Any:
        """As `begin`, for what is not cut off where the handler is only unwound for a wait: its effects are on their way."""
        return self.begin(call, make() if not self.is_async else self._last(call, make))

    async def _last(self, call: Call, make: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        call.begun = True
        inner = asyncio.ensure_future(make())
        try:
            return await asyncio.shield(inner)
        except asyncio.CancelledError:
            # A TaskGroup, say, cancels what runs beside a wait. Anything else that cancels a step means it.
            while not inner.done():
                if self.wait is None or self.attempt.stop_reason is not None:
                    inner.cancel()
                with suppress(asyncio.CancelledError):
                    await asyncio.wait({inner})
            if not inner.cancelled():
                inner.exception()
            raise
        finally:
            call.finish()

    @contextmanager
    def flight(self, call: Call) -> Iterator[None]:
        """Around what must have ended before the attempt does."""
        with self._lock:
            call.begun = True
            self._flying += 1
        try:
            yield
        finally:
            with self._lock:
                call.finish()
                self._flying -= 1
                if not self._flying:
                    self._idle.notify_all()
                    if self._idle_told is not None:
                        self._idle_told()

    @property
    def flying(self) -> int:
        """How many calls are on their way."""
        return self._flying

    def wait_idle(self, seconds: float) -> bool:
        """Wait, in a thread, until no call is on its way."""
        with self._lock:
            return self._idle.wait_for(lambda: not self._flying, seconds)

    def tell_idle(self, told: Callable[[], None] | None) -> None:
        """Call `told` whenever the last call on its way ends."""
        with self._lock:
            self._idle_told = told

    def never_begun(self) -> list[str]:
        """The names of calls that nobody awaited; they are closed."""
        with self._lock:
            left = [call for base in self._bases.values() for call in base.pending if not call.begun]
        for call in left:
            call.finish()
            if call.coroutine is not None:
                call.coroutine.close()
        return [call.name for call in left]

    # ---- what is stored

    async def store(self, report: StepReport) -> StoredStep:
        """Store what is told of a step, after the marks of the way that led there. Raises PortRefused."""
        await self.store_marks()
        stored = await self.hands.call(partial(self.port.store_step, report))
        self.steps[stored.name] = stored
        return stored

    async def store_marks(self) -> None:
        """Store the answers of `patched`, before anything that depends on them."""
        for name, new in list(self._marks.items()):
            if new and name not in self.steps:
                report = StepReport(name, "succeeded", self.attempt.handler.effect_safety, output=b"true", final=True)
                self.steps[name] = await self.hands.call(partial(self.port.store_step, report))

    # ---- ways out

    def fail(self, fault: RunError | UnknownOutcome) -> NoReturn:
        """End the run by this, whatever the handler does with it."""
        if self.fault is None:
            self.fault = fault
        raise fault

    def refuse(self, refused: PortRefused, what: str) -> NoReturn:
        """End the run since the service refuses."""
        self.fail(RunError(refused.code, f"{what}: {refused.message}", {"status": refused.status}))

    def suspend(self, wait: Mapping[str, Any]) -> NoReturn:
        """End the attempt until the wait is over. Raises RunError where the handler must not be run twice."""
        if self.attempt.handler.effect_safety == "non-idempotent":
            text = (
                f"a handler that is non-idempotent as a whole cannot wait ({wait['name']!r}): it would be run again from its start. "
                "Declare it pure or idempotent, and its unsafe parts as steps with effect_safety='non-idempotent'"
            )
            self.fail(RunError("WAIT_NOT_ALLOWED", text))
        with self._lock:
            if self.wait is None:
                self.wait = dict(wait)
            if self._is_owner():
                self.suspended_by_owner = True
        raise Suspend


def check_name(name: Any) -> str:
    """Raises ValueError for what is no name of a step, a signal or a key."""
    if (
        not isinstance(name, str)
        or not name.strip()
        or len(name) > 255
        or any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name)
    ):
        raise ValueError(f"a name is a text of 1 to 255 characters without control characters or lone surrogates, got {name!r}")
    return name
