"""The stream as it is deployed: processes of its own, several of them, beside functions that hold no waits themselves."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from interlock import TaskProducer, TaskWorker
from interlock_core.settings import Settings
from stream.conftest import TYPE
from support.served import Served, serve
from support.stream_process import StartStream, StreamProcess
from support.waiting import wait_until

# each test starts processes
pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Deployment:
    """The functions, and two stream processes on their database; the functions tell of the first."""

    served: Served
    streams: list[StreamProcess]

    def call(self, method: str, path: str, kind: str, url: str | None = None, **options: Any) -> Any:
        headers = {"Authorization": f"Bearer {self.served.keys[kind]}"}
        answer = httpx.request(method, (url or self.served.url) + path, headers=headers, timeout=30, **options)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def submit(self) -> str:
        body = {"type": TYPE, "schemaVersion": 1, "input": None}
        task_id: str = self.call("POST", "/v1/tasks", "task-producer", json=body)["id"]
        return task_id

    def claim(self, instance_id: str) -> dict[str, Any]:
        handler = {"type": TYPE, "schemaVersion": 1, "effectSafety": "pure"}
        body = {"workerId": "w", "instanceId": instance_id, "claimId": instance_id, "pool": "default", "slots": 1}
        [attempt] = self.call("POST", "/v1/claims", "task-worker", json={**body, "handlers": [handler]})["attempts"]
        found: dict[str, Any] = attempt
        return found

    def complete(self, attempt: dict[str, Any]) -> None:
        ids = {name: attempt[name] for name in ("taskId", "attemptId", "fence", "leaseToken")}
        self.call(
            "POST", "/v1/attempts/complete", "task-worker", json={"completions": [{**ids, "outcome": "succeeded", "result": 1}]}
        )


class Hearer(threading.Thread):
    """A worker's stream on one process: the events that came, and when."""

    def __init__(self, deployment: Deployment, process: StreamProcess, instance_id: str) -> None:
        super().__init__(daemon=True)
        self.heard: list[tuple[str, float]] = []
        self._path = f"{process.url}/v1/stream?workerId=w&instanceId={instance_id}&types={TYPE}@1"
        self._key = deployment.served.keys["task-worker"]
        self.start()
        wait_until(lambda: self.count("ready") == 1)

    def run(self) -> None:
        headers = {"Authorization": f"Bearer {self._key}"}
        try:
            with httpx.stream("GET", self._path, headers=headers, timeout=60) as response:
                for line in response.iter_lines():
                    if line.startswith("event: "):
                        self.heard.append((line[7:], time.monotonic()))
        except httpx.TransportError:
            pass  # its process was killed

    def count(self, event: str) -> int:
        return sum(name == event for name, _ in self.heard)


@pytest.fixture
def deployment(database_url: str, start_stream: StartStream) -> Iterator[Deployment]:
    streams = [start_stream(database_url), start_stream(database_url)]
    with serve(database_url, Settings(offline_seconds=3600, stream_url=streams[0].url)) as served:
        yield Deployment(served, streams)


def test_each_process_tells_those_who_listen_there(deployment: Deployment) -> None:
    one, two = (Hearer(deployment, process, f"on-{number}") for number, process in enumerate(deployment.streams))
    began = time.monotonic()
    deployment.submit()
    wait_until(lambda: one.count("wake") and two.count("wake"))  # each knows of its own only, and one of them gets the task
    assert max(at for name, at in one.heard + two.heard if name == "wake") - began < 1
    attempt = deployment.claim("on-1")
    deployment.call("POST", f"/v1/tasks/{attempt['taskId']}/cancel", "task-producer", json={})
    wait_until(lambda: two.count("cancel") == 1)
    deployment.streams[0].stop()
    wait_until(lambda: not one.is_alive())
    before = two.count("wake")
    deployment.submit()
    wait_until(lambda: two.count("wake") > before)
    assert one.count("cancel") == 0


def test_a_wait_is_held_by_a_stream_process_and_never_by_a_function(deployment: Deployment) -> None:
    task_id = deployment.submit()
    path = f"/v1/tasks/{task_id}?waitSeconds=20"
    began = time.monotonic()
    assert deployment.call("GET", path, "task-producer")["status"] == "queued"
    assert time.monotonic() - began < 5
    with ThreadPoolExecutor(20) as pool:
        asked = [
            pool.submit(deployment.call, "GET", path, kind, process.url)
            for process in deployment.streams
            for kind in ("task-producer", "operator") * 5
        ]
        for process in deployment.streams:
            wait_until(lambda held=process: _waits(deployment, held) == 10)  # type: ignore[misc]
        deployment.complete(deployment.claim("i"))
        ended = time.monotonic()
        assert {(answer.result()["status"], answer.result()["result"]) for answer in asked} == {("succeeded", 1)}
        assert time.monotonic() - ended < 2
    assert all(_waits(deployment, process) == 0 for process in deployment.streams)


def _waits(deployment: Deployment, process: StreamProcess) -> float:
    answer = httpx.get(f"{process.url}/v1/metrics", headers={"Authorization": f"Bearer {deployment.served.keys['metrics']}"})
    [line] = [line for line in answer.text.splitlines() if line.startswith("interlock_stream_waits ")]
    return float(line.split()[1])


def test_the_producer_of_the_sdk_waits_at_the_stream_process(deployment: Deployment, tmp_path: Any) -> None:
    worker = TaskWorker(
        worker_id="w", url=deployment.served.url, key=deployment.served.keys["task-worker"], spool=tmp_path / "spool"
    )
    release = threading.Event()
    worker.handle(TYPE, 1, effect_safety="pure")(lambda inp, ctx: release.wait(20))
    worker.start()
    with TaskProducer(deployment.served.url, deployment.served.keys["task-producer"]) as producer, ThreadPoolExecutor(1) as pool:
        handle = producer.submit(TYPE, 1)
        waiting = pool.submit(handle.result, timeout=30)
        wait_until(lambda: _waits(deployment, deployment.streams[0]) == 1)
        release.set()
        assert waiting.result(10) is True
    worker.drain(timeout=5)


def test_a_stream_process_shows_a_task_as_the_service_does(deployment: Deployment) -> None:
    path = f"/v1/tasks/{deployment.submit()}"
    shown = deployment.call("GET", path, "task-producer", deployment.streams[1].url)
    assert shown == deployment.call("GET", path, "task-producer")
    answer = httpx.get(
        deployment.streams[1].url + path, headers={"Authorization": f"Bearer {deployment.served.keys['task-worker']}"}
    )
    assert (answer.status_code, answer.json()["code"]) == (403, "SCOPE_DENIED")
