"""`kill -9` of a worker: its work is run again soon after the lease, or said to be unknown; what it left is judged by its fence."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from interlock import Task, TaskProducer
from support.dev_service import DevService, StartService
from support.proxy import MakeProxy
from support.waiting import wait_until
from support.worker_process import StartWorker, WorkerProcess

LEASE = 2.0
BACKOFF = 0.5  # of chaos/held, without jitter


@pytest.fixture
def node(start_service: StartService, database_url: str) -> DevService:
    """A service that grants short leases."""
    return start_service("--database-url", database_url, INTERLOCK_SERVER_MIN_LEASE_SECONDS="1")


def producer_of(node: DevService) -> TaskProducer:
    return TaskProducer(node.url, node.key("task-producer"))


def events(producer: TaskProducer, task: str, kind: str) -> list[Any]:
    return [event for event in producer.journal(task) if event.kind == kind]


def wait_for_stream(node: DevService, worker: WorkerProcess) -> None:
    """Until this worker is known and idle: what starts it from now on is a hint, since its next poll is far off."""
    with node.client() as client:
        wait_until(lambda: client.get("/v1/workers/chaos").status_code == 200)


@pytest.mark.warm
def test_another_worker_starts_it_within_a_second_of_lease_end_and_backoff(node: DevService, start_worker: StartWorker) -> None:
    with producer_of(node) as producer, node.client() as client:
        first = start_worker(node.url, node.key("task-worker"))
        task = producer.submit("chaos/held", 1, None, lease=LEASE)
        first.wait_for_start(task.id)
        second = start_worker(node.url, node.key("task-worker"))
        wait_until(lambda: len(client.get("/v1/workers/chaos").json()["instances"]) == 2)
        first.kill()
        lease_end = datetime.fromisoformat(client.get(f"/v1/tasks/{task.id}").json()["attempt"]["leaseExpiresAt"])
        second.wait_for_start(task.id)
        second.release(task.id)
        done = task.wait(timeout=20)

        assert (done.status, done.result) == ("succeeded", "attempt 2")
        claims = events(producer, task.id, "claimed")
        assert len(claims) == 2
        assert len(events(producer, task.id, "lease-expired")) == 1
        late = (claims[1].at - lease_end).total_seconds()
        assert BACKOFF <= late <= BACKOFF + 1


def finish_unheard(
    node: DevService, start_worker: StartWorker, make_proxy: MakeProxy, producer: TaskProducer, type_name: str
) -> tuple[str, WorkerProcess, Any]:
    """A worker that finished its handler while it was cut off, and was killed with the outcome in its spool."""
    proxy = make_proxy(node.url)
    worker = start_worker(proxy.url, node.key("task-worker"))
    task = producer.submit(type_name, 1, None, lease=LEASE)
    worker.wait_for_start(task.id)
    proxy.cut()
    worker.release(task.id)
    wait_until(worker.spooled)
    worker.kill()
    return task.id, worker, proxy


def test_the_dead_ones_spool_replay_is_stale_and_dropped(
    node: DevService, start_worker: StartWorker, make_proxy: MakeProxy
) -> None:
    with producer_of(node) as producer:
        task, dead, proxy = finish_unheard(node, start_worker, make_proxy, producer, "chaos/held")
        second = start_worker(node.url, node.key("task-worker"))
        second.wait_for_start(task)
        second.release(task)
        assert producer.wait(task, timeout=20).result == "attempt 2"

        proxy.restore()
        dead.start()
        wait_until(lambda: not dead.spooled())
        assert producer.get(task).result == "attempt 2"
        late = events(producer, task, "late-report")
        assert len(late) == 1
        assert not list(dead.spool.glob("quarantine/*"))


def is_unknown(producer: TaskProducer, task: str) -> Task | None:
    found = producer.get(task)
    return found if found.status == "outcome-unknown" else None


@pytest.mark.warm
def test_a_started_non_idempotent_handler_leaves_the_outcome_unknown_and_its_late_report_settles_it(
    node: DevService, start_worker: StartWorker, make_proxy: MakeProxy
) -> None:
    with producer_of(node) as producer:
        task, dead, proxy = finish_unheard(node, start_worker, make_proxy, producer, "chaos/charge")
        other = start_worker(node.url, node.key("task-worker"))
        unknown = wait_until(lambda: is_unknown(producer, task))
        assert unknown.failure is not None
        assert unknown.failure.code == "LEASE_EXPIRED"
        assert not other.runs()

        proxy.restore()
        dead.start()
        done = producer.wait(task, timeout=1) if producer.get(task).settled else wait_until(lambda: settled(producer, task))
        assert (done.status, done.result) == ("succeeded", "attempt 1")
        wait_until(lambda: not dead.spooled())
        assert not other.runs()


def settled(producer: TaskProducer, task: str) -> Task | None:
    found = producer.get(task)
    return found if found.settled else None


def test_a_person_resolves_what_nobody_will_report(node: DevService, start_worker: StartWorker) -> None:
    with producer_of(node) as producer:
        worker = start_worker(node.url, node.key("task-worker"))
        task = producer.submit("chaos/charge", 1, None, lease=LEASE)
        worker.wait_for_start(task.id)
        worker.kill()
        wait_until(lambda: is_unknown(producer, task.id))
        cli = Path(sys.executable).with_name("interlock")
        options = ["--as", "succeeded", "--result", '"seen"', "--note", "the bank says so", "--json"]
        command = [cli, "tasks", "resolve", task.id, *options]
        environment = {"INTERLOCK_URL": node.url, "INTERLOCK_OPERATOR_KEY": node.key("operator"), "PATH": "/usr/bin:/bin"}
        run = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
        assert run.returncode == 0, run.stderr
        assert json.loads(run.stdout)["status"] == "succeeded"
        assert producer.get(task.id).result == "seen"
