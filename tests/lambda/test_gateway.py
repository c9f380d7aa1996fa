"""Our gateway makes the events that the real one makes, and reads the answers as it does."""

from __future__ import annotations

import base64

import pytest

from gateway import make_event, read_answer, read_path


def test_names_are_lower_case_repeats_joined_and_cookies_apart() -> None:
    headers = [("X-One", "1"), ("x-one", "2"), ("Cookie", "a=1; b=2"), ("cookie", "c=3")]
    event = make_event("GET", "/v1/tasks?a=1&a=2", route="GET /v1/tasks", headers=headers)
    assert event["headers"] == {"x-one": "1,2"}
    assert event["cookies"] == ["a=1", "b=2", "c=3"]
    assert event["rawQueryString"] == "a=1&a=2"
    assert "body" not in event


def test_the_path_is_decoded_and_its_parameters_are_named() -> None:
    event = make_event("GET", "/v1/workers/a%20b%C3%A9", route="GET /v1/workers/{workerId}")
    assert (event["rawPath"], event["pathParameters"]) == ("/v1/workers/a bé", {"workerId": "a bé"})
    assert event["requestContext"]["http"]["path"] == "/v1/workers/a bé"


def test_a_path_of_another_route_has_no_parameters() -> None:
    assert read_path("GET /v1/tasks/{id}", "/v1/tasks/1/journal") == {}
    assert read_path("GET /v1/task-types/{group}/{name}/{version}", "/v1/task-types/a/b/1") == {
        "group": "a",
        "name": "b",
        "version": "1",
    }


@pytest.mark.parametrize(
    ("content_type", "text"),
    [
        ("application/json", True),
        ("application/json; charset=utf-8", True),
        ("text/plain", True),
        ("application/vnd.a+json", False),
        ("", False),
    ],
)
def test_a_body_is_text_only_under_the_few_types_that_the_gateway_knows(content_type: str, text: bool) -> None:
    event = make_event("POST", "/", route="POST /", headers=[("Content-Type", content_type)] if content_type else [], body=b"{}")
    assert (event["isBase64Encoded"], event["body"]) == (not text, "{}" if text else base64.b64encode(b"{}").decode())


def test_a_coded_body_is_never_text() -> None:
    headers = [("content-type", "application/json"), ("content-encoding", "gzip")]
    assert make_event("POST", "/", route="POST /", headers=headers, body=b"x")["isBase64Encoded"]


def test_an_answer_is_read_back() -> None:
    answer = read_answer(
        {
            "statusCode": 201,
            "headers": {"X-A": "b"},
            "cookies": ["s=1", "t=2"],
            "body": base64.b64encode(b"\0").decode(),
            "isBase64Encoded": True,
        }
    )
    assert (answer.status, answer.headers, answer.cookies, answer.body) == (201, {"x-a": "b"}, ("s=1", "t=2"), b"\0")


@pytest.mark.parametrize("result", [None, [], {"errorType": "ValueError", "errorMessage": "no"}])
def test_what_is_no_answer_is_the_gateways_500(result: object) -> None:
    assert read_answer(result).status == 500
