"""The built functions, each a Lambda process of its own, on a real database: a task goes from submit to its result."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from emulator import Emulator
from template import Function, read_functions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

Open = Callable[..., Emulator]
HANDLER = {"type": "demo/hello", "schemaVersion": 1, "effectSafety": "pure"}


def claim_body(**fields: Any) -> dict[str, Any]:
    one = {"workerId": "greeter", "instanceId": str(uuid.uuid4()), "claimId": str(uuid.uuid4())}
    return {**one, "pool": "default", "slots": 1, "handlers": [HANDLER], **fields}


def ids_of(claim: dict[str, Any]) -> dict[str, Any]:
    return {name: claim[name] for name in ("taskId", "attemptId", "fence", "leaseToken")}


def test_a_task_goes_through_three_lambda_processes(open_function: Open, producer: Any, worker: Any) -> None:
    submit, claim, report = (open_function(name) for name in ("SubmitFunction", "ClaimFunction", "ReportFunction"))

    task = {"type": "demo/hello", "schemaVersion": 1, "input": {"name": "Ada"}, "idempotencyKey": "hello-ada"}
    submitted = producer.send(submit, "POST", "/v1/tasks", task)
    assert submitted.status == 201, submitted.body
    view = json.loads(submitted.body)
    assert (view["status"], view["input"]) == ("queued", {"name": "Ada"})
    again = producer.send(submit, "POST", "/v1/tasks", task)
    assert (again.status, json.loads(again.body)["id"], json.loads(again.body)["deduplicated"]) == (200, view["id"], True)

    body = claim_body()
    claimed = json.loads(worker.send(claim, "POST", "/v1/claims", body).body)
    assert [found["taskId"] for found in claimed["attempts"]] == [view["id"]]
    attempt = claimed["attempts"][0]
    assert attempt["input"] == {"name": "Ada"}

    completion = {**ids_of(attempt), "outcome": "succeeded", "result": {"greeting": "Hello, Ada!"}}
    done = worker.send(
        report, "POST", "/v1/attempts/complete", {"completions": [completion], "claim": claim_body(instanceId=body["instanceId"])}
    )
    answer = json.loads(done.body)
    assert done.status == 200, done.body
    assert (answer["completions"][0]["taskStatus"], answer["completions"][0]["duplicate"]) == ("succeeded", False)
    assert answer["claim"]["attempts"] == []
    repeated = json.loads(worker.send(report, "POST", "/v1/attempts/complete", {"completions": [completion]}).body)
    assert (repeated["completions"][0]["taskStatus"], repeated["completions"][0]["duplicate"]) == ("succeeded", True)

    read = open_function("ReadFunction")
    found = json.loads(producer.send(read, "GET", f"/v1/tasks/{view['id']}", route="GET /v1/tasks/{id}").body)
    assert (found["status"], found["result"]) == ("succeeded", {"greeting": "Hello, Ada!"})
    journal = json.loads(producer.send(read, "GET", f"/v1/tasks/{view['id']}/journal", route="GET /v1/tasks/{id}/journal").body)
    assert [event["kind"] for event in journal["items"]] == ["submitted", "claimed", "succeeded"]
    assert [each.starts for each in (submit, claim, report, read)] == [1, 1, 1, 1], "an execution environment died on the way"


def test_the_single_report_forms_answer_with_http_statuses(open_function: Open, producer: Any, worker: Any) -> None:
    submit, claim, report = (open_function(name) for name in ("SubmitFunction", "ClaimFunction", "ReportFunction"))
    producer.send(submit, "POST", "/v1/tasks", {"type": "demo/hello", "schemaVersion": 1, "input": None})
    attempt = json.loads(worker.send(claim, "POST", "/v1/claims", claim_body()).body)["attempts"][0]
    ids = ids_of(attempt)
    for call, body, status in (
        ("heartbeat", {"workerId": "greeter", "instanceId": "one", **ids}, 200),
        ("complete", {**ids, "fence": attempt["fence"] + 1, "outcome": "succeeded", "result": 1}, 409),
        ("complete", {**ids, "outcome": "succeeded", "result": 1}, 200),
        ("release", ids, 409),
    ):
        route = f"POST /v1/tasks/{{taskId}}/attempts/{{attemptId}}/{call}"
        answer = worker.send(report, "POST", f"/v1/tasks/{ids['taskId']}/attempts/{ids['attemptId']}/{call}", body, route=route)
        assert answer.status == status, (call, answer.body)


def test_migrations_run_from_the_artifact_and_again_change_nothing(open_function: Open, postgres: Any, built: Any) -> None:
    postgres.create_database("built_migrations")
    with built.open("MigrateFunction", postgres.url("built_migrations")) as migrate:
        first, second = migrate.invoke({}), migrate.invoke({})
    assert first["applied"] == sorted(path.name for path in (built.artifact("MigrateFunction") / "migrations").glob("*.sql"))
    assert second["applied"] == []


@pytest.mark.parametrize("name", ["SweepFunction", "RetentionFunction"])
def test_a_scheduled_event_is_taken_twice(open_function: Open, name: str) -> None:
    function = open_function(name)
    event = {"version": "0", "source": "aws.scheduler", "detail-type": "Scheduled Event", "detail": {}}
    for answer in (function.invoke(event), function.invoke(event)):
        assert isinstance(answer, dict)
        assert "errorType" not in answer


OPEN = {"/healthz", "/readyz", "/openapi.json", "/tasks.md"}


@pytest.mark.parametrize(
    "function", [function for function in read_functions() if function.routes], ids=lambda function: function.name
)
def test_every_route_is_served_by_its_built_function(open_function: Open, anyone: Any, function: Function) -> None:
    with open_function(f"{function.name.title()}Function") as emulator:
        for route in function.routes:
            target = re.sub(r"\{\w+\}", "1", route.path)
            answer = anyone.send(emulator, route.method, target, route=f"{route.method} {route.path}")
            assert answer.status == (200 if route.path in OPEN else 401), (route, answer, emulator.output())
