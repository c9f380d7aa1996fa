"""`scripts/dev --demo`: a worker process, a producer, two tasks, and what became of them.

A process beside the service that `scripts/dev` starts and stops: it knows the SDK, which the service never meets.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import httpx

import guard
from interlock import TaskProducer
from template import ROOT

EXAMPLES = ROOT / "sdk" / "python" / "examples"
WAIT_SECONDS, START_SECONDS = 60.0, 15.0


def main(dev_json: Path) -> int:
    signal.signal(signal.SIGTERM, _stop)
    info = json.loads(dev_json.read_text())
    folder = dev_json.parent / "demo"
    folder.mkdir(exist_ok=True)
    worker_log = folder / "worker.log"
    worker = guard.start(
        [sys.executable, str(EXAMPLES / "hello_worker.py")],
        output=os.open(worker_log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
        environment={
            **os.environ,
            "INTERLOCK_URL": info["serviceUrl"],
            "INTERLOCK_WORKER_KEY": info["keys"]["task-worker"],
            "XDG_STATE_HOME": str(folder),
        },
        cwd=ROOT,
        stop_plan=((signal.SIGTERM, 3.0), (signal.SIGKILL, 1.0)),
    )
    try:
        print(f"\nDemo: a worker runs as process {worker.pid}, with no port open; its log is {worker_log}", flush=True)
        wait_for_worker(info, worker)
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


def wait_for_worker(info: dict[str, Any], worker: guard.Guarded) -> None:
    """Until the worker has registered, or has ended: what is wrong then shows in the tasks."""
    headers = {"Authorization": f"Bearer {info['keys']['task-producer']}"}
    end = time.monotonic() + START_SECONDS
    with httpx.Client(base_url=info["serviceUrl"], headers=headers) as client:
        while worker.poll() is None and time.monotonic() < end:
            if client.get("/v1/workers/hello").status_code == 200:
                return
            time.sleep(0.05)


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
    cli = shlex.quote(str(ROOT / ".venv" / "bin" / "interlock"))
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
