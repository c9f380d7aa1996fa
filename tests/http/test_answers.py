"""What is answered is what the document describes, member by member: nothing is missing, nothing is untold."""

from __future__ import annotations

from typing import Any

import httpx
from pydantic import BaseModel

from interlock_core.operations import OPERATIONS
from support.play import Play, ids

Json = dict[str, Any]


def described(place: tuple[str, str], answer: httpx.Response) -> Json:
    """The body, held against the model of its operation."""
    assert answer.status_code in (200, 201), answer.text
    body: Json = answer.json()
    model = OPERATIONS[place].answer
    models: list[type[BaseModel]] = [model] if isinstance(model, type) else list(model.__args__)
    # A model drops what it does not know, so that an equal dump means: all told, and all told is there.
    assert body in [_told(m, body) for m in models], [_told(m, body) for m in models]
    return body


def _told(model: type[BaseModel], body: Json) -> Any:
    try:
        return model.model_validate(body).model_dump(mode="json", by_alias=True, exclude_unset=True)
    except ValueError as error:
        return str(error)


FULL: Json = {
    "type": "demo/hello",
    "schemaVersion": 1,
    "input": {"name": "Ada"},
    "idempotencyKey": "k",
    "priority": 5,
    "retry": {"maxAttempts": 3},
    "timeoutSeconds": 60,
    "startDeadlineSeconds": 60,
    "concurrency": {"key": "c", "limit": 2},
    "tags": {"order": "17"},
    "trace": {"traceparent": "00-1", "tracestate": "x=1"},
}


async def test_producers_and_operators_are_answered_as_described(play: Play) -> None:
    http = play.http
    described(
        ("POST", "/v1/tasks"), await http.producer.post("/v1/tasks", json={**FULL, "type": "demo/unknown", "idempotencyKey": "u"})
    )
    task = described(("POST", "/v1/tasks"), await http.producer.post("/v1/tasks", json=FULL))
    again = described(("POST", "/v1/tasks"), await http.producer.post("/v1/tasks", json=FULL))
    assert (again["id"], again["deduplicated"]) == (task["id"], True)
    described(
        ("POST", "/v1/tasks/batch"),
        await http.producer.post("/v1/tasks/batch", json={"tasks": [FULL, {**FULL, "idempotencyKey": "b"}]}),
    )
    (attempt,) = await play.claim(safety="non-idempotent")
    await play.heartbeat(attempt, progress={"percent": 50, "message": "half"}, logs=[{"seq": 1, "level": "info", "message": "x"}])
    path = f"/v1/tasks/{attempt['taskId']}"
    described(("GET", "/v1/tasks/{id}"), await http.producer.get(path, params={"include": "attempts"}))
    await play.complete(attempt, "unknown", error={"code": "SENT", "message": "no answer", "details": {"a": 1}})
    described(("GET", "/v1/tasks/{id}"), await http.producer.get(path, params={"include": "attempts"}))
    described(("GET", "/v1/tasks"), await http.producer.get("/v1/tasks"))
    described(("GET", "/v1/tasks/{id}/journal"), await http.producer.get(f"{path}/journal"))
    body = {"as": "succeeded", "attemptId": attempt["attemptId"], "note": "looked", "result": [1]}
    described(("POST", "/v1/tasks/{id}/resolve"), await http.operator.post(f"{path}/resolve", json=body))
    other = await play.submit()
    described(("POST", "/v1/tasks/{id}/cancel"), await http.producer.post(f"/v1/tasks/{other['id']}/cancel"))
    described(("POST", "/v1/tasks/{id}/rerun"), await http.producer.post(f"{path}/rerun", json={}))
    bulk = {"filter": {"type": "demo/hello"}, "action": "cancel", "idempotencyKey": "all"}
    for _ in range(2):
        described(("POST", "/v1/tasks/bulk"), await http.operator.post("/v1/tasks/bulk", json=bulk))


async def test_workers_are_answered_as_described(play: Play) -> None:
    http = play.http
    handler = {"type": "demo/hello", "schemaVersion": 1, "effectSafety": "pure", "inputSchema": {"type": "object"}, "slots": 2}
    body = {
        "instanceId": "one",
        "host": "h",
        "build": "1",
        "slots": 9,
        "sdk": {"name": "n", "version": "1"},
        "handlers": [handler],
    }
    described(("PUT", "/v1/workers/{workerId}"), await http.worker.put("/v1/workers/tester", json=body))
    for number in range(6):
        await play.submit(tags={"n": str(number)}, trace={"traceparent": "x"})
    attempts = described(("POST", "/v1/claims"), await http.worker.post("/v1/claims", json=play.claim_body(slots=6)))["attempts"]
    stale = {**ids(attempts[0]), "fence": 99}
    beat = {"workerId": "tester", "instanceId": "one", "attempts": [ids(attempts[0]), stale]}
    described(("POST", "/v1/attempts/heartbeat"), await http.worker.post("/v1/attempts/heartbeat", json=beat))
    done = [{**ids(attempts[0]), "outcome": "succeeded"}, {**stale, "outcome": "failed"}]
    for claim in (play.claim_body(), {"workerId": "tester"}):
        answer = await http.worker.post("/v1/attempts/complete", json={"completions": done, "claim": claim})
        described(("POST", "/v1/attempts/complete"), answer)
    release = {"attempts": [{**ids(attempts[1]), "started": False}, {**stale, "started": True}]}
    described(("POST", "/v1/attempts/release"), await http.worker.post("/v1/attempts/release", json=release))
    for number, (call, fields) in enumerate((("heartbeat", {}), ("complete", {"outcome": "succeeded"}), ("release", {})), 2):
        attempt = attempts[number]
        path = f"/v1/tasks/{attempt['taskId']}/attempts/{attempt['attemptId']}/{call}"
        place = ("POST", f"/v1/tasks/{{taskId}}/attempts/{{attemptId}}/{call}")
        described(place, await http.worker.post(path, json={**ids(attempt), **fields}))
    described(("GET", "/v1/doctor"), await http.worker.get("/v1/doctor?workerId=tester"))
    path = "/v1/workers/tester/instances/one"
    described(("DELETE", "/v1/workers/{workerId}/instances/{instanceId}"), await http.worker.delete(path))


async def test_the_fleet_and_the_service_are_told_as_described(play: Play) -> None:
    http = play.http
    await play.run(concurrency={"key": "c", "limit": 1})
    handler = {"type": "demo/hello", "schemaVersion": 1, "effectSafety": "pure", "retry": {"maxAttempts": 2}}
    await http.worker.put("/v1/workers/tester", json={"instanceId": "one", "handlers": [handler]})
    await play.sweep()
    for path in ("/v1/workers", "/v1/task-types", "/v1/doctor", "/v1/config", "/v1/keys", "/v1/audit", "/v1/limits"):
        described(("GET", path), await http.operator.get(path))
    described(("GET", "/v1/workers/{workerId}"), await http.operator.get("/v1/workers/tester"))
    described(("GET", "/v1/task-types/{group}/{name}/{version}"), await http.operator.get("/v1/task-types/demo/hello/1"))
    for call in ("pause", "resume"):
        place = f"/v1/task-types/{{group}}/{{name}}/{{version}}/{call}"
        described(("POST", place), await http.operator.post(f"/v1/task-types/demo/hello/1/{call}"))
        described(("POST", f"/v1/project/{call}"), await http.operator.post(f"/v1/project/{call}"))
    described(("PUT", "/v1/limits"), await http.operator.put("/v1/limits?key=c", json={"limit": 1}))
    described(("GET", "/v1/limits"), await http.operator.get("/v1/limits"))
    described(("DELETE", "/v1/limits"), await http.operator.delete("/v1/limits?key=c"))
    described(("PUT", "/v1/limits/rate"), await http.operator.put("/v1/limits/rate", json={"perSecond": 1, "burst": 5}))
    described(("GET", "/v1/limits"), await http.operator.get("/v1/limits"))
    key = {"name": "n", "kind": "task-worker", "types": ["a/*"], "expiresAt": "2999-01-01T00:00:00Z", "idempotencyKey": "k"}
    for _ in range(2):
        made = described(("POST", "/v1/keys"), await http.operator.post("/v1/keys", json=key))
    described(
        ("POST", "/v1/keys/{id}/rotate"), await http.operator.post(f"/v1/keys/{made['id']}/rotate", json={"overlapSeconds": 9})
    )
    described(("POST", "/v1/keys/{id}/revoke"), await http.operator.post(f"/v1/keys/{made['id']}/revoke"))
    described(("GET", "/v1/keys"), await http.operator.get("/v1/keys"))
    described(("POST", "/v1/projects"), await http.admin.post("/v1/projects", json={"name": "p"}))
    described(("GET", "/v1/projects"), await http.admin.get("/v1/projects"))
    described(("POST", "/v1/workers/{workerId}/drain"), await http.operator.post("/v1/workers/tester/drain"))
    described(("DELETE", "/v1/workers/{workerId}"), await http.operator.delete("/v1/workers/tester"))
    described(("GET", "/healthz"), await http.get("/healthz"))
    described(("GET", "/readyz"), await http.get("/readyz"))
