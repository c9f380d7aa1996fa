"""`interlock.testing`: what a user's test sees of crashes, reconciling and settling; and random programs, interrupted anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import interlock
import interlock.testing
from interlock import CannotTell, DidNotHappen, Happened, Retry, Retryable, TaskContext, TaskWorker
from interlock.testing import Drive, drive

ACCOUNT = {"id": 7}


class Pay:
    """A payment service that a test can look into."""

    def __init__(self) -> None:
        self.charges: list[Any] = []
        self.asked: list[Any] = []
        self.answer: Any = None

    def charge(self, account: Any) -> str:
        self.charges.append(account)
        return f"charge-{len(self.charges)}"

    def find(self, account: Any) -> Any:
        self.asked.append(account)
        return self.answer


pay = Pay()


@pytest.fixture(autouse=True)
def fresh() -> None:
    pay.__init__()  # type: ignore[misc]


def create_in_crm(email: str) -> dict[str, Any]:
    raise AssertionError("a stub stands for this")


async def create(inp: Any, ctx: TaskContext) -> Any:
    account = await ctx.step("create", create_in_crm, inp["email"], effect_safety="idempotent", retry=Retry(3))
    await ctx.sleep(120)
    ok = await ctx.wait_for_signal("verified", timeout=86_400)
    kids = await ctx.gather(*[ctx.child("audio/transcribe", 1, c, name=c["id"]) for c in inp["clips"]])
    charge = await ctx.step("charge", pay.charge, account, effect_safety="non-idempotent", reconcile=pay.find)
    return {"ok": ok, "kids": kids, "charge": charge}


def crashed_inside(**options: Any) -> Drive:
    run = interlock.testing.drive(create, {"email": "a@b", "clips": []}, stubs={"create": ACCOUNT}, **options)
    run.crash_after("create")
    run.advance(120)
    run.signal("verified", True)
    run.crash_inside("charge")
    return run


def test_the_whole_story() -> None:
    run = crashed_inside()
    assert run.status == "outcome-unknown"  # the hook answers None, which tells nothing
    assert run.calls("create") == 1
    assert run.failure is not None
    assert run.failure.details == {"step": "charge"}
    assert "neither Happened(result)" in run.failure.message
    assert pay.charges == pay.asked == [ACCOUNT]


@pytest.mark.parametrize(("answer", "status", "charge", "charges"), [
    (Happened("charge-1"), "succeeded", "charge-1", 1),
    (DidNotHappen(), "succeeded", "charge-2", 2),
    (DidNotHappen, "succeeded", "charge-2", 2),
    (CannotTell("they are down"), "outcome-unknown", None, 1),
])  # fmt: skip
@pytest.mark.parametrize("stubbed", [False, True])
def test_what_the_hook_finds_decides(answer: Any, status: str, charge: Any, charges: int, stubbed: bool) -> None:
    pay.answer = answer
    run = crashed_inside(reconciles={"charge": answer} if stubbed else None)
    assert run.status == status
    assert len(pay.charges) == charges
    assert len(pay.asked) == (0 if stubbed else 1)
    if status == "succeeded":
        assert run.result == {"ok": True, "kids": [], "charge": charge}
    else:
        assert run.failure is not None
        assert run.failure.message == "they are down"


def test_a_hook_that_fails_cannot_tell_and_one_that_asks_for_time_gets_it() -> None:
    def hook() -> Any:
        raise answers.pop(0)

    def handler(inp: Any, ctx: TaskContext) -> Any:
        return ctx.step("charge", lambda: "charged", effect_safety="non-idempotent", reconcile=hook)

    answers: list[Exception] = [Retryable("busy", after=30), OSError("down")]
    run = drive(handler)
    run.crash_inside("charge", effect=False)
    assert run.status == "queued"
    run.advance(30)
    assert run.status == "outcome-unknown"
    assert run.failure is not None
    assert "OSError: down" in run.failure.message


@pytest.mark.parametrize(("how", "result", "status", "value"), [
    ("succeeded", "by hand", "succeeded", "by hand"), ("requeue", None, "succeeded", "charged"), ("failed", None, "failed", None),
])  # fmt: skip
def test_without_a_hook_a_person_settles_the_step(how: Any, result: Any, status: str, value: Any) -> None:
    run = drive(lambda inp, ctx: ctx.step("charge", lambda: "charged", effect_safety="non-idempotent"))
    run.crash_inside("charge")
    assert run.status == "outcome-unknown"
    assert run.failure is not None
    assert (run.failure.code, run.failure.details) == ("LEASE_EXPIRED", {"step": "charge"})
    run.resolve(how, step="charge", result=result)
    assert (run.status, run.result) == (status, value)


def test_a_limit_of_time_inside_an_unsafe_step_is_unknown() -> None:
    async def handler(inp: Any, ctx: TaskContext) -> Any:
        try:
            await asyncio.wait_for(ctx.step("send", asyncio.sleep, 60, effect_safety="non-idempotent"), 0.01)
        except TimeoutError:
            return "gave up"

    run = drive(handler)
    assert run.status == "outcome-unknown"
    assert run.failure is not None
    assert run.failure.details == {"step": "send"}


# ---- whole handlers


def find_mail(inp: Any, ctx: TaskContext) -> Any:
    return inp["found"]


@pytest.mark.parametrize(("found", "status", "result", "sent"), [
    (Happened({"id": 1}), "succeeded", {"id": 1}, 1), (DidNotHappen(), "succeeded", {"id": 2}, 2),
    (CannotTell(), "outcome-unknown", None, 1),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_handlers_own_hook_is_asked_before_it_runs(found: Any, status: str, result: Any, sent: int, kind: str) -> None:
    count: list[int] = []

    def send(inp: Any, ctx: TaskContext) -> Any:
        count.append(1)
        ctx.step("note", lambda: 1, effect_safety="pure")
        return {"id": len(count)}

    async def send_async(inp: Any, ctx: TaskContext) -> Any:
        count.append(1)
        await ctx.step("note", lambda: 1, effect_safety="pure")
        return {"id": len(count)}

    run = drive(send if kind == "sync" else send_async, {}, effect_safety="non-idempotent", reconcile=lambda inp, ctx: found)
    run.crash_after("note")
    assert (run.status, run.result, len(count)) == (status, result, sent)


@pytest.mark.parametrize(("tries", "status", "sent"), [(1, "succeeded", 1), (9, "outcome-unknown", 1)])
def test_a_hook_that_asks_to_be_asked_later_is_asked_before_the_handler_runs_again(tries: int, status: str, sent: int) -> None:
    asked: list[int] = []
    count: list[int] = []

    def send(inp: Any, ctx: TaskContext) -> Any:
        count.append(1)
        ctx.step("note", lambda: 1, effect_safety="pure")

    def find(inp: Any, ctx: TaskContext) -> Any:
        asked.append(1)
        if len(asked) <= tries:
            raise Retryable("the bank is shut")
        return Happened("found")

    run = drive(send, {}, effect_safety="non-idempotent", reconcile=find, retry=Retry(4, initial_delay=0))
    run.crash_after("note")
    run.advance(60)
    assert (run.status, len(count), len(asked)) == (status, sent, min(tries + 1, 3))


def test_how_a_handler_was_declared_counts() -> None:
    worker = TaskWorker(worker_id="kit")

    @worker.handle("mail/send", 1, effect_safety="non-idempotent", reconcile=lambda inp, ctx: Happened("sent"))
    def send(inp: Any, ctx: TaskContext) -> Any:
        ctx.step("note", lambda: 1, effect_safety="pure")

    run = drive(send)
    run.crash_after("note")
    assert run.result == "sent"
    assert worker._handlers["mail/send", 1].to_claim(None)["reconciles"] is True
    assert worker._handlers["mail/send", 1].to_registration()["reconciles"] is True


# ---- the kit itself


def test_a_crash_that_never_comes_is_the_tests_fault() -> None:
    run = drive(lambda inp, ctx: ctx.step("a", lambda: 1))
    run.crash_after("b")
    with pytest.raises(AssertionError, match="before it came to the crash at 'b'"):
        assert run.status


def test_signals_and_children_that_cannot_be_are_the_tests_fault() -> None:
    run = drive(lambda inp, ctx: 1)
    with pytest.raises(AssertionError, match="comes too late"):
        run.signal("x")
    with pytest.raises(AssertionError, match="no child"):
        run.finish_child("x")


def test_a_failed_assertion_in_a_stub_is_the_tests() -> None:
    run = drive(lambda inp, ctx: ctx.step("a", lambda: 1), stubs={"a": lambda: pytest.fail("seen")})
    with pytest.raises(pytest.fail.Exception, match="seen"):
        assert run.status

    def unsafe(inp: Any, ctx: TaskContext) -> Any:
        return ctx.step("a", lambda: 1, effect_safety="non-idempotent", reconcile=lambda: pytest.fail("asked"))

    run = drive(unsafe, stubs={"a": lambda: pytest.fail("seen")})
    with pytest.raises(pytest.fail.Exception, match="seen"):
        assert run.status
    run = drive(unsafe)
    run.crash_inside("a")
    with pytest.raises(pytest.fail.Exception, match="asked"):
        assert run.status


async def test_it_works_inside_a_running_loop() -> None:
    run = drive(create, {"email": "x", "clips": [{"id": "c1"}]}, stubs={"create": ACCOUNT, "charge": "stubbed"})
    run.advance(120)
    run.signal("verified")
    run.finish_child("c1", {"text": "hello"})
    assert run.result == {"ok": None, "kids": [{"text": "hello"}], "charge": "stubbed"}
    assert run.arguments("charge") == [((ACCOUNT,), {})]


def test_a_stub_stands_for_repeats_and_keys_of_its_name_and_for_no_other() -> None:
    def handler(inp: Any, ctx: TaskContext) -> Any:
        names = [("poll", None), ("poll", None), ("poll", "k"), ("poll-mail", None)]
        return [ctx.step(name, lambda: "real", key=key) for name, key in names]

    assert drive(handler, stubs={"poll": "stub"}).result == ["stub", "stub", "stub", "real"]
    assert drive(handler, stubs={"poll": "stub", "poll-2": "second"}).result == ["stub", "second", "stub", "real"]


def test_crashes_cost_attempts() -> None:
    run = drive(lambda inp, ctx: ctx.step("a", lambda: 1), retry=Retry(3))
    for _ in range(3):
        run.crash_inside("a")
    assert run.status == "failed"
    assert run.failure is not None
    assert (run.failure.code, run.failure.details["last"]["code"]) == ("ATTEMPTS_EXHAUSTED", "LEASE_EXPIRED")


def test_a_waiting_run_is_cancelled() -> None:
    run = drive(lambda inp, ctx: ctx.sleep(60))
    run.cancel()
    assert run.status == "cancelled"


# ---- random programs

Program = list[tuple[str, int]]

leaf = st.tuples(st.sampled_from(["step", "pure", "fail", "sleep", "signal", "timeout", "children", "loop"]), st.integers(0, 3))
programs = st.lists(leaf, min_size=1, max_size=6)


def interpret(program: Program) -> Callable[[Any, TaskContext], Any]:
    """An async handler that does what the program says, and returns all that it saw."""

    async def handler(inp: Any, ctx: TaskContext) -> Any:
        seen: list[Any] = []
        for place, (kind, n) in enumerate(program):
            name = f"{kind}-{place}"
            if kind in ("step", "pure"):
                seen.append(await ctx.step(name, lambda n=n: (n, None), effect_safety="idempotent" if kind == "step" else "pure"))
            elif kind == "fail":
                try:
                    await ctx.step(name, int, "x" * (n + 1))
                except interlock.StepFailed as error:
                    seen.append([error.code, error.message])
            elif kind == "sleep":
                await ctx.sleep(n)
            elif kind == "signal":
                seen.append(await ctx.wait_for_signal(f"go-{place}"))
            elif kind == "timeout":
                seen.append(await ctx.wait_for_signal("never", timeout=n, default="default"))
            elif kind == "children":
                kids = [ctx.child("a/b", 1, [place, k]) for k in range(n)]
                seen.append(await ctx.gather(*kids, return_exceptions=True) if n % 2 else await ctx.gather(*kids))
            else:
                seen.append([await ctx.step("loop", lambda k=k: k) for k in range(n)])
                both = await asyncio.gather(*[ctx.step("beside", lambda k=k: k, key=f"{place}-{k}") for k in range(n)])
                seen.append(both)
        return seen

    return handler


def interpret_sync(program: Program) -> Callable[[Any, TaskContext], Any]:
    """The same, as a sync handler."""

    def handler(inp: Any, ctx: TaskContext) -> Any:
        seen: list[Any] = []
        for place, (kind, n) in enumerate(program):
            name = f"{kind}-{place}"
            if kind in ("step", "pure"):
                seen.append(ctx.step(name, lambda n=n: (n, None), effect_safety="idempotent" if kind == "step" else "pure"))
            elif kind == "fail":
                try:
                    ctx.step(name, int, "x" * (n + 1))
                except interlock.StepFailed as error:
                    seen.append([error.code, error.message])
            elif kind == "sleep":
                ctx.sleep(n)
            elif kind == "signal":
                seen.append(ctx.wait_for_signal(f"go-{place}"))
            elif kind == "timeout":
                seen.append(ctx.wait_for_signal("never", timeout=n, default="default"))
            elif kind == "children":
                kids = [ctx.child("a/b", 1, [place, k]) for k in range(n)]
                seen.append(ctx.gather(*kids, return_exceptions=bool(n % 2)))
            else:
                seen.append([ctx.step("loop", lambda k=k: k) for k in range(n)])
                seen.append([ctx.step("beside", lambda k=k: k, key=f"{place}-{k}") for k in range(n)])
        return seen

    return handler


def play_out(program: Program, interrupt: Callable[[Drive], None] | None = None, *, sync: bool = False) -> Drive:
    """The program's run to its end: each signal is sent when it is waited for, time passes when nothing else happens."""
    run = drive(
        (interpret_sync if sync else interpret)(program), stubs={"a/b": lambda value: value}, retry=Retry(1000), allow_unused=True
    )
    if interrupt is not None:
        interrupt(run)
    for _ in range(200):
        status = run.status
        if status != "waiting":
            break
        waiting = run.waiting or {}
        if str(waiting.get("signal", "")).startswith("go-"):
            run.signal(waiting["signal"], {"for": waiting["signal"]})
        else:
            run.advance(1)
    return run


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(programs, st.booleans(), st.data())
def test_an_interrupted_run_ends_as_an_uninterrupted_one(program: Program, sync: bool, data: st.DataObject) -> None:
    whole = play_out(program)
    assert whole.status == "succeeded", whole.failure
    steps = [name for name in whole.steps if whole.calls(name)]
    children = list(whole.children)
    after = data.draw(st.lists(st.sampled_from(steps + children), max_size=6, unique=True)) if steps + children else []
    within = data.draw(st.lists(st.tuples(st.sampled_from(steps), st.booleans()), max_size=6)) if steps else []

    def interrupt(run: Drive) -> None:
        run._task.page = 3
        for name in after:
            run.crash_after(name)
        for name, effect in within:
            run.crash_inside(name, effect=effect)

    run = play_out(program, interrupt, sync=sync)
    assert (run.status, run.result) == (whole.status, whole.result), run.failure
    assert run.steps == whole.steps or sorted(run.steps) == sorted(whole.steps)
    for name in steps:
        beside = name.startswith("beside")
        least = 1 if beside else 1 + sum(1 for other, _ in within if other == name)
        # One beside which another died may have been under way. All others run as often as they were cut off, and once more.
        most = run.attempts if beside else least
        assert least <= run.calls(name) <= most
    assert whole.attempts <= run.attempts <= whole.attempts + len(after) + len(within)
