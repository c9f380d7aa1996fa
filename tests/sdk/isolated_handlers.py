"""Handlers that run in processes of their own, where they are found by their names."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interlock import Cancelled, Retryable, TaskContext


@dataclass
class Pair:
    left: int
    right: int


def tell(inp: Any, ctx: TaskContext) -> dict[str, Any]:
    ctx.progress(50, "half")
    ctx.log.info("in %s", "a child", odd=object())
    return {
        "pid": os.getpid(),
        "input": inp,
        "key": ctx.effect_key("x"),
        "attempt": ctx.attempt,
        "repr": repr(ctx._attempt.claim),
    }


def add(pair: Pair, ctx: TaskContext) -> int:
    if pair.left < 0:
        raise Retryable("negative", after=3600)
    return pair.left + pair.right


def hold_everything(inp: Any, ctx: TaskContext) -> str:
    """Native code that keeps the interpreter's lock: nothing else of its process runs."""
    begin(inp)
    ctypes.PyDLL(None).usleep(int(inp["seconds"] * 1e6))
    return "done"


def crash_once(inp: Any, ctx: TaskContext) -> int:
    if not Path(inp["note"]).exists():
        begin(inp)
        os.kill(os.getpid(), signal.SIGKILL)
    return ctx.attempt


def stop_well(inp: Any, ctx: TaskContext) -> None:
    begin(inp)
    ctx.wait_for_cancel(60)
    raise Cancelled(f"stopped: {ctx.cancel_reason}")


def double(number: int) -> int:
    return number * 2


def have_children(inp: Any, ctx: TaskContext) -> list[int]:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        return pool.map(double, [1, 2, 3])


def begin(inp: Any) -> None:
    Path(inp["note"]).write_text(str(os.getpid()))


def spin(inp: Any, ctx: TaskContext) -> None:
    begin(inp)
    while True:
        time.sleep(0.01)


def fork(inp: Any, ctx: TaskContext) -> int:
    child = os.fork()
    if child == 0:
        ctx.progress(99)  # heard by nobody
        return -1
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def return_fault(inp: Any, ctx: TaskContext) -> Any:
    return Hostile(SystemExit)


class Hostile(dict[str, Any]):
    """A value that raises when it is looked at."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__(a=1)
        self.error = error

    def items(self) -> Any:
        raise self.error("no luck")
