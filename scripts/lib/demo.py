"""`scripts/dev --demo`: a worker process, a producer, two tasks, and what became of them.

A process beside the service that `scripts/dev` starts and stops: it knows the SDK, which the service never meets.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import guard
from interlock import TaskProducer
from template import ROOT

EXAMPLES = ROOT / "sdk" / "python" / "examples"
WAIT_SECONDS = 60.0


def main(dev_json: Path) -> int:
    signal.signal(signal.SIGTERM, _stop)
    info = json.loads(dev_json.read_text())
    worker = guard.start(
        [sys.executable, str(EXAMPLES / "hello_worker.py")],
        output=sys.stdout.fileno(),
        environment={
            **os.environ,
            "INTERLOCK_URL": info["serviceUrl"],
            "INTERLOCK_WORKER_KEY": info["keys"]["task-worker"],
            "XDG_STATE_HOME": str(dev_json.parent / "demo"),
        },
        cwd=ROOT,
        stop_plan=((signal.SIGTERM, 3.0), (signal.SIGKILL, 1.0)),
    )
    try:
        print(f"\nDemo: a worker runs as process {worker.pid}; it has opened no port.", flush=True)
        failed = [title for title, type_name, value in tasks() if not show(info, title, type_name, value)]
        print_next(info)
        if failed:
            print(f"The demo FAILED: {', '.join(failed)}; see above. The service goes on.", flush=True)
        with contextlib.suppress(Stopped):
            signal.pause()
        return 1 if failed else 0
    except Stopped:
        return 0  # before it had ended: nothing has failed
    finally:
        worker.stop()


class Stopped(BaseException):
    """The host told us to end."""


def _stop(_signal: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Stopped


def tasks() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        ("The first task", "demo/hello", {"name": "Ada"}),
        ("Real work on a real file", "demo/text-statistics", {"path": "README.md"}),
    ]


def show(info: dict[str, Any], title: str, type_name: str, value: dict[str, Any]) -> bool:
    """Run one task and print it; returns whether it succeeded."""
    print(f"\n{title}: {type_name} {json.dumps(value)}", flush=True)
    with TaskProducer(info["serviceUrl"], info["keys"]["task-producer"]) as producer:
        try:
            handle = producer.submit(type_name, 1, value)
            task = handle.wait(timeout=WAIT_SECONDS)
        except Exception as error:
            print(f"  {type(error).__name__}: {error}", flush=True)
            return False
        print(f"  id       {task.id}")
        print(f"  status   {task.status}")
        print(f"  result   {json.dumps(task.result, ensure_ascii=False)}")
        if task.failure:
            print(f"  failure  {task.failure}")
        print("  journal")
        for event in handle.journal():
            print(f"    {event.seq}  {event.at:%H:%M:%S.%f}  {event.kind}")
        sys.stdout.flush()
        return task.status == "succeeded"


def print_next(info: dict[str, Any]) -> None:
    cli = ROOT / ".venv" / "bin" / "interlock"
    print(
        f"""
Now type, in another terminal:

  export INTERLOCK_URL={info["serviceUrl"]}
  export INTERLOCK_PRODUCER_KEY={info["keys"]["task-producer"]}
  {cli} tasks submit demo/hello --input '{{"name": "Grace"}}' --wait
  {cli} tasks list

Ctrl-C here stops the worker, the service and the database.""",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
