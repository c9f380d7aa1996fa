"""One step: what is stored of it decides, else it runs, and what comes of it is stored before anybody sees it.

run_step → stored for good: given again
         → open (started, no end known): its hook is asked, or the task is unknown
         → tried; a failure is stored, and final where no other try is to come
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from interlock.backoff import growing_delay
from interlock.errors import Cancelled, NotJson, Retryable, StepFailed, UnknownOutcome
from interlock.handler import EffectSafety
from interlock.json_text import decode, encode
from interlock.outcome import encode_error, encode_exception, read_text
from interlock.port import PortRefused, StepReport, Stopped, StoredStep
from interlock.reconciling import DidNotHappen, Happened, read_finding
from interlock.retry import Retry
from interlock.run import Call, Run, current_step
from interlock.suspending import Suspend

Hook = Callable[..., Any]


@dataclass(frozen=True)
class Step:
    """What is to be done under one name."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    effect_safety: EffectSafety
    retry: Retry | None = None
    reconcile: Hook | None = None

    @property
    def unsafe(self) -> bool:
        """Whether it must not be run twice."""
        return self.effect_safety == "non-idempotent"


async def run_step(run: Run, call: Call, step: Step) -> Any:
    """The step's value: stored by this attempt or an earlier one, in either case as JSON has it.

    Raises StepFailed for a failure that is final, UnknownOutcome where nobody knows, Retryable where a later attempt may
    do better.
    """
    with run.flight(call):
        stored = run.find(call, "step")
        if stored is not None and stored.final:
            return give(stored)
        if stored is not None and stored.is_open:
            found = await ask_hook(run, call.name, step)
            if isinstance(found, Happened):
                return await store_value(run, call.name, step, found.result, None)
        return await try_out(run, call.name, step, stored.tries if stored is not None else 0)


def give(stored: StoredStep) -> Any:
    """The value of a step that is stored for good. Raises StepFailed where it failed."""
    if stored.status == "succeeded":
        return stored.output
    error = stored.error or {}
    raise StepFailed(stored.name, str(error.get("code") or "ERROR"), str(error.get("message") or ""), error.get("details"))


async def try_out(run: Run, name: str, step: Step, tries: int) -> Any:
    """Run the function, again where its policy allows, and store what comes of it."""
    while True:
        if step.unsafe:  # a crash from here on leaves a trace: somebody has to find out what happened
            await store(run, StepReport(name, "started", step.effect_safety, step.reconcile is not None))
        tries += 1
        try:
            with inside(name):
                value = await run.hands.run_step(name, step.fn, step.args, step.kwargs)
        except (Suspend, Stopped, GeneratorExit):
            raise
        except BaseException as error:
            if not await take_error(run, name, step, tries, error):
                raise
        else:
            return await store_value(run, name, step, value, tries)


async def take_error(run: Run, name: str, step: Step, tries: int, error: BaseException) -> bool:
    """Store what an exception says of the step. True once it may be tried again; False where the exception is to go on."""
    if isinstance(error, UnknownOutcome):
        error.step = name
        run.fail(error)
    if isinstance(error, asyncio.CancelledError):
        if step.unsafe and run.attempt.stop_reason is None:  # a time limit of the handler's own, say
            mark_unknown(run, name, f"the step {name!r} was cancelled while it ran; what it did outside is not known")
        return False
    if isinstance(error, Cancelled):
        if step.unsafe and run.attempt.stop_reason == "cancel":  # nothing is left half done: the task may be cancelled
            text = "the step was cancelled, and left nothing half done"
            await store_failure(run, name, step, tries, encode_error("CANCELLED", text), final=True)
        return False
    if not isinstance(error, (Exception, SystemExit)):  # what ends the program, or unwinds it from outside
        if step.unsafe:
            mark_unknown(run, name, f"{type(error).__name__} went through the step {name!r}; what it did outside is not known")
        return False
    return await take_failure(run, name, step, tries, error)


async def take_failure(run: Run, name: str, step: Step, tries: int, error: BaseException) -> bool:
    """Store a failure. True once the step may be tried again; False where this attempt is to end, and a later one tries.

    Raises StepFailed where the failure is final.
    """
    policy = step.retry
    on = policy.on if policy is not None else run.attempt.handler.retry.on if run.attempt.handler.retry is not None else ()
    transient = isinstance(error, (Retryable, *on)) or (policy is not None and not policy.on and isinstance(error, Exception))
    final = step.unsafe or not transient or (policy is not None and tries >= policy.max_attempts)
    stored = await store_failure(run, name, step, tries, encode_exception(error), final=final)
    if stored.final:
        try:
            give(stored)
        except StepFailed as failed:
            raise failed from error
    if policy is None:
        return False
    await run.hands.pause(pause_before(policy, tries, error))
    return True


def pause_before(policy: Retry, tries: int, error: BaseException) -> float:
    """Seconds before the next try, after so many."""
    if isinstance(error, Retryable) and error.after is not None:
        return max(0.0, error.after)
    delay = growing_delay(tries - 1, policy.initial_delay, policy.max_delay, policy.multiplier)
    return delay * (1 - random.random() * policy.jitter)


async def store(run: Run, report: StepReport) -> StoredStep:
    """Store; what is refused ends the run."""
    try:
        return await run.store(report)
    except PortRefused as refused:
        run.refuse(refused, f"the step {report.name!r} cannot be stored")


async def store_failure(run: Run, name: str, step: Step, tries: int | None, error: bytes, *, final: bool) -> StoredStep:
    """Store that a try failed; `error` is a JSON text."""
    return await store(run, StepReport(name, "failed", step.effect_safety, tries=tries, final=final, error=error))


async def store_value(run: Run, name: str, step: Step, value: Any, tries: int | None) -> Any:
    """Store what the step gave, and give it as every replay will see it. One that cannot be stored fails the step."""
    try:
        data = encode(value, f"the value of the step {name!r}")
    except NotJson as error:
        return await refuse_value(run, name, step, tries, "STEP_NOT_STORABLE", str(error))
    except BaseException as error:  # reading it may run code of the user's
        text = f"the value of the step {name!r} cannot be read: {type(error).__name__}: {read_text(error)}"
        return await refuse_value(run, name, step, tries, "STEP_NOT_STORABLE", text)
    if len(data) > run.value_bytes:
        text = (
            f"the value of the step {name!r} has {len(data)} bytes, more than the limit of {run.value_bytes}; store it "
            "elsewhere and return a reference"
        )
        return await refuse_value(run, name, step, tries, "PAYLOAD_TOO_LARGE", text)
    try:
        stored = await run.store(StepReport(name, "succeeded", step.effect_safety, tries=tries, final=True, output=data))
    except PortRefused as refused:
        if refused.status in (400, 413):  # this value: that it failed can be stored
            return await refuse_value(run, name, step, tries, refused.code, f"the value of the step {name!r}: {refused.message}")
        run.refuse(refused, f"the step {name!r} ran, and its value cannot be stored")
    # The first report wins: one that came before this tells what the step gave.
    return give(stored) if stored.duplicate else decode(data)


async def refuse_value(run: Run, name: str, step: Step, tries: int | None, code: str, text: str) -> Any:
    """Fail a step that ran, since its value cannot be stored: another run of it would be refused as well."""
    return give(await store_failure(run, name, step, tries, encode_error(code, text), final=True))


async def ask_hook(run: Run, name: str, step: Step) -> Happened | DidNotHappen:
    """What became of a step that was started and of which no end is known. Raises UnknownOutcome if nobody can say."""
    if step.reconcile is None:
        reason = f"the step {name!r} was started by an earlier attempt, and what it did outside is not known"
    else:
        try:
            with inside(name):
                found = read_finding(await run.hands.ask_hook(name, step.reconcile, step.args, step.kwargs))
        except (Retryable, Stopped, asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:  # a hook that exits has found nothing out
            reason = f"the reconcile hook of the step {name!r} failed: {type(error).__name__}: {read_text(error)}"
        else:
            if isinstance(found, (Happened, DidNotHappen)):
                return found
            reason = found.reason or f"the reconcile hook of the step {name!r} cannot tell what it did outside"
    raise mark_unknown(run, name, reason)


def mark_unknown(run: Run, name: str, reason: str) -> UnknownOutcome:
    """Let the run end as unknown, whatever the exception at hand becomes."""
    unknown = UnknownOutcome(reason, code="STEP_UNKNOWN", details={"step": name})
    unknown.step = name
    if run.fault is None:
        run.fault = unknown
    return unknown


@contextmanager
def inside(name: str) -> Iterator[None]:
    """Around a step's function: `effect_key` knows its name, and no other step may be called."""
    token = current_step.set(name)
    try:
        yield
    finally:
        current_step.reset(token)
