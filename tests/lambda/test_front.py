"""The gateway in front of the functions: its routes, its limits, and a function that answers too late (case B58)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import psycopg
import pytest

import front
from front import MAX_PAYLOAD, Front, read_routes
from template import read_template

Load = Callable[..., Any]
ROUTES = read_routes(read_template())
CODED = {
    "statusCode": 200,
    "headers": {"content-length": "999", "x-a": "b"},
    "cookies": ["a=1", "b=2"],
    "body": "e30=",
    "isBase64Encoded": True,
}
HANDLER = {"type": "demo/hello", "schemaVersion": 1, "effectSafety": "pure"}


def ask(gateway: Front, method: str, target: str, **fields: Any) -> httpx.Response:
    """One request."""

    async def run() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(gateway), base_url="http://gateway.test") as client:
            return await client.request(method, target, **fields)

    return asyncio.run(run())


def always(result: Any) -> Callable[[str, Mapping[str, Any]], Any]:
    """A function that returns this, whatever the event."""

    async def invoke(_: str, __: Mapping[str, Any]) -> Any:
        return result

    return invoke


@pytest.mark.parametrize(
    ("target", "route", "function"),
    [
        ("POST /v1/tasks", "POST /v1/tasks", "SubmitFunction"),
        ("POST /v1/tasks/batch", "POST /v1/tasks/batch", "SubmitFunction"),
        ("POST /v1/tasks/bulk", "POST /v1/tasks/bulk", "ControlFunction"),
        ("GET /v1/tasks/01", "GET /v1/tasks/{id}", "ReadFunction"),
        ("GET /v1/tasks/a%2Fb", "GET /v1/tasks/{id}", "ReadFunction"),
        ("GET /v1/tasks/a/b", "$default", "ReadFunction"),
        ("DELETE /v1/tasks", "$default", "ReadFunction"),
        ("GET /", "$default", "ReadFunction"),
    ],
)
def test_the_closest_route_wins_and_the_rest_is_the_default(target: str, route: str, function: str) -> None:
    seen: list[tuple[str, Mapping[str, Any]]] = []

    async def invoke(name: str, event: Mapping[str, Any]) -> Any:
        seen.append((name, event))
        return {"statusCode": 200, "body": "{}"}

    method, _, path = target.partition(" ")
    assert ask(Front(ROUTES, invoke), method, path + "?a=%20b").status_code == 200
    ((name, event),) = seen
    assert (name, event["routeKey"], event["rawQueryString"]) == (function, route, "a=%20b")


def test_a_route_is_missing_only_where_there_is_no_default() -> None:
    routes = {route: name for route, name in ROUTES.items() if route != "$default"}
    answer = ask(Front(routes, always(None)), "GET", "/nowhere")
    assert (answer.status_code, answer.json()) == (404, {"message": "Not Found"})


@pytest.mark.parametrize(
    ("result", "status"),
    [
        ({"errorType": "ValueError", "errorMessage": "no"}, 500),
        (None, 500),
        ({"statusCode": 200, "body": "x" * MAX_PAYLOAD}, 500),
        (
            {
                "statusCode": 200,
                "headers": {"content-length": "999", "x-a": "b"},
                "cookies": ["a=1", "b=2"],
                "body": "e30=",
                "isBase64Encoded": True,
            },
            200,
        ),
    ],
    ids=["error", "nothing", "large", "coded"],
)
def test_what_a_function_returns_is_answered_as_the_gateway_would(result: Any, status: int) -> None:
    answer = ask(Front(ROUTES, always(result)), "GET", "/v1/tasks")
    assert answer.status_code == status
    if status == 200:
        assert (answer.content, answer.headers["content-length"], answer.headers["x-a"]) == (b"{}", "2", "b")
        assert answer.headers.get_list("set-cookie") == ["a=1", "b=2"]


@pytest.mark.parametrize("size", [5_000_000, 11_000_000])
def test_a_request_that_lambda_would_not_take_is_refused(size: int) -> None:
    answer = ask(Front(ROUTES, always({"statusCode": 200})), "POST", "/v1/tasks", content=b"\xff" * size)  # base64: a third more
    assert (answer.status_code, answer.json()) == (413, {"message": "Request Entity Too Large"})


class Late:
    """The functions of one test; the answer of the next call of a path comes after the gateway has given up."""

    def __init__(self, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(front, "LIMIT_SECONDS", 3.0)
        self._functions = {f"{name.title()}Function": load(name) for name in ("submit", "claim", "report", "control")}
        self.late = ""

    async def invoke(self, name: str, event: Mapping[str, Any]) -> Any:
        late = self.late == event["rawPath"]
        self.late = "" if late else self.late
        result = await asyncio.to_thread(self._functions[name], dict(event))
        if late:  # it has committed, and answers nobody
            await asyncio.Event().wait()
        return result


@pytest.mark.slow
def test_b58_what_was_committed_after_the_gateway_gave_up_is_not_done_twice(
    load: Load, keys: dict[str, str], database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Late(load, monkeypatch)
    gateway = Front(ROUTES, late.invoke)

    def call(kind: str, path: str, body: Any) -> httpx.Response:
        return ask(gateway, "POST", path, json=body, headers={"Authorization": f"Bearer {keys[kind]}"})

    def twice(kind: str, path: str, body: Any) -> Any:
        late.late = path
        first = call(kind, path, body)
        assert (first.status_code, first.json()) == (503, {"message": "Service Unavailable"})
        again = call(kind, path, body)  # as the SDK does after a 503
        assert again.status_code in (200, 201), again.text
        return again.json()

    tasks = [
        twice("task-producer", "/v1/tasks", {"type": "demo/hello", "schemaVersion": 1, "input": n, "idempotencyKey": f"k{n}"})
        for n in range(2)
    ]
    assert [task["deduplicated"] for task in tasks] == [True, True]
    claim = {"workerId": "w", "instanceId": "i", "claimId": str(uuid.uuid4()), "slots": 2, "handlers": [HANDLER]}
    held, other = twice("task-worker", "/v1/claims", claim)["attempts"]
    ids, others = ({name: each[name] for name in ("taskId", "attemptId", "fence", "leaseToken")} for each in (held, other))
    done = twice("task-worker", "/v1/attempts/complete", {"completions": [{**ids, "outcome": "succeeded", "result": 1}]})
    assert [(item["taskStatus"], item["duplicate"]) for item in done["completions"]] == [("succeeded", True)]
    given = twice("task-worker", "/v1/attempts/release", {"attempts": [{**others, "started": False}]})
    assert [(item["taskStatus"], item["duplicate"]) for item in given["attempts"]] == [("queued", True)]
    twice("task-producer", f"/v1/tasks/{ids['taskId']}/rerun", {"idempotencyKey": "again"})
    with psycopg.connect(database_url, autocommit=True) as connection:
        assert connection.execute("SELECT count(*), sum(fence), count(rerun_of) FROM tasks").fetchone() == (3, 2, 1)
        kinds = "SELECT kind, count(*) FROM journal WHERE kind IN ('succeeded', 'released') GROUP BY 1 ORDER BY 1"
        assert connection.execute(kinds).fetchall() == [("released", 1), ("succeeded", 1)]
