"""Scheduled events reach the built functions as EventBridge sends them, twice at once: the work is done once (case B37)."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from emulator import Emulator
from events import make_scheduled_event
from support.clock import Clock

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

Open = Callable[..., Emulator]
COUNT = 60


def at_once(functions: list[Emulator], event: dict[str, Any]) -> list[Any]:
    """Each function is given the same event at the same moment; what they returned."""
    answers: list[Any] = []
    start = threading.Barrier(len(functions))

    def invoke(function: Emulator) -> None:
        start.wait()
        answers.append(function.invoke(event))

    threads = [threading.Thread(target=invoke, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer for answer in answers if "errorType" in answer] == []
    return answers


def fetch(url: str, query: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(query).fetchall()  # type: ignore[arg-type]


@pytest.fixture
def claimed(open_function: Open, producer: Any, worker: Any) -> None:
    """Tasks that a worker holds, and that it will never report on."""
    tasks = [{"type": "demo/hello", "schemaVersion": 1, "input": n} for n in range(COUNT)]
    assert producer.send(open_function("SubmitFunction"), "POST", "/v1/tasks/batch", {"tasks": tasks}).status in (200, 201)
    handler = {"type": "demo/hello", "schemaVersion": 1, "effectSafety": "pure"}
    body = {"workerId": "w", "instanceId": "i", "claimId": str(uuid.uuid4()), "slots": 100, "handlers": [handler]}
    found = json.loads(worker.send(open_function("ClaimFunction"), "POST", "/v1/claims", body).body)
    assert len(found["attempts"]) == COUNT


@pytest.mark.usefixtures("claimed")
def test_b37_two_sweeps_at_once_settle_each_lapsed_lease_once(open_function: Open, clock: Clock, database_url: str) -> None:
    clock.advance(61)
    at_once([open_function("SweepFunction"), open_function("SweepFunction")], make_scheduled_event("Sweep"))
    lapsed = "SELECT count(*), count(DISTINCT task_id) FROM journal WHERE kind = 'lease-expired'"
    assert fetch(database_url, lapsed) == [(COUNT, COUNT)]
    assert fetch(database_url, "SELECT DISTINCT status FROM tasks") == [("queued",)]


@pytest.mark.usefixtures("claimed")
def test_b37_two_retentions_at_once_delete_each_task_whole(open_function: Open, clock: Clock, database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("UPDATE tasks SET max_attempts = 1")
    clock.advance(61)
    at_once([open_function("SweepFunction")], make_scheduled_event("Sweep"))
    assert fetch(database_url, "SELECT DISTINCT status FROM tasks") == [("failed",)]
    clock.advance(8 * 86400)
    answers = at_once([open_function("RetentionFunction"), open_function("RetentionFunction")], make_scheduled_event("Retention"))
    assert sum(answer["tasks"] for answer in answers) == COUNT
    assert fetch(database_url, "SELECT (SELECT count(*) FROM tasks), (SELECT count(*) FROM journal)") == [(0, 0)]


def test_the_sweep_tells_its_figures_to_its_log(open_function: Open) -> None:
    function = open_function("SweepFunction", INTERLOCK_SERVER_STACK="shop")
    function.invoke(make_scheduled_event("Sweep"))
    function.invoke(make_scheduled_event("Sweep"))
    lines = [json.loads(line) for line in function.output().splitlines() if line.startswith('{"_aws"')]
    assert [line["Stack"] for line in lines] == ["shop", "shop"]
    for line in lines:
        (metric,) = line["_aws"]["CloudWatchMetrics"]
        assert (metric["Namespace"], metric["Dimensions"]) == ("Interlock", [["Stack"]])
        assert {each["Name"] for each in metric["Metrics"]} == set(line) - {"_aws", "Stack"}
