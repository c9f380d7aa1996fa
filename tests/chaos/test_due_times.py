"""Work that becomes due by time starts then: at once with a stream, one poll interval late at most without."""

from __future__ import annotations

from datetime import datetime

import pytest

from interlock import TaskProducer
from support.dev_service import DevService, StartService
from support.waiting import wait_until
from support.worker_process import StartWorker

POLL = 1.0


@pytest.fixture
def node(start_service: StartService, database_url: str) -> DevService:
    """A service whose workers poll twice a minute: what starts earlier was woken by the stream."""
    return start_service("--database-url", database_url, INTERLOCK_SERVER_STREAM_POLL_SECONDS="30")


def wait_until_known(node: DevService) -> None:
    with node.client() as client:
        wait_until(lambda: client.get("/v1/workers/chaos").status_code == 200)


def claimed_at(producer: TaskProducer, task: str) -> list[datetime]:
    return [event.at for event in producer.journal(task) if event.kind == "claimed"]


def test_delayed_work_and_retries_start_within_a_second_of_their_time(node: DevService, start_worker: StartWorker) -> None:
    start_worker(node.url, node.key("task-worker"), slots=2)
    wait_until_known(node)
    with TaskProducer(node.url, node.key("task-producer")) as producer:
        delayed, retried = producer.submit("chaos/quick", 1, "x", delay=2), producer.submit("chaos/again", 1, "x")
        assert delayed.wait(timeout=20).status == "succeeded"
        (claimed,) = claimed_at(producer, delayed.id)
        due = producer.get(delayed.id).due_at
        assert due is not None
        assert 0 <= (claimed - due).total_seconds() < 1

        assert retried.wait(timeout=20).result == "attempt 2"
        _, claimed = claimed_at(producer, retried.id)
        (scheduled,) = [event.at for event in producer.journal(retried.id) if event.kind == "retry-scheduled"]
        assert 1 <= (claimed - scheduled).total_seconds() < 2


def test_without_its_stream_work_starts_one_poll_interval_late_at_most(
    start_service: StartService, database_url: str, start_worker: StartWorker
) -> None:
    node = start_service(
        "--database-url",
        database_url,
        INTERLOCK_SERVER_STREAM_URL="http://127.0.0.1:1",  # where nobody listens
        INTERLOCK_SERVER_STREAM_POLL_SECONDS=str(POLL),
        INTERLOCK_SERVER_IDLE_POLL_SECONDS=str(POLL),
    )
    start_worker(node.url, node.key("task-worker"))
    wait_until_known(node)
    with TaskProducer(node.url, node.key("task-producer")) as producer:
        for _ in range(3):
            task = producer.submit("chaos/quick", 1, "x")
            assert task.wait(timeout=20).status == "succeeded"
            (claimed,) = claimed_at(producer, task.id)
            created = producer.get(task.id).created_at
            assert created is not None
            assert (claimed - created).total_seconds() < POLL + 1
