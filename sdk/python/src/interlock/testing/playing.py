"""One attempt of a driven run: the worker's own code around the handler, with a port that may die at a given place."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import re
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from interlock import clock
from interlock.attempt import Attempt, InputRefused
from interlock.context import TaskContext
from interlock.handling import call_async, call_sync
from interlock.hands import AsyncHands, Hands, SyncHands
from interlock.outcome import Outcome, Release, conclude_error, conclude_return, refuse_input
from interlock.port import ChildRequest, Page, StepReport, Stopped, StoredStep
from interlock.run import Run
from interlock.suspending import is_suspend
from interlock.testing.memory import MemoryTask
from interlock.threads import CallThreads

Result = TypeVar("Result")

OURS = (Exception, SystemExit, asyncio.CancelledError, Stopped)

_threads = CallThreads(16)


class Crash(BaseException):
    """The worker died here: nothing that the handler still does is stored."""


@dataclass
class Plan:
    """What a test asked for, and what it will ask about."""

    stubs: Mapping[str, Any] = field(default_factory=dict)
    findings: Mapping[str, Any] = field(default_factory=dict)
    after: list[str] = field(default_factory=list)  # steps and children after which the worker dies
    within: dict[str, list[bool]] = field(default_factory=dict)  # steps inside which it does; whether the effect happened
    calls: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = field(default_factory=dict)
    reached: dict[str, None] = field(default_factory=dict)  # steps and children that the run came to, in order
    used: set[str] = field(default_factory=set)  # stubs that stood for something
    theirs: BaseException | None = None  # what the test itself raised, from a step or a hook

    def find_stub(self, name: str) -> Any:
        """The stub of a step by its name, or by the one that it was numbered or keyed from; `Plan` itself where there is none."""
        for known in (name, re.sub(r"-\d+$", "", name), name.partition(":")[0]):
            if known in self.stubs:
                self.used.add(known)
                return self.stubs[known]
        return Plan


class MemoryPort:
    """The port of one attempt, alive until the worker dies."""

    def __init__(self, task: MemoryTask, plan: Plan, attempt: Attempt) -> None:
        self._task = task
        self._plan = plan
        self._attempt = attempt
        self.dead = False

    def die(self) -> Crash:
        """Nothing is stored from here on."""
        self.dead = True
        self._attempt.stop("stale")
        return Crash()

    def store_step(self, report: StepReport) -> StoredStep:
        """As Port.store_step."""
        self.check()
        self._plan.reached[report.name] = None
        stored = self._task.store_step(report)
        if stored.final:
            self._pass(report.name)
        return stored

    def spawn_child(self, request: ChildRequest) -> str:
        """As Port.spawn_child."""
        self.check()
        self._plan.reached[request.name] = None
        task_id = self._task.spawn_child(request)
        self._pass(request.name)
        return task_id

    def read_steps(self, cursor: str | None) -> Page:
        """As Port.read_steps."""
        self.check()
        return self._task.read_steps(cursor)

    def read_children(self, cursor: str | None) -> Page:
        """As Port.read_children."""
        self.check()
        return self._task.read_children(cursor)

    def check(self) -> None:
        """Raises Crash once the worker is dead."""
        if self.dead:
            raise Crash

    def _pass(self, name: str) -> None:
        if name in self._plan.after:
            self._plan.after.remove(name)
            raise self.die()


class DriveHands:
    """Hands that count, take stubs, die inside a step, and move the virtual clock in place of waiting."""

    def __init__(self, inner: Hands, port: MemoryPort, task: MemoryTask, plan: Plan) -> None:
        self._inner = inner
        self._port = port
        self._task = task
        self._plan = plan
        self._is_async = isinstance(inner, AsyncHands)

    async def call(self, call: Callable[[], Result]) -> Result:
        """As Hands.call."""
        if self._is_async:
            await asyncio.sleep(0)  # others may run meanwhile, as they do beside a call of the service
        return call()

    async def run_step(self, name: str, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """As Hands.run_step."""
        self._port.check()
        self._plan.reached[name] = None
        self._plan.calls.setdefault(name, []).append((tuple(args), dict(kwargs)))
        stub = self._plan.find_stub(name)
        crashes = self._plan.within.get(name)
        if not crashes:
            return await self._do(name, fn, stub, args, kwargs)
        if crashes.pop(0):
            with contextlib.suppress(Exception):  # whatever came of it, nobody is told
                await self._do(name, fn, stub, args, kwargs)
        raise self._port.die()

    async def ask_hook(self, name: str, hook: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """As Hands.ask_hook."""
        if name in self._plan.findings:
            return self._plan.findings[name]
        with self._watch():
            return await self._inner.ask_hook(name, hook, args, kwargs)

    async def pause(self, seconds: float) -> None:
        """As Hands.pause."""
        self._task.now += seconds

    async def _do(self, name: str, fn: Callable[..., Any], stub: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        with self._watch():
            if stub is Plan:
                return await self._inner.run_step(name, fn, args, kwargs)
            if isinstance(stub, BaseException) or (inspect.isclass(stub) and issubclass(stub, BaseException)):
                raise stub
            return await self._inner.run_step(name, stub, args, kwargs) if callable(stub) else stub

    @contextlib.contextmanager
    def _watch(self) -> Iterator[None]:
        """What is no Exception and nothing of ours is the test's own, whatever the run makes of it: pytest.fail, a Ctrl-C."""
        try:
            yield
        except BaseException as error:
            if not (isinstance(error, (*OURS, GeneratorExit, Crash)) or is_suspend(error)):
                self._plan.theirs = error
            raise


@dataclass
class Played:
    """How one attempt went. `error` is what came out of the handler."""

    crashed: bool
    ended: Outcome | Release | None = None
    error: BaseException | None = None


def play(task: MemoryTask, plan: Plan) -> Played:
    """Run one attempt of a task that is due."""
    now = clock.now()
    attempt = Attempt(task.claim(), task.handler, now, now, task.instant())
    port = MemoryPort(task, plan, attempt)

    def open_run(attempt: Attempt, owner: Any) -> Run:
        inner: Hands = AsyncHands(_threads, _threads) if attempt.handler.is_async else SyncHands(attempt)
        return Run(attempt, port, DriveHands(inner, port, task, plan), owner)

    attempt.context = TaskContext(attempt, "drive", lambda: None, open_run)
    attempt.started = True
    ended: Outcome | Release
    raised: BaseException | None = None
    try:
        value = run_alone(call_async(attempt)) if attempt.handler.is_async else contextvars.copy_context().run(call_sync, attempt)
    except Crash:
        return Played(True)
    except InputRefused as refused:
        ended = refuse_input(attempt, refused.reason)
    except BaseException as error:
        theirs, plan.theirs = plan.theirs, None
        if theirs is not None:
            raise theirs from None
        if not (isinstance(error, OURS) or is_suspend(error)):
            raise
        raised = error
        ended = conclude_error(attempt, error)
    else:
        ended = conclude_return(attempt, value)
    return Played(True) if port.dead else Played(False, ended, raised)


def run_alone(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """The result of a coroutine, run on a loop of its own; in a thread of its own where a loop runs here already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run_on_loop(coroutine)
    found: list[tuple[bool, Any]] = []

    def work() -> None:
        try:
            found.append((True, run_on_loop(coroutine)))
        except BaseException as error:
            found.append((False, error))

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(work,), name="interlock-drive", daemon=True)
    thread.start()
    thread.join()
    done, value = found[0]
    if not done:
        raise value
    result: Result = value
    return result


def run_on_loop(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """The result of a coroutine; nothing that it left behind goes on."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
