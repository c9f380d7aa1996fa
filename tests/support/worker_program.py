"""A worker process for the tests that kill things. It leaves files in a folder, so that a test can see what ran and decide when it ends.

worker_program.py FOLDER SLOTS

ran.log             a line for each execution: type, task id, attempt number
hold-<task id>      made when a held handler starts
release-<task id>   made by the test: the held handler returns
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from interlock import Retry, Retryable, TaskContext, TaskWorker

folder = Path(sys.argv[1])
worker = TaskWorker(worker_id="chaos", max_concurrent=int(sys.argv[2]), spool=folder / "spool", drain_timeout=1)


def note(ctx: TaskContext) -> None:
    """One line, written whole: several processes may share the file."""
    line = f"{ctx.type} {ctx.task_id} {ctx.attempt}\n"
    fd = os.open(folder / "ran.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, line.encode())
    os.close(fd)


def hold(ctx: TaskContext) -> str:
    note(ctx)
    (folder / f"hold-{ctx.task_id}").touch()
    while not (folder / f"release-{ctx.task_id}").exists() and not ctx.cancelled:
        time.sleep(0.02)
    return f"attempt {ctx.attempt}"


@worker.handle("chaos/quick", effect_safety="pure")
def quick(value: Any, ctx: TaskContext) -> Any:
    note(ctx)
    return value


@worker.handle("chaos/held", effect_safety="pure", retry=Retry(max_attempts=5, initial_delay=0.5, jitter=0))
def held(value: Any, ctx: TaskContext) -> str:
    return hold(ctx)


@worker.handle("chaos/charge", effect_safety="non-idempotent", on_lease_doubt="finish")
def charge(value: Any, ctx: TaskContext) -> str:
    return hold(ctx)


@worker.handle("chaos/again", effect_safety="pure")
def again(value: Any, ctx: TaskContext) -> str:
    note(ctx)
    if ctx.attempt == 1:
        raise Retryable("once more", after=1)
    return f"attempt {ctx.attempt}"


if __name__ == "__main__":
    worker.run()
