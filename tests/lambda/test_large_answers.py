"""What a function answers is carried whatever its letters: an older runtime writes one that is not ASCII as six characters."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

from gateway import make_event, read_answer

Load = Callable[..., Any]
PLATFORM_BYTES = 6 * 1024 * 1024
CLAIM = {
    "workerId": "w",
    "instanceId": "i",
    "slots": 20,
    "handlers": [{"type": "demo/hello", "schemaVersion": 1, "effectSafety": "pure"}],
}


def call(environment: Any, key: str, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """What the platform is given, and what the caller gets of it."""
    headers = [("authorization", f"Bearer {key}"), ("content-type", "application/json")]
    answer = environment(
        make_event("POST", path, route=f"POST {path}", headers=headers, body=json.dumps(body, ensure_ascii=False).encode())
    )
    return answer, json.loads(read_answer(answer).body)


def test_a_claim_of_two_mebibytes_of_letters_is_carried(load: Load, keys: dict[str, str], database_url: str) -> None:
    submit, claim = load("submit", database_url), load("claim", database_url)
    for letter in ("é", '"'):
        given = letter * ((256 * 1024 - 2) // len(json.dumps(letter, ensure_ascii=False).encode()[1:-1]))
        for _ in range(9):
            _, task = call(submit, keys["task-producer"], "/v1/tasks", {"type": "demo/hello", "schemaVersion": 1, "input": given})
            assert task["status"] == "queued"
        met = 0
        while met < 9:
            answer, told = call(claim, keys["task-worker"], "/v1/claims", CLAIM | {"claimId": str(uuid.uuid4())})
            assert {attempt["input"] for attempt in told["attempts"]} == {given}
            assert len(json.dumps(answer)) < PLATFORM_BYTES, letter
            met += len(told["attempts"])


def test_a_small_answer_is_text(load: Load, keys: dict[str, str], database_url: str) -> None:
    answer, task = call(
        load("submit", database_url), keys["task-producer"], "/v1/tasks", {"type": "demo/hello", "schemaVersion": 1, "input": "é"}
    )
    assert (answer["isBase64Encoded"], task["status"]) == (False, "queued")
