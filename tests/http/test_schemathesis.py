"""Anything that the OpenAPI document allows, and much that it does not, is answered as the document says: never by a 500.

The document is the served one (tests/http/test_openapi.py holds the file equal to it). Inputs are derived from a fixed seed, so a
failure can be run again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from interlock_core.http import MAX_BODY
from support.served import Served

CONTRACT = Path(__file__).resolve().parents[2] / "sdk" / "contract" / "openapi.json"
DOCUMENT = json.loads(CONTRACT.read_text(encoding="utf-8"))
FEW, MANY = 4, 60
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]

schema = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS = {operation.definition.raw["operationId"]: operation for operation in (o.ok() for o in schema.get_all_operations())}


@pytest.fixture(scope="module")
def world(served: Served) -> dict[str, str]:
    """Objects that exist, so that a random call also meets one: path parameter → its value."""
    with httpx.Client(base_url=served.url) as client:

        def call(kind: str, method: str, path: str, body: dict[str, Any]) -> Any:
            answer = client.request(method, path, json=body, headers={"Authorization": f"Bearer {served.keys[kind]}"})
            assert answer.status_code in (200, 201), answer.text
            return answer.json()

        handler = {"type": "demo/hello", "schemaVersion": 1, "effectSafety": "non-idempotent"}
        program = {"instanceId": "here", "slots": 100, "handlers": [handler]}
        call("task-worker", "PUT", "/v1/workers/greeter", program)
        for _ in range(3):
            call(
                "task-producer",
                "POST",
                "/v1/tasks",
                {"type": "demo/hello", "schemaVersion": 1, "input": {}, "leaseSeconds": 3600},
            )
        claim = {"workerId": "greeter", "instanceId": "here", "claimId": "1", "slots": 3, "handlers": [handler]}
        attempts = call("task-worker", "POST", "/v1/claims", claim)["attempts"]
        ids = {name: attempts[0][name] for name in ("taskId", "attemptId", "fence", "leaseToken")}
        call(
            "task-worker",
            "POST",
            "/v1/attempts/complete",
            {"completions": [{**ids, "outcome": "unknown", "error": {"message": "?"}}]},
        )
        key = call("operator", "POST", "/v1/keys", {"name": "spare", "kind": "metrics"})
    return {
        "id": attempts[0]["taskId"],
        "taskId": attempts[1]["taskId"],
        "attemptId": attempts[1]["attemptId"],
        "workerId": "greeter",
        "instanceId": "here",
        "group": "demo",
        "name": "hello",
        "version": "1",
        "keyId": key["id"],
    }


#: What a gateway says by itself of more than it carries, as Lambda's does.
GATEWAY_REFUSAL = {"message": "Request Entity Too Large"}


def _send(served: Served, world: dict[str, str], case: schemathesis.Case) -> None:
    raw = case.operation.definition.raw
    parameters = case.path_parameters or {}
    if parameters and len(str(parameters)) % 2:  # a fixed half of the cases names what exists
        own = {"id": world["keyId"]} if "/v1/keys/" in case.path else {}
        case.path_parameters = {name: {**world, **own}.get(name, value) for name, value in parameters.items()}
    headers = {}
    if kinds := raw.get("x-interlock-keys"):
        headers["Authorization"] = f"Bearer {served.keys[kinds[0]]}"
    response = case.call(base_url=served.url, headers=headers)
    if response.status_code == 413 and response.json() == GATEWAY_REFUSAL:
        assert len(response.request.body or "") > MAX_BODY, "smaller ones are the service's to refuse"
        return
    refused = response.json().get("code") if response.status_code >= 500 else None
    assert refused is None or refused.startswith("NO_ELIGIBLE_"), (
        f"{case.as_curl_command(headers)}\n{response.status_code} {response.text}"
    )
    case.validate_response(response, checks=CHECKS, headers=headers)


def _takes_input(name: str) -> bool:
    raw = OPERATIONS[name].definition.raw
    return "parameters" in raw or "requestBody" in raw


@pytest.mark.parametrize("examples", [FEW, pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_every_call_is_answered_as_the_document_says(
    name: str, mode: GenerationMode, examples: int, served: Served, world: dict[str, str]
) -> None:
    if mode is GenerationMode.NEGATIVE and not _takes_input(name):
        return  # there is nothing to be wrong
    operation = OPERATIONS[name]

    @settings(
        max_examples=examples if _takes_input(name) else 1,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: schemathesis.Case) -> None:
        _send(served, world, case)

    run()
