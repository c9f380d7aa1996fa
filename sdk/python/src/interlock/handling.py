"""Calling a handler, sync or async: what is to be resumed first, and nothing left running behind it.

call_sync, call_async → steps beyond the claim, the handler's own reconcile hook → the handler → its steps on their way end
                      → judge: what the handler made of an exception is not always the last word
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping
from typing import Any

from interlock import clock
from interlock.attempt import Attempt, InputRefused
from interlock.errors import Retryable, RunError, UnknownOutcome
from interlock.hands import run_now
from interlock.outcome import read_text
from interlock.port import PortRefused, Stopped
from interlock.reconciling import DidNotHappen, Happened, read_finding
from interlock.run import Run
from interlock.steps import inside
from interlock.suspending import Suspend, is_suspend

CANCEL_SECONDS = 2.0
"""Seconds that tasks of a handler which suspends have to end, once they are cancelled."""


def call_sync(attempt: Attempt) -> Any:
    """What a sync handler gives. Raises what it raises, or what its run makes of that."""
    context = attempt.context
    assert context is not None
    context.owner = threading.get_ident()
    try:
        if resumes(attempt.claim):
            found = run_now(prepare(attempt, context.run))
            if found is not None:
                return found.result
        enter(attempt)
        value = attempt.handler.fn(attempt.read_input(), context)
    except BaseException as error:
        if attempt.run is None:
            raise
        settle_sync(attempt.run)
        raise_judged(attempt.run, error)
        raise
    if attempt.run is not None:
        settle_sync(attempt.run)
        check_return(attempt.run)
    return value


async def call_async(attempt: Attempt) -> Any:
    """As call_sync, for an async handler, within its task."""
    context = attempt.context
    assert context is not None
    context.owner = asyncio.current_task()
    try:
        if resumes(attempt.claim):
            found = await prepare(attempt, context.run)
            if found is not None:
                return found.result
        enter(attempt)
        value = await attempt.handler.fn(attempt.read_input(), context)
    except BaseException as error:
        if attempt.run is None:
            raise
        await settle_async(attempt.run)
        raise_judged(attempt.run, error)
        raise
    if attempt.run is not None:
        await settle_async(attempt.run)
        check_return(attempt.run)
    return value


def resumes(claim: Mapping[str, Any]) -> bool:
    """Whether there is anything to look at before the handler runs."""
    return bool(claim.get("steps") or claim.get("stepsCursor") or claim.get("reconcile"))


def enter(attempt: Attempt) -> None:
    """From here on it is the handler that runs."""
    if attempt.run is not None:
        attempt.run.entered = True


async def prepare(attempt: Attempt, run: Run) -> Happened | None:
    """Load what did not fit into the claim, and ask what became of an earlier attempt; a result if that did it all.

    Raises UnknownOutcome where nobody can say, Retryable where the hook asks to be asked later.
    """
    run.entered = False
    try:
        await run.load()
    except PortRefused as refused:
        raise RunError(refused.code, f"the stored steps cannot be read: {refused.message}") from None
    told = attempt.claim.get("reconcile")
    if not isinstance(told, Mapping):
        return None
    hook = attempt.handler.reconcile
    if hook is None:
        reason = "an earlier attempt may have done it, and the handler has no reconcile hook that could find out"
    else:
        value = attempt.read_input()
        try:
            with inside("reconcile"):
                found = read_finding(await run.hands.ask_hook("", hook, (value, attempt.context), {}))
        except (Retryable, UnknownOutcome, InputRefused, Stopped, asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:  # one that exits has found nothing out
            reason = f"the reconcile hook failed: {type(error).__name__}: {read_text(error)}"
        else:
            if isinstance(found, Happened):
                return found
            if isinstance(found, DidNotHappen):
                return None
            reason = found.reason or "the reconcile hook cannot tell whether it happened"
    raise UnknownOutcome(
        reason, code="NOT_RECONCILED", details={"attemptId": told.get("attemptId"), "reason": told.get("reason")}
    )


def settle_sync(run: Run) -> None:
    """Wait for steps that other threads of the handler still run, unless the attempt is to stop; store what is due."""
    if run.flying:
        begun = clock.now()
        while not run.wait_idle(0.2) and run.attempt.stop_reason is None:
            pass
        run.lingered = clock.now() - begun
    if run.wait is not None and run.attempt.stop_reason != "stale":
        with contextlib.suppress(PortRefused, Stopped):
            run_now(run.store_marks())


async def settle_async(run: Run) -> None:
    """Wait for steps that other tasks of the handler still run, then cancel those tasks: the handler has ended."""
    with contextlib.suppress(asyncio.CancelledError):  # the attempt is to stop: what is on its way is left
        if run.flying:
            begun = clock.now()
            await wait_idle(run)
            run.lingered = clock.now() - begun
        if run.wait is not None and run.attempt.stop_reason != "stale":
            with contextlib.suppress(PortRefused, Stopped):
                await run.store_marks()
        left = {task for task in run.tasks if not task.done() and task is not asyncio.current_task()}
        if left:
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=CANCEL_SECONDS)


async def wait_idle(run: Run) -> None:
    """Wait until no call of the run is on its way."""
    loop = asyncio.get_running_loop()
    idle = asyncio.Event()

    def tell() -> None:
        loop.call_soon_threadsafe(idle.set)

    run.tell_idle(tell)
    try:
        while run.flying:
            await idle.wait()
            idle.clear()
    finally:
        run.tell_idle(None)


def check_return(run: Run) -> None:
    """Raise what a handler that returned has ended as all the same."""
    left = run.never_begun()
    if run.fault is not None:
        raise run.fault
    if run.wait is not None:
        raise swallowed(run)
    if left:
        names = ", ".join(map(repr, left[:5]))
        raise RunError("NOT_AWAITED", f"the handler returned before {names} had begun: a step, wait or child is awaited")
    if run.lingered:
        raise RunError("NOT_AWAITED", "the handler returned while steps of it still ran: a step, wait or child is awaited")


def raise_judged(run: Run, error: BaseException) -> None:
    """Raise what a handler that raised has ended as, where its own exception is not the last word."""
    run.never_begun()
    if run.attempt.stop_reason == "stale":
        return
    if run.fault is not None and error is not run.fault:
        raise run.fault from (None if is_suspend(error) else error)
    if run.wait is None:
        return
    if is_suspend(error):
        raise Suspend from None
    stopped = isinstance(error, (asyncio.CancelledError, Stopped))
    if run.suspended_by_owner and not stopped:
        raise swallowed(run) from error


def swallowed(run: Run) -> RunError:
    """The fault of a handler that went on while it was to wait."""
    name = run.wait["name"] if run.wait is not None else ""
    text = (
        f"the handler caught what unwinds it while it waits ({name!r}): let it pass, by `except Exception` in place of a bare "
        "`except:` or `except BaseException`, and by no `return` in a `finally`"
    )
    return RunError("SUSPEND_SWALLOWED", text)
