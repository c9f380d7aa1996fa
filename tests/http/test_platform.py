"""What the platform in front of a function does to paths, bodies and sizes is the same on every host (case B56)."""

from __future__ import annotations

import gzip
import json
from typing import Any
from urllib.parse import quote

import pytest

from support.api import Http
from support.play import Play

TASK = {"type": "demo/hello", "schemaVersion": 1, "input": {"name": "Ada"}}
RAW = json.dumps(TASK).encode()
MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/workers/a%20b", 404),
        ("/v1/workers/%E2%82%AC", 404),
        ("/v1/workers/a%2Fb", 404),
        ("/v1/workers/%zz", 404),
        ("/v1/workers/%25", 404),
        ("/v1/tasks?tag=order%3A17%20a+b&limit=1", 200),
        ("/v1/tasks?tag=a%3A%26%3D%23", 200),
        ("/v1/tasks?limit=0", 400),
        ("/v1/tasks/", 404),
        ("/v1//tasks", 404),
    ],
)
async def test_b56_encoded_paths_and_queries_are_read_alike(http: Http, path: str, status: int) -> None:
    answer = await http.operator.get(path)
    assert answer.status_code == status, answer.text
    if status >= 400:
        assert answer.json()["code"] in ("NOT_FOUND", "INVALID_REQUEST")


@pytest.mark.parametrize("instance", ["a%41", "100%", "%2e", "a b+c", "é%C3%A9", "%25"])
async def test_b56_a_path_is_decoded_once(http: Http, instance: str) -> None:
    """What a worker called itself is what its path names, a percent sign in it too."""
    body = {"instanceId": instance, "pool": "default", "slots": 1, "sdk": {"name": "raw", "version": "1"}, "handlers": []}
    assert (await http.worker.put("/v1/workers/odd", json=body)).status_code == 200
    gone = await http.worker.delete(f"/v1/workers/odd/instances/{quote(instance, safe='')}")
    assert gone.status_code in (200, 204), gone.text


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({}, RAW, 201),
        ({"content-type": "application/json"}, RAW, 201),
        ({"content-type": "application/vnd.acme.task+json; charset=utf-8"}, RAW, 201),
        ({"content-encoding": "gzip"}, gzip.compress(RAW), 201),
        ({"content-type": "application/json", "content-encoding": "gzip"}, gzip.compress(RAW), 201),
        ({"content-type": "application/json", "content-encoding": "gzip"}, b"nonsense", 400),
        ({"content-type": "application/json"}, b"", 400),
        ({"content-type": "application/json"}, b"\xff\xfe", 400),
        ({"content-type": "text/plain"}, RAW, 415),
        ({"content-type": "application/json", "content-encoding": "br"}, RAW, 415),
        ({"content-type": "application/json"}, b'{"type": "' + b"a" * (5 * MIB) + b'"}', 413),
        ({}, b'{"type": "' + b"a" * (4 * MIB) + b'"}', 413),
        ({"content-type": "application/json"}, b'{"type": [' + b'"a",' * (MIB + MIB // 8) + b'""]}', 413),
        ({"content-encoding": "gzip"}, gzip.compress(b'{"type": "' + b"a" * (5 * MIB) + b'"}'), 413),
        ({"content-type": "application/json"}, b'{"type": "' + b"a" * (11 * MIB) + b'"}', 413),
    ],
    ids=[
        *("no type", "json", "vendor", "gzip without a type", "gzip", "no gzip", "empty", "no utf-8", "text", "brotli"),
        *("5 MiB", "4 MiB coded", "escapes", "bomb", "11 MiB"),
    ],
)
async def test_b56_bodies_are_taken_alike(http: Http, headers: dict[str, str], body: bytes, status: int) -> None:
    answer = await http.producer.post("/v1/tasks", content=body, headers=headers)
    assert answer.status_code == status, answer.text[:500]


async def test_b56_a_repeated_header_and_cookies_are_taken_alike(http: Http) -> None:
    bearer = f"Bearer {http.keys['task-producer']}".encode()
    cookies = [(b"Cookie", b"a=1; b=2"), (b"Cookie", b"c=3")]
    answer = await http.request("GET", "/v1/tasks", headers=[(b"AUTHORIZATION", bearer), *cookies])
    assert answer.status_code == 200
    twice = await http.request("GET", "/v1/tasks", headers=[(b"authorization", bearer), (b"Authorization", bearer)])
    assert (twice.status_code, twice.headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize(
    ("count", "value"), [(700, ["a"] * 1200), (1000, "a" * 5100), (1000, '"' * 1300)], ids=["signs", "text", "escapes"]
)
async def test_no_answer_is_larger_than_the_platform_carries(play: Play, count: int, value: Any) -> None:
    """The largest batches that are taken are answered, and so is every page of what they made."""
    task: dict[str, Any] = {**TASK, "input": value}
    body = json.dumps({"tasks": [task] * count}, separators=(",", ":")).encode()
    assert 2.5 * MIB < len(body) < 5 * MIB
    headers = {"content-type": "application/json"}
    answer = await play.http.producer.post("/v1/tasks/batch", content=body, headers=headers)
    assert answer.status_code in (200, 201), answer.text[:300]
    assert len(json.dumps(answer.text)) < 5_500_000
    page = await play.http.operator.get("/v1/tasks?limit=200")
    assert (page.status_code, len(page.json()["items"])) == (200, 200)


async def test_a_claim_of_tasks_with_large_tags_fits_and_says_that_there_are_more(play: Play) -> None:
    tags = {"😀" * 250 + str(n): '"' * 255 for n in range(16)}
    trace = {"traceparent": "é" * 255, "tracestate": '"' * 512}
    task: dict[str, Any] = {**TASK, "input": '"' * 5_000, "tags": tags, "trace": trace}
    for _ in range(5):
        body = json.dumps({"tasks": [task] * 20}, ensure_ascii=False).encode()
        assert (await play.http.producer.post("/v1/tasks/batch", content=body)).status_code == 201
    left, met = True, 0
    while left:
        answer = await play.http.worker.post("/v1/claims", json=play.claim_body(type=TASK["type"], slots=100))
        assert answer.status_code == 200, answer.text[:300]
        assert len(json.dumps(answer.text, ensure_ascii=False).encode()) < 5_500_000
        assert {len(attempt["tags"]) for attempt in answer.json()["attempts"]} == {16}
        met += len(answer.json()["attempts"])
        left = answer.json()["more"]
    assert met == 100
