"""What JSON leaves open is closed, and what is accepted passes through exactly (B26, B28; the value rules of B24)."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from sql.rows import Rows
from support.play import Play, ids

SURROGATE = '"\\ud800"'
BIG = "1" + "0" * 4299  # 4,300 digits: the most that is taken


async def _submit(play: Play, input_text: str) -> httpx.Response:
    body = f'{{"type": "demo/hello", "schemaVersion": 1, "input": {input_text}}}'
    return await play.http.producer.post("/v1/tasks", content=body.encode("utf-8", "surrogatepass"))


def _place(answer: httpx.Response, code: str = "INVALID_JSON") -> str:
    """Where a refused body was broken."""
    assert answer.status_code == 400, answer.text
    problem = answer.json()
    assert problem["code"] == code
    assert problem["retryable"] is False
    assert problem["next"]
    pointer: str = problem["errors"][0]["pointer"]
    return pointer


def _members(attempt: dict[str, Any]) -> str:
    """The four fields of a report, as the text that stands between braces."""
    return json.dumps(ids(attempt))[1:-1]


BROKEN = {
    '{"a": [1, NaN]}': "/input/a/1",
    "Infinity": "/input",
    '{"a": -Infinity}': "/input/a",
    '{"x": {"y": 1e999}}': "/input/x/y",
    "-1.5e400": "/input",
    '{"a": "\\ud800"}': "/input/a",
    '["ok", "\\udc00x"]': "/input/1",
    '{"\\ud83d": 1}': "/input/\ufffd",
    '{"a": 1, "b": {"c": 1, "c": 2}}': "/input/b/c",
    '{"a": 1, "\\u0061": 1}': "/input/a",
    "9" * 4301: "/input",
    '{"n": -' + "9" * 5000 + "}": "/input/n",
}


async def test_b26_a_value_that_json_does_not_have_is_refused_at_its_place(play: Play, rows: Rows) -> None:
    for text, place in BROKEN.items():
        assert _place(await _submit(play, text)) == place, text[:40]
    batch = '{"tasks": [{"type": "a/b", "schemaVersion": 1, "input": 1}, {"type": "a/b", "schemaVersion": 1, "input": [NaN]}]}'
    assert _place(await play.http.producer.post("/v1/tasks/batch", content=batch.encode())) == "/tasks/1/input/0"
    assert rows.value("SELECT count(*) FROM tasks") == 0


DEEP = {
    "[" * 64 + "]" * 64: "/input" + "/0" * 63,
    '[[], {"a": "[,:{"}, "x", ' + "[" * 63 + "]" * 63 + "]": "/input/3" + "/0" * 62,
    '{"a": [1], "b\\"~/\\ud800": ' + '{"k": [' * 31 + "[[]]" + "]}" * 31 + "}": '/input/b"~0~1\ufffd' + "/k/0" * 31,
    '{"long": {"' + "k" * 2000 + '": ' + "[" * 70 + "]" * 70 + "}}": "/input/long/" + "k" * 988 + "…",
}


async def test_b26_what_is_nested_too_deep_is_refused_at_its_place(play: Play) -> None:
    for text, place in DEEP.items():
        assert _place(await _submit(play, text)) == place, text[:40]
    for text in (
        "[" * 65,
        "}" + "[" * 65,
        '{"a"' + "[" * 65,
        '{"a\\q": ' + "[" * 65,
        '{:,"a" "b":' + "{" * 65,
        "]" * 70 + "[" * 140,
    ):
        assert _place(await _submit(play, text)).startswith("/"), text  # no JSON: as well as it can be told
    assert _place(await play.http.producer.post("/v1/tasks", content=b"[" * 100_000)) == "/0" * 64


async def test_b26_bytes_that_are_no_json_text_are_refused(play: Play, rows: Rows) -> None:
    good = b'{"type": "demo/hello", "schemaVersion": 1, "input": {}}'
    cut = (good[:-1], good + b"x", good + good, b"[", b"'a'")
    for body in (*cut, b"\xef\xbb\xbf" + good, b"\xff", b"\x00", good.replace(b"{}", b'"\xc3("')):
        answer = await play.http.producer.post("/v1/tasks", content=body)
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_JSON"), body
    surrogate_bytes = good.replace(b"{}", b'"\xed\xa0\x80"')  # CESU: a surrogate written as if it were a character
    assert (await play.http.producer.post("/v1/tasks", content=surrogate_bytes)).status_code == 400
    for body in (b"[]", b"1", b"null", b'"x"'):
        answer = await play.http.producer.post("/v1/tasks", content=body)
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST"), body
    assert rows.value("SELECT count(*) FROM tasks") == 0


async def test_b28_nesting_is_bounded_by_the_protocol_and_not_by_the_interpreter(play: Play) -> None:
    for deep in ("[" * 20_000 + "]" * 20_000, "[" * 20_000, '{"a":' * 20_000 + "1" + "}" * 20_000):
        assert (await _submit(play, deep)).status_code == 400
    body = b'{"completions": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"
    assert (await play.http.worker.post("/v1/claims", content=body)).status_code == 400
    answer = await play.http.worker.post("/v1/attempts/complete", content=body)  # here it concerns the item alone
    assert [item["error"]["code"] for item in answer.json()["completions"]] == ["INVALID_REQUEST"]
    at_the_limit = "[" * 63 + "]" * 63  # the body itself is one more
    answer = await _submit(play, at_the_limit)
    assert answer.status_code == 201
    (attempt,) = await play.claim()
    nested: Any = attempt["input"]
    for _ in range(62):
        (nested,) = nested
    assert nested == []
    assert (await play.complete(attempt, result=attempt["input"]))["taskStatus"] == "succeeded"
    assert (await play.get(attempt["taskId"]))["result"] == attempt["input"]
    assert _place(await _submit(play, "[" + at_the_limit + "]")) == "/input" + "/0" * 63


EXACT = [
    "9007199254740993",
    "-" + BIG,
    "[1.0, 1e2, 1E-7, 0.1000, -0, -0.0, 5e-324, 1.7976931348623157e308]",
    '{"z": 1, "a": {"b": 2, "B": 3}, "": null}',
    '"\\u0000 \\u001f \\/ \\ud83d\\ude00 😀 \\u00e9 e\u0301 \u2028 \u202e \ufeff \uffff \U0010ffff"',
    "[ 1 ,\n\t2 ]",
    "null",
    '""',
    "[]",
    "{}",
    "false",
]


async def test_b26_accepted_values_pass_through_exactly(play: Play, rows: Rows) -> None:
    for text in EXACT:
        answer = await _submit(play, text)
        assert answer.status_code == 201, text[:60]
        task_id = answer.json()["id"]
        assert rows.value("SELECT input FROM tasks WHERE id = %s", task_id) == text
        claimed = await play.http.worker.post("/v1/claims", json=play.claim_body())
        assert f'"input":{text},'.encode() in claimed.content
        (attempt,) = claimed.json()["attempts"]
        report = _members(attempt)
        body = f'{{"completions": [{{{report}, "outcome": "succeeded", "result": {text}}}]}}'
        answer = await play.http.worker.post("/v1/attempts/complete", content=body.encode())
        assert answer.json()["completions"][0].get("taskStatus") == "succeeded", answer.text
        view = await play.http.producer.get(f"/v1/tasks/{task_id}")
        assert f'"input":{text},'.encode() in view.content
        assert f'"result":{text},'.encode() in view.content


RESULTS = ("NaN", "[1e999]", SURROGATE, '{"a": 1, "a": 2}', "9" * 4301, "[" * 65 + "]" * 65)


async def test_b26_a_result_that_breaks_a_rule_ends_its_own_task_only(play: Play) -> None:
    tasks = [await play.submit() for _ in range(len(RESULTS) + 1)]
    attempts = await play.claim(slots=len(tasks))
    items = []
    for attempt, text in zip(attempts, ["true", *RESULTS], strict=True):
        report = _members(attempt)
        items.append(f'{{{report}, "outcome": "succeeded", "result": {text}}}')
    body = f'{{"completions": [{", ".join(items)}]}}'.encode("utf-8", "surrogatepass")
    answer = await play.http.worker.post("/v1/attempts/complete", content=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()["completions"]
    assert [item["taskStatus"] for item in found] == ["succeeded"] + ["failed"] * len(RESULTS)
    for attempt in attempts[1:]:
        view = await play.get(attempt["taskId"])
        assert view["failure"]["code"] == "RESULT_NOT_STORABLE"
        assert view["attempts"] == 0
    again = await play.http.worker.post("/v1/attempts/complete", content=body)
    assert {item["duplicate"] for item in again.json()["completions"]} == {True}


async def test_b26_text_never_makes_a_report_fail(play: Play) -> None:
    attempt = await play.run()
    report = _members(attempt)
    logs = '[{"seq": 1, "message": "\\udcff x", "fields": {"n": 1e999}}]'
    texts = '"progress": {"percent": NaN, "message": "a\\u0000b\\udcff"}, "logs": ' + logs
    body = f'{{"workerId": "tester", "instanceId": "one", "attempts": [{{{report}, {texts}}}]}}'
    answer = await play.http.worker.post("/v1/attempts/heartbeat", content=body.encode())
    assert answer.status_code == 200, answer.text
    assert "leaseExpiresAt" in answer.json()["attempts"][0]
    error = '{"code": "BAD\\u0000", "message": "no such file: caf\\udce9", "details": {"name\\ud800": ["\\udce9", NaN, 1e999]}}'
    body = f'{{"completions": [{{{report}, "outcome": "failed", "error": {error}}}]}}'
    answer = await play.http.worker.post("/v1/attempts/complete", content=body.encode())
    assert answer.json()["completions"][0]["taskStatus"] == "failed"
    view = await play.get(attempt["taskId"])
    assert (view["failure"]["code"], view["failure"]["message"]) == ("BAD\ufffd", "no such file: caf\ufffd")
    assert (await play.http.producer.get("/v1/tasks")).status_code == 200
    journal = await play.http.producer.get(f"/v1/tasks/{attempt['taskId']}/journal")
    assert [e["kind"] for e in journal.json()["items"]] == ["submitted", "claimed", "progress", "log", "failed"]
    assert journal.json()["items"][2]["data"]["message"] == "a\ufffdb\ufffd"


@pytest.mark.parametrize("size", [256 * 1024, 256 * 1024 + 1])
async def test_b19_inputs_are_measured_in_bytes(play: Play, size: int) -> None:
    text = '"' + "é" * ((size - 2) // 2) + "x" * ((size - 2) % 2) + '"'
    answer = await _submit(play, text)
    if size <= 256 * 1024:
        assert answer.status_code == 201
    else:
        assert (answer.status_code, answer.json()["code"]) == (413, "PAYLOAD_TOO_LARGE")
        assert answer.json()["errors"][0]["pointer"] == "/input"
