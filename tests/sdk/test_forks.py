"""Handlers that fork: the child is no second worker, whatever it does."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from sdk.live import Live
from support.waiting import wait_until

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

HEAD = """
worker = TaskWorker(worker_id="forks", max_concurrent=2, spool=os.path.dirname(LOG) + "/spool", drain_timeout=5)

def come_out(inp):
    note("child")
    if inp == "raise": raise ValueError("raised in the child")
    if inp == "exit": raise SystemExit(3)
    return "the child's"
"""

SYNC = """
@worker.handle(TYPE, 1, effect_safety="idempotent")
def work(inp, ctx):
    child = os.fork()
    if child == 0:
        if inp != "stay": return come_out(inp)
        while True: time.sleep(1)
    return child if inp == "stay" else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""

ASYNC = """
@worker.handle(TYPE, 1, effect_safety="idempotent")
async def work(inp, ctx):
    if inp == "other":
        note("waits")
        while not os.path.exists(LOG + ".go"): await asyncio.sleep(0)
        note("other")
        return
    child = os.fork()
    if child == 0:
        if inp == "wait":
            open(LOG + ".go", "w").close()
            await asyncio.sleep(0)
            note("the loop went on")
        return come_out(inp)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


STEPS = """
def fork(inp):
    child = os.fork()
    if child == 0: return come_out(inp)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

@worker.handle(TYPE, 1, effect_safety="idempotent", isolation=ISOLATION)
def work(inp, ctx):
    if inp != "step": return ctx.step("fork", fork, inp)
    child = os.fork()
    if child == 0: ctx.step("once", lambda: note("stored by the child"))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
ASYNC_STEPS = (
    STEPS.replace(", isolation=ISOLATION", "").replace("def work", "async def work").replace("ctx.step", "await ctx.step")
)


def exit_codes(live: Live, *inputs: str) -> list[int]:
    return [live.wait(task_id).result for task_id in [live.submit(inp, lease=30) for inp in inputs]]


@pytest.mark.parametrize("program", [SYNC, ASYNC], ids=["sync", "async"])
def test_a_child_that_comes_out_of_its_handler_ends_there(live: Live, program: str) -> None:
    process = live.process(HEAD + program)
    inputs = ["return", "raise", "exit", "return"]
    assert exit_codes(live, *inputs) == [0, 1, 3, 0]
    assert process.notes() == ["child"] * 4
    assert "ValueError: raised in the child" in process.output.read_text()
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert process.notes() == [*["child"] * 4, "ended"]


@pytest.mark.parametrize("program", [
    STEPS.replace("ISOLATION", "'thread'"), STEPS.replace("ISOLATION", "'process'"), ASYNC_STEPS,
    ASYNC_STEPS.replace("def fork", "async def fork"),
], ids=["sync", "process", "async", "coroutine"])  # fmt: skip
def test_a_child_that_comes_out_of_a_step_stores_nothing_and_ends_there(live: Live, program: str) -> None:
    process = live.process(HEAD + program + "\nif __name__ != '__main__': worker.run = lambda: None\n")
    assert exit_codes(live, "return", "raise", "exit", "step") == [0, 1, 3, 1]
    assert process.notes().count("child") == 3
    assert "stored" not in process.notes()


def test_a_child_forked_on_the_loop_does_not_run_what_others_were_doing(live: Live) -> None:
    process = live.process(HEAD + ASYNC)
    other = live.submit("other", lease=30)
    process.wait_note("waits")
    assert exit_codes(live, "wait") == [0]
    assert live.wait(other).status == "succeeded"
    assert process.notes() == ["waits", "other"]


def test_a_child_that_lives_on_does_not_hold_the_spool(live: Live) -> None:
    process = live.process(HEAD + SYNC)
    child = live.wait(live.submit("stay", lease=30)).result
    try:
        process.kill()
        again = live.process(HEAD.replace("dirname(LOG)", f"dirname({str(process.log)!r})") + SYNC)
        assert exit_codes(live, "return") == [0], again.output.read_text()
        os.kill(child, 0)
    finally:  # It is ended by the signals that its parent had caught.
        os.kill(child, signal.SIGTERM)
    wait_until(lambda: ended(child))


def ended(pid: int) -> bool:
    """Whether the process is gone, or dead with nobody to ask how."""
    try:
        os.kill(pid, 0)
        told = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (ProcessLookupError, FileNotFoundError):
        return True
    return told.rpartition(")")[2].split()[0] == "Z"
