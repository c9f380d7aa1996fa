"""How a run does things: the same coroutines serve sync handlers, whose thread does each thing at once, and async ones.

run_now        → a coroutine that never waits, as a plain call
SyncHands      → in the handler's thread
AsyncHands     → on the handler's loop; what blocks, in threads beside it
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from interlock.attempt import Attempt
from interlock.forking import end_child
from interlock.port import Stopped
from interlock.threads import CallThreads, run_in

Result = TypeVar("Result")

STORE_GRACE = 1.5
"""Seconds that a call of the service still has when its handler is cancelled: a result at hand must not be lost by that."""


class Hands(Protocol):
    """Does what a run decides. `name` is the step's."""

    async def call(self, call: Callable[[], Result]) -> Result:
        """Make a blocking call of the port."""

    async def run_step(self, name: str, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a step's function."""

    async def ask_hook(self, name: str, hook: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Ask a reconcile hook; `name` is "" for the handler's own."""

    async def pause(self, seconds: float) -> None:
        """Wait between two tries. Raises Stopped (async: CancelledError) if the attempt is to stop."""


def run_now(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """The result of a coroutine that never waits, since its hands are SyncHands."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: Result = done.value
        return result
    finally:
        coroutine.close()
    raise RuntimeError("a call of a sync handler waited for a loop")


def is_coroutine_function(fn: Any) -> bool:
    """Whether calling it gives a coroutine."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
        getattr(fn, "__call__", None)  # noqa: B004 (asks what calling it gives, not whether it can be called)
    )


@contextlib.contextmanager
def same_process() -> Iterator[None]:
    """Around a function of the user's: a child that it forked, and that comes out of it as well, ends there.

    It would go on as the parent does, and store what it made of the step under the parent's lease.
    """
    pid = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() != pid:
            end_child(error)
        raise
    if os.getpid() != pid:
        end_child()


class SyncHands:
    """Everything in the handler's thread."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    async def call(self, call: Callable[[], Result]) -> Result:
        """As Hands.call."""
        return call()

    async def run_step(self, name: str, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ARG002
        """As Hands.run_step."""
        with same_process():
            return fn(*args, **kwargs)

    async def ask_hook(self, name: str, hook: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ARG002
        """As Hands.ask_hook."""
        with same_process():
            return hook(*args, **kwargs)

    async def pause(self, seconds: float) -> None:
        """As Hands.pause."""
        if self._attempt.wait_stop(seconds):
            raise Stopped(str(self._attempt.stop_reason))


class AsyncHands:
    """Coroutines on the handler's loop; sync functions and calls of the service in threads."""

    def __init__(self, calls: CallThreads, functions: CallThreads) -> None:
        self._calls = calls
        self._functions = functions

    async def call(self, call: Callable[[], Result]) -> Result:
        """As Hands.call. A cancelled handler waits a moment for the answer, since what is stored is not done again."""
        future = asyncio.ensure_future(run_in(self._calls, call))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if not future.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({future}, timeout=STORE_GRACE)
            drop(future)
            raise

    async def run_step(self, name: str, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ARG002
        """As Hands.run_step."""
        return await self._do(fn, args, kwargs)

    async def ask_hook(self, name: str, hook: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ARG002
        """As Hands.ask_hook."""
        return await self._do(hook, args, kwargs)

    async def pause(self, seconds: float) -> None:
        """As Hands.pause."""
        await asyncio.sleep(seconds)

    async def _do(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if is_coroutine_function(fn):
            with same_process():
                return await fn(*args, **kwargs)

        def call() -> Any:
            with same_process():
                return fn(*args, **kwargs)

        context = contextvars.copy_context()
        value = await run_in(self._functions, partial(context.run, call))
        return await value if inspect.isawaitable(value) else value


def drop(future: asyncio.Future[Any]) -> None:
    """Let go of a future: cancelled if it still runs, its exception looked at if it has one."""
    if not future.cancel() and not future.cancelled():
        future.exception()
