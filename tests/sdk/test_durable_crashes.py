"""Durable runs whose worker is killed between and inside its steps, on the real service; effects are counted in a file."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from interlock import Happened, Operator, Retry, TaskContext, TaskProducer, TaskWorker
from sdk.live import Live
from support.dev_service import ROOT, StartService
from support.waiting import wait_until

# each test starts one worker program after another, and waits for their leases to end
pytestmark = pytest.mark.slow

PROGRAM = """
from pathlib import Path
worker = TaskWorker(worker_id=TYPE.replace("/", "-"), drain_timeout=5)
DIE = os.environ.get("DIE", "")

def notes():
    return [note for path in Path(LOG).parent.parent.glob("process-*/log") for note in path.read_text().split()]

def die(place):
    if DIE == place and place not in notes():
        note(place)
        os.kill(os.getpid(), 9)

def effect(name, key):
    note(f"{name}={key}")
    die(f"inside:{name}")
    return name

def find(name, key):
    return Happened("found") if f"{name}={key}" in notes() else DidNotHappen()

HOOK = {"reconcile": find} if os.environ.get("HOOK") else {}

ISOLATION = os.environ.get("ISOLATION", "thread")
RETRY = Retry(30, initial_delay=0.05, multiplier=1)

@worker.handle(TYPE, 1, effect_safety="pure", lease=2, retry=RETRY, isolation=ISOLATION)
def run(inp, ctx):
    die("start")
    a = ctx.step("create", effect, "create", ctx.effect_key("create"), effect_safety="idempotent")
    die("after:create")
    b = ctx.step("welcome", effect, "welcome", ctx.effect_key("welcome"), effect_safety="idempotent", retry=Retry(3))
    die("after:welcome")
    ctx.sleep(0.5)
    die("after:sleep")
    told = ctx.wait_for_signal("verified", timeout=600)
    die("after:signal")
    c = ctx.step("charge", effect, "charge", ctx.effect_key("charge"), effect_safety="non-idempotent", **HOOK)
    die("after:charge")
    return [a, b, told, c]

if __name__ != "__main__":
    worker.run = lambda: None
"""

PLACES = [
    "start",
    "inside:create",
    "after:create",
    "inside:welcome",
    "after:welcome",
    "after:sleep",
    "after:signal",
    "after:charge",
]


def effects(live: Live) -> list[str]:
    notes = [note for path in live.folder.glob("process-*/log") for note in path.read_text().split()]
    return sorted(note for note in notes if "=" in note)


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_worker_killed_between_and_inside_every_step(live: Live, isolation: str) -> None:
    task_id = live.submit({})
    live.producer.signal(task_id, "verified", "early")
    for place in PLACES if isolation == "thread" else ["inside:create", "after:welcome"]:
        process = live.process(PROGRAM, DIE=place, ISOLATION=isolation)
        if isolation == "thread":
            assert process.wait(60) == -9, process.output.read_text()
        else:  # it is a child that dies, and the worker starts another
            process.wait_note(place)
            process.kill()
    live.process(PROGRAM, ISOLATION=isolation)
    task = live.wait(task_id, 60)
    assert task.result == ["create", "welcome", "early", "charge"], task.failure
    keys = {name: f"{task.effect_scope}/{name}" for name in ("create", "welcome", "charge")}
    # Inside an idempotent step it happens again, under the same key; everything else once.
    counts = {name: effects(live).count(f"{name}={key}") for name, key in keys.items()}
    assert (counts["create"], counts["charge"]) == (2, 1)
    assert counts["welcome"] == (2 if isolation == "thread" else 1)
    assert len(effects(live)) == sum(counts.values())


@pytest.mark.parametrize(("hook", "how"), [("", "succeeded"), ("", "requeue"), ("1", "")])
def test_a_worker_killed_inside_an_unsafe_step(live: Live, hook: str, how: str) -> None:
    task_id = live.submit({})
    live.producer.signal(task_id, "verified", "early")
    assert live.process(PROGRAM, DIE="inside:charge", HOOK=hook).wait(60) == -9
    live.process(PROGRAM, HOOK=hook)
    if not hook:
        task = live.wait_status(task_id, "outcome-unknown", 30)
        assert task.failure is not None
        assert (task.failure.code, task.failure.details["step"]) == ("LEASE_EXPIRED", "charge")
        with Operator(client=live.client("operator")) as operator:
            operator.resolve(task_id, how, step="charge", result="by hand", note="looked")  # type: ignore[arg-type]
    wait_until(lambda: live.producer.get(task_id).settled, 30)
    task = live.producer.get(task_id)
    last = {"": "found", "succeeded": "by hand", "requeue": "charge"}[how]
    assert task.result == ["create", "welcome", "early", last], task.failure
    assert effects(live).count(f"charge={task.effect_scope}/charge") == (2 if how == "requeue" else 1)


def test_a_service_killed_under_a_run(start_service: StartService, database_url: str, tmp_path: Path) -> None:
    service = start_service("--database-url", database_url, INTERLOCK_SERVER_MIN_LEASE_SECONDS="1")
    calls: list[int] = []
    kills = threading.Semaphore(0)

    def handler(inp: Any, ctx: TaskContext) -> Any:
        def work(n: int) -> int:
            calls.append(n)
            if n % 3 == 1:
                kills.release()  # the service dies while this runs, or while its value is on its way
            return n

        found = []
        for n in range(9):
            found.append(ctx.step(f"s{n}", work, n, effect_safety="non-idempotent", reconcile=Happened))
            if n % 4 == 3:
                ctx.sleep(0.2)
        return found

    worker = TaskWorker(worker_id="durable", url=service.url, key=service.key("task-worker"), spool=tmp_path / "spool")
    worker.handle("test/durable", 1, effect_safety="pure", retry=Retry(20, initial_delay=0.1))(handler)
    worker.start()
    with TaskProducer(service.url, service.key("task-producer")) as producer:
        task_id = producer.submit("test/durable", 1, None, lease=30).id
        for _ in range(3):
            assert kills.acquire(timeout=30)
            service.kill()
            service.restart()
        task = producer.wait(task_id, timeout=60)
        assert task.result == list(range(9)), task.failure
    worker.drain(timeout=5)
    assert calls == list(range(9))


MAIL = """
from pathlib import Path
worker = TaskWorker(worker_id=TYPE.replace("/", "-"), drain_timeout=5)

def find(inp, ctx):
    sent = [path for path in Path(LOG).parent.parent.glob("process-*/log") if "sent" in path.read_text().split()]
    note("asked")
    return {"found": Happened("found"), "lost": DidNotHappen(), "unsure": CannotTell("the outbox is down")}[inp] if sent else CannotTell()

@worker.handle(TYPE, 1, effect_safety="non-idempotent", lease=2, reconcile=find, isolation=os.environ.get("ISOLATION", "thread"))
def send(inp, ctx):
    note("sent")
    if os.environ.get("DIE"):
        os.kill(os.getpid(), 9)
    return "sent"

if __name__ != "__main__":
    worker.run = lambda: None
"""


@pytest.mark.parametrize(("found", "result", "sent"), [("found", "found", 1), ("lost", "sent", 2), ("unsure", None, 1)])
def test_a_whole_handler_that_was_killed_is_reconciled(live: Live, found: str, result: str | None, sent: int) -> None:
    task_id = live.submit(found)
    assert live.process(MAIL, DIE="1").wait(60) == -9
    second = live.process(MAIL)
    task = live.wait(task_id, 30)
    assert (task.status, task.result) == ("succeeded" if result else "outcome-unknown", result)
    notes = [note for path in live.folder.glob("process-*/log") for note in path.read_text().split()]
    assert (notes.count("sent"), notes.count("asked")) == (sent, 1)
    if result is None:
        assert task.failure is not None
        assert task.failure.message == "the outbox is down"
        with Operator(client=live.client("operator")) as operator:
            operator.resolve(task_id, "reconcile", note="it is up again")
        second.wait_note("asked", 2)
        live.wait_status(task_id, "outcome-unknown")


def test_a_process_that_died_in_a_reconciling_handler_is_asked_about(live: Live) -> None:
    live.process(MAIL, DIE="1", ISOLATION="process")
    assert live.wait(live.submit("found"), 30).result == "found"


def test_the_onboarding_example(live: Live, tmp_path: Path) -> None:
    examples = ROOT / "sdk" / "python" / "examples"
    keys = {"INTERLOCK_PRODUCER_KEY": live.service.key("task-producer"), "NAP": "0.5", "EFFECTS": str(tmp_path / "effects.txt")}
    environment = {**os.environ, **live.environment, **keys}
    with (tmp_path / "output").open("wb") as output:
        worker = subprocess.Popen(
            [sys.executable, str(examples / "onboarding_worker.py")], cwd=tmp_path, stdout=output, stderr=output, env=environment
        )
    try:
        command = [sys.executable, str(examples / "onboarding_producer.py"), f"{tmp_path.name}@example.com"]
        told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    finally:
        worker.terminate()
        worker.wait(20)
    assert told.returncode == 0, told.stderr + (tmp_path / "output").read_text()
    assert '"verified": {"by": "mail"}' in told.stdout
    assert [line.split()[0] for line in (tmp_path / "effects.txt").read_text().splitlines()] == ["create", "welcome", "charge"]
