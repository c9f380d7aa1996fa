"""`scripts/lambda-local`: CLI, SDK and worker processes use the built functions as they would use the deployed ones."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

import lambda_local
from interlock import TaskProducer
from support.dev_service import ROOT, DevService
from support.owner import children_of, is_alive, kill_all
from support.waiting import wait_until
from support.worker_process import StartWorker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def local(tmp_path: Path, database_url: str) -> Any:
    """A running `scripts/lambda-local` on this test's database."""
    service = DevService(tmp_path / "local", "--database-url", database_url, program="lambda-local")
    service.start()
    yield service
    service.terminate()


def run_cli(service: DevService, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "INTERLOCK_URL": service.url, "INTERLOCK_PRODUCER_KEY": service.key("task-producer")}
    command = [sys.executable, "-m", "interlock.cli", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def environments_of(service: DevService) -> list[int]:
    """The process ids of the emulators that hold the functions."""
    found = []
    for pid in children_of(service.pid):
        try:
            if b"aws-lambda-rie" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
                found.append(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def test_a_worker_process_runs_what_the_cli_submitted(local: DevService, start_worker: StartWorker) -> None:
    worker = start_worker(local.url, local.key("task-worker"))
    done = run_cli(local, "tasks", "submit", "chaos/quick@1", "--input", '{"n": 1}', "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    (task_id,) = worker.runs()
    assert task_id in done.stdout
    shown = run_cli(local, "tasks", "get", task_id, "--json")
    assert (json.loads(shown.stdout)["status"], json.loads(shown.stdout)["result"]) == ("succeeded", {"n": 1})
    assert worker.runs() == Counter({task_id: 1})


def test_a_killed_environment_costs_no_task(local: DevService, start_worker: StartWorker) -> None:
    worker = start_worker(local.url, local.key("task-worker"), slots=4)
    with TaskProducer(local.url, local.key("task-producer")) as producer:
        tasks = []
        for number in range(12):
            tasks.append(producer.submit("chaos/quick", 1, number, idempotency_key=f"task-{number}"))
            if number % 4 == 3:
                kill_all(environments_of(local))  # functions die with their work in hand
        assert [task.wait(timeout=60).status for task in tasks] == ["succeeded"] * 12
    assert {task.id for task in tasks} == set(worker.runs())


def test_kill_9_leaves_nothing_running_and_loses_nothing(local: DevService, start_worker: StartWorker) -> None:
    with local.client() as client:
        made = client.post("/v1/tasks", json={"type": "chaos/quick", "schemaVersion": 1, "input": 1})
        assert made.status_code == 201, made.text
    below = children_of(local.pid)
    keys = dict(local.info["keys"])
    assert environments_of(local)
    local.kill()
    wait_until(lambda: not any(map(is_alive, below)), 20)
    local.restart()
    assert local.info["keys"] == keys
    start_worker(local.url, local.key("task-worker"))
    with local.client() as client:
        wait_until(lambda: client.get(f"/v1/tasks/{made.json()['id']}").json()["status"] == "succeeded", 30)
    assert local.terminate() < 10


def test_more_calls_at_once_than_environments_are_all_answered(local: DevService) -> None:
    answers: list[int] = []

    def call(number: int) -> None:
        with local.client() as client:
            task = {"type": "demo/hello", "schemaVersion": 1, "input": number % 8, "idempotencyKey": f"k{number % 8}"}
            answers.append(client.post("/v1/tasks", json=task).status_code)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(answers) == Counter({201: 8, 200: 16})


def test_the_gateways_own_answers_and_the_default_route(local: DevService) -> None:
    with httpx.Client(base_url=local.url, timeout=30) as client:
        unknown = client.get("/v1/nothing")
        assert (unknown.status_code, unknown.json()["code"]) == (404, "NOT_FOUND")
        other = client.patch("/v1/tasks")
        assert (other.status_code, other.headers["allow"]) == (405, "GET, HEAD, POST")
        large = client.post("/v1/tasks", content=b"x" * (11 * 1024 * 1024))
        assert (large.status_code, large.json()) == (413, {"message": "Request Entity Too Large"})
        assert client.head("/healthz").status_code == 200


async def test_the_keys_are_made_before_anybody_is_served(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Made(Exception):
        pass

    async def write_info(*_: object) -> None:
        raise Made

    # Callers that waited for a killed host meet the next one at once, and their functions then start all together.
    monkeypatch.setattr(lambda_local, "make_build", lambda: None)
    monkeypatch.setattr(lambda_local, "write_info", write_info)
    monkeypatch.setattr(lambda_local, "run_stream", None)
    monkeypatch.setattr(lambda_local, "Pools", None)
    monkeypatch.setenv("INTERLOCK_SERVER_STREAM_URL", "http://here")
    arguments = argparse.Namespace(no_schedule=False, environments=1, demo=False)
    with socket.socket() as listener, pytest.raises(Made):
        await lambda_local.serve(arguments, tmp_path, database_url, None, listener, "http://here")


@pytest.mark.parametrize("number", ["0", "-1", "many"])
def test_a_number_of_environments_that_is_none_is_refused(number: str) -> None:
    script = ROOT / "scripts" / "lambda-local"
    done = subprocess.run(
        [script, "--environments", number], capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"'{number}' is no number of environments: 1 or more" in done.stderr
