"""Events as the gateway really makes them, given to the functions' Lambda entry in this process (case B56)."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway import Answer, make_event, read_answer

TASK = {"type": "demo/hello", "schemaVersion": 1, "input": {"name": "Ada"}}
RAW = json.dumps(TASK).encode()
LIMIT = 5 * 1024 * 1024

Environment = Callable[[dict[str, Any]], Any]
Load = Callable[..., Environment]


@pytest.fixture(scope="module")
def database_url(clone_database: Callable[[], str]) -> str:
    """One database for all of this file: its tests ask about edges and leave only tasks behind."""
    return clone_database()


@pytest.fixture
def submit(load: Load) -> Environment:
    """The submit function's entry."""
    return load("submit")


@pytest.fixture
def send(submit: Environment, keys: dict[str, str]) -> Callable[..., Answer]:
    """Sends one `POST /v1/tasks` with a producer's key; `change` may alter the event as the gateway made it."""

    def post(body: bytes, *headers: tuple[str, str], change: Callable[[dict[str, Any]], Any] | None = None) -> Answer:
        sent = [("Authorization", f"Bearer {keys['task-producer']}"), *headers]
        event = make_event("POST", "/v1/tasks", route="POST /v1/tasks", headers=sent, body=body)
        if change is not None:
            change(event)
        answer = read_answer(submit(event))
        assert answer.status < 500, answer
        assert answer.headers["x-request-id"]
        if answer.status >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
            problem = json.loads(answer.body)
            assert problem["status"] == answer.status
            assert problem["code"]
            assert problem["next"]
        return answer

    return post


JSON = ("Content-Type", "application/json")


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [JSON],
        [("Content-Type", "application/json; charset=utf-8")],
        [("content-type", 'APPLICATION/JSON;charset="UTF-8"')],
        [("Content-Type", "application/vnd.acme.task+json")],
    ],
    ids=["missing", "plain", "charset", "upper case", "vendor"],
)
def test_b56_a_body_is_parsed_alike_whatever_its_json_content_type(
    send: Callable[..., Answer], headers: list[tuple[str, str]]
) -> None:
    answer = send(RAW, *headers)
    assert answer.status == 201
    assert json.loads(answer.body)["input"] == TASK["input"]


def test_b56_a_body_without_content_type_does_arrive_coded() -> None:
    event = make_event("POST", "/v1/tasks", route="POST /v1/tasks", body=RAW)
    assert (event["isBase64Encoded"], base64.b64decode(event["body"])) == (True, RAW)


def test_b56_a_gzip_coded_body_is_parsed_alike(send: Callable[..., Answer]) -> None:
    assert send(gzip.compress(RAW), JSON, ("Content-Encoding", "gzip")).status == 201


@pytest.mark.parametrize(
    "media_type", ["text/plain", "application/xml", "application/x-www-form-urlencoded", "application/json; charset=latin-1"]
)
def test_b56_other_content_types_are_refused(send: Callable[..., Answer], media_type: str) -> None:
    answer = send(RAW, ("Content-Type", media_type))
    assert (answer.status, json.loads(answer.body)["code"]) == (415, "UNSUPPORTED_MEDIA_TYPE")


@pytest.mark.parametrize("coding", ["br", "deflate", "gzip, gzip", "x"])
def test_b56_other_codings_are_refused(send: Callable[..., Answer], coding: str) -> None:
    assert send(RAW, JSON, ("Content-Encoding", coding)).status == 415


@pytest.mark.parametrize("text", ["%%%", "abc", "é", "A" * 1001], ids=["signs", "padding", "non-ascii", "length"])
def test_b56_invalid_base64_is_refused(send: Callable[..., Answer], text: str) -> None:
    assert send(RAW, change=lambda event: event.update(body=text, isBase64Encoded=True)).status == 400


@pytest.mark.parametrize(
    "body",
    [gzip.compress(RAW)[:-9], b"\x1f\x8b", b"nonsense", gzip.compress(RAW)[:12] + b"\xff" * 20],
    ids=["cut", "head", "none", "spoilt"],
)
def test_b56_invalid_gzip_is_refused(send: Callable[..., Answer], body: bytes) -> None:
    assert send(body, JSON, ("Content-Encoding", "gzip")).status == 400


def test_b56_the_size_limit_counts_decoded_bytes(send: Callable[..., Answer]) -> None:
    bomb = gzip.compress(b'{"type": "' + b"a" * (2 * LIMIT) + b'"}')
    assert len(bomb) < LIMIT // 100
    assert send(bomb, JSON, ("Content-Encoding", "gzip")).status == 413
    large = json.dumps({**TASK, "input": "x" * LIMIT}).encode()
    assert send(large, JSON).status == 413
    assert send(large).status == 413, "coded by the gateway, because it has no content type"


def test_b56_an_input_just_within_its_limit_is_taken_in_every_form(send: Callable[..., Answer]) -> None:
    raw = json.dumps({**TASK, "input": "x" * (256 * 1024 - 2)}).encode()
    assert [send(raw, JSON).status, send(raw).status, send(gzip.compress(raw), JSON, ("Content-Encoding", "gzip")).status] == [
        201,
        201,
        201,
    ]


@pytest.mark.parametrize("case", [str.upper, str.title, str.lower], ids=["upper", "title", "lower"])
def test_b56_header_names_count_in_any_case(send: Callable[..., Answer], case: Callable[[str], str]) -> None:
    def spell(event: dict[str, Any]) -> None:
        event["headers"] = {case(name): value for name, value in event["headers"].items()}

    assert send(RAW, JSON, change=spell).status == 201
    assert send(RAW, ("Content-Type", "text/plain"), change=spell).status == 415


def test_b56_repeated_headers_arrive_joined_and_are_no_crash(send: Callable[..., Answer], keys: dict[str, str]) -> None:
    twice = send(RAW, JSON, ("Authorization", f"Bearer {keys['task-producer']}"))
    assert twice.status == 401
    assert twice.headers["www-authenticate"]
    assert keys["task-producer"] not in twice.body.decode()
    assert send(RAW, JSON, JSON).status in (201, 415)


def test_b56_cookies_are_carried_and_ignored(send: Callable[..., Answer]) -> None:
    assert send(RAW, JSON, ("Cookie", "one=1; two=2"), ("Cookie", "three=3")).status == 201


@pytest.mark.parametrize("change", [{"body": None}, {"body": ""}, {}], ids=["null", "empty", "absent"])
def test_an_event_without_a_body_is_a_refusal(send: Callable[..., Answer], change: dict[str, Any]) -> None:
    def strip(event: dict[str, Any]) -> None:
        event.pop("body")
        event.update(change, isBase64Encoded=False)

    assert send(RAW, JSON, change=strip).status == 400


def test_one_environment_answers_many_events_on_one_connection(
    send: Callable[..., Answer], postgres: Any, database_url: str
) -> None:
    import psycopg

    answers = [json.loads(send(RAW, JSON).body)["id"] for _ in range(20)]
    assert len(set(answers)) == 20
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'"
        assert connection.execute(query, (database_url.rpartition("/")[2],)).fetchone() == (1,)


def test_a_query_and_an_encoded_path_arrive_whole(load: Load, keys: dict[str, str]) -> None:
    read = load("read")
    sent = [("authorization", f"Bearer {keys['task-producer']}")]
    for target, route, status in (
        ("/v1/tasks?tag=order%3A17%20a&status=queued&status=running", "GET /v1/tasks", 200),
        ("/v1/tasks/%C3%A9%20%2e", "GET /v1/tasks/{id}", 404),
        ("/v1/workers/not%20known", "GET /v1/workers/{workerId}", 404),
        ("/v1/task-types/demo/never%2Dseen/1", "GET /v1/task-types/{group}/{name}/{version}", 404),
    ):
        answer = read_answer(read(make_event("GET", target, route=route, headers=sent)))
        assert answer.status == status, (target, answer)


def test_b56_a_path_is_decoded_by_the_gateway_and_not_again(load: Load, keys: dict[str, str]) -> None:
    read = load("read")
    sent = [("authorization", f"Bearer {keys['task-producer']}")]
    for target, name in (
        ("/v1/tasks/%2541", "%41"),
        ("/v1/tasks/100%25", "100%"),
        ("/v1/tasks/%252F", "%2F"),
        ("/v1/tasks/%41", "A"),
    ):
        event = make_event("GET", target, route="GET /v1/tasks/{id}", headers=sent)
        given = json.dumps(event)
        answer = read_answer(read(event))
        assert (answer.status, f"id '{name}'" in json.loads(answer.body)["detail"]) == (404, True), (target, answer)
        assert json.dumps(event) == given


def test_a_405_names_no_method_that_it_has_just_refused(load: Load, keys: dict[str, str]) -> None:
    """No route of the gateway takes HEAD: it comes to the default one, whose function answers for its own paths only."""
    read = load("read")
    sent = [("authorization", f"Bearer {keys['operator']}")]
    for target, status in (("/v1/tasks", 200), ("/v1/schedules", 405), ("/v1/claims", 405)):
        answer = read_answer(read(make_event("HEAD", target, route="$default", headers=sent)))
        assert (answer.status, "HEAD" in answer.headers.get("allow", "")) == (status, False), (target, answer)
