"""`interlock.testing.drive` fails a test that asked for what the run never came to, and ends a run that has no end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from interlock import Happened, TaskContext
from interlock.testing import Drive, drive
from sdk.test_service_fixture import run_pytest

Arm = Callable[[Drive], None]


async def program(inp: Any, ctx: TaskContext) -> Any:
    await ctx.step("create", lambda: 1)
    (kid,) = await ctx.gather(ctx.child("a/b", 1, 1, name="kid"))
    await ctx.wait_for_signal("verified")
    return await ctx.step("charge", lambda: kid, effect_safety="non-idempotent", reconcile=lambda: Happened(2))


def run_program(arm: Arm, stubs: dict[str, Any] | None = None, **options: Any) -> Drive:
    run = drive(program, None, stubs={"a/b": 1, **(stubs or {})}, **options)
    arm(run)
    run.signal("verified")
    return run


MISSPELLED: list[tuple[str, Arm, dict[str, Any]]] = [
    ("the crash at 'craete'", lambda run: run.crash_after("craete"), {}),
    ("the crash at 'chrage'", lambda run: run.crash_inside("chrage"), {}),
    ("a wait for the signal 'verifed'", lambda run: run.signal("verifed"), {}),
    ("what the stub 'craete' stands for", lambda run: None, {"stubs": {"create": 7, "craete": 7}}),
    ("what the stub 'kidd' stands for", lambda run: None, {"stubs": {"kidd": 7}}),
    ("the step 'chrage' whose hook was to answer", lambda run: None, {"reconciles": {"chrage": Happened(1)}}),
]


@pytest.mark.parametrize(("said", "arm", "options"), MISSPELLED, ids=[said for said, _, _ in MISSPELLED])
def test_what_the_run_never_comes_to_is_told_with_what_it_came_to(said: str, arm: Arm, options: dict[str, Any]) -> None:
    with pytest.raises(AssertionError) as told:
        assert run_program(arm, **options).status
    assert f"the run ended (succeeded) before it came to {said}: " in str(told.value)
    assert "steps and children ['create', 'kid', 'charge'] and waited for the signals ['verified']" in str(told.value)


def test_what_was_asked_for_and_came_to_pass_is_not_told() -> None:
    def arm(run: Drive) -> None:
        run.crash_after("kid")
        run.crash_inside("charge")

    run = run_program(arm, stubs={"create": 1, "a/b": 2, "charge": 3}, reconciles={"charge": Happened(4)})
    assert run.result == 4


def test_a_stub_or_signal_that_may_be_left_over_is_said_to_be() -> None:
    assert run_program(lambda run: run.signal("early"), stubs={"other": 1}, allow_unused=True).status == "succeeded"
    # one that fails on the way came to no later stub, and nothing is wrong with that
    failed = drive(program, stubs={"create": ValueError("no"), "charge": 1})
    assert failed.status == "failed"


def leave_waiting(arm: Arm, error: type[Exception] | None = None) -> None:
    with drive(program) as run:
        arm(run)
        assert run.status == "waiting"
        if error is not None:
            raise error


@pytest.mark.parametrize(("said", "arm"), [(said, arm) for said, arm, _ in MISSPELLED[:3]], ids=["after", "inside", "signal"])
def test_a_run_that_is_left_waiting_is_looked_at_when_its_block_is_over(said: str, arm: Arm) -> None:
    with pytest.raises(AssertionError, match=f"the run was left waiting before it came to {said}: it came to"):
        leave_waiting(arm)
    with pytest.raises(ZeroDivisionError):  # the test's own failure is the one that is told
        leave_waiting(arm, ZeroDivisionError)


TEST = """
from interlock.testing import drive

def wait(inp, ctx):
    ctx.step("one", lambda: 1)
    ctx.wait_for_signal("go")

def test_misspelled():
    run = drive(wait)
    run.crash_after("onee")
    assert run.status == "waiting"

def test_right():
    run = drive(wait)
    run.crash_after("one")
    assert run.status == "waiting"

def test_fails_by_itself():
    run = drive(wait)
    run.crash_after("onee")
    assert run.status == "succeeded"

async def test_async():
    run = drive(wait)
    run.signal("gone")
    assert run.status == "waiting"
"""


@pytest.mark.slow
def test_the_plugin_looks_at_the_runs_of_each_test_that_passed(tmp_path: Path) -> None:
    told, _ = run_pytest(tmp_path, test=TEST, options="anyio_mode = auto").communicate(timeout=60)
    assert "3 failed, 1 passed" in told, told
    assert "left waiting before it came to the crash at 'onee': it came to the steps and children ['one']" in told
    assert "left waiting before it came to a wait for the signal 'gone'" in told
    assert "assert 'waiting' == 'succeeded'" in told


# ---- runs without an end


def sleep_on(inp: Any, ctx: TaskContext) -> None:
    while True:
        ctx.sleep(0)


def give_up_on(inp: Any, ctx: TaskContext) -> None:
    while True:
        ctx.wait_for_signal("never", timeout=0, default=None)


@pytest.mark.parametrize("endless", [sleep_on, give_up_on])
def test_a_run_that_waits_for_ever_without_waiting_is_told(endless: Callable[..., Any]) -> None:
    run = drive(endless, most_attempts=20)
    with pytest.raises(
        AssertionError,
        match=r"does not end: it was resumed more than 20 times \(most_attempts\), at last after '.+'; the clock shows 0",
    ):
        assert run.status


def test_a_run_that_ends_in_time_is_not() -> None:
    def handler(inp: Any, ctx: TaskContext) -> int:
        for _ in range(19):
            ctx.sleep(1)
        return 1

    run = drive(handler, most_attempts=20)
    run.advance(19)
    assert (run.status, run.attempts) == ("succeeded", 20)


def test_what_a_run_shows_of_itself_says_why_it_stands_still() -> None:
    run = drive(program)
    assert run.status == "waiting"
    assert "waiting={'name': 'gather', 'children': ['kid']" in repr(run)
    run.fail_child("kid", "Torn", "no sound")
    assert run.status == "failed"
    assert "waiting" not in repr(run)
    assert "failure={'code': " in repr(run)
