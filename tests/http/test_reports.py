"""Reports: what is broken in one item concerns that item alone; text never makes a report fail (docs/protocol.md)."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from interlock_core import claims
from support.clock import Clock
from support.play import Play, ids, refused


async def post(play: Play, path: str, body: str) -> httpx.Response:
    return await play.http.worker.post(path, content=body.encode("utf-8", "surrogatepass"))


async def test_b26_a_broken_value_ends_its_own_task_and_no_other(play: Play) -> None:
    broken = ["NaN", "[1e999]", '{"a": 1, "a": 2}', '"\\ud800"', "1" * 5000]
    attempts = [await play.run() for _ in range(len(broken) + 1)]
    parts = [json.dumps({**ids(a), "outcome": "succeeded"})[:-1] for a in attempts]
    items = [f'{part}, "result": {text}}}' for part, text in zip(parts, [*broken, '"good"'], strict=True)]
    answer = await post(play, "/v1/attempts/complete", f'{{"completions": [{", ".join(items)}]}}')
    assert answer.status_code == 200, answer.text
    statuses = [item["taskStatus"] for item in answer.json()["completions"]]
    assert statuses == ["failed"] * 5 + ["succeeded"]
    for attempt in attempts[:5]:
        assert (await play.get(attempt["taskId"]))["failure"]["code"] == "RESULT_NOT_STORABLE"
    for depth in (65, 20_000):
        attempt = await play.run()
        item = json.dumps({**ids(attempt), "outcome": "succeeded"})[:-1] + f', "result": {"[" * depth}{"]" * depth}}}'
        deep = await post(play, "/v1/attempts/complete", f'{{"completions": [{item}, "no item"]}}')
        assert deep.json()["completions"][0]["taskStatus"] == "failed", deep.text
        assert "deeper than 64" in (await play.get(attempt["taskId"]))["failure"]["message"]


async def test_a_number_that_cannot_be_read_is_not_taken_for_another(play: Play) -> None:
    attempt, digits = await play.run(), "1" * 5000
    part = json.dumps({**ids(attempt), "outcome": "retryable"})[:-1]
    answer = await post(play, "/v1/attempts/complete", f'{{"completions": [{part}, "retryAfterSeconds": {digits}}}]}}')
    assert answer.json()["completions"][0]["error"]["errors"][0]["pointer"] == "/completions/0/retryAfterSeconds"
    beat = json.dumps({**ids(attempt)})[:-1] + f', "progress": {{"percent": {digits}, "message": "m"}}}}'
    body = f'{{"workerId": "tester", "instanceId": "one", "attempts": [{beat}]'
    answer = await post(play, "/v1/attempts/heartbeat", f'{body}, "slots": {digits}}}')
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (400, "/slots")
    assert (await post(play, "/v1/attempts/heartbeat", f"{body}}}")).status_code == 200
    assert (await play.get(attempt["taskId"]))["progress"]["percent"] is None
    error = f'{{"code": "BAD", "message": "m", "details": [-{digits}]}}'
    part = part.replace("retryable", "failed")
    await post(play, "/v1/attempts/complete", f'{{"completions": [{part}, "error": {error}}}]}}')
    assert (await play.get(attempt["taskId"]))["failure"]["details"] == ["-inf"]


async def test_ids_that_stand_in_the_path_may_be_null_in_the_body(play: Play) -> None:
    """As the OpenAPI document says: what fills in absent fields in other languages sends them so."""
    attempt = await play.run()
    single = f"/v1/tasks/{attempt['taskId']}/attempts/{attempt['attemptId']}"
    body = {**ids(attempt), "taskId": None, "attemptId": None}
    step = await play.http.worker.post(f"{single}/steps", json={**body, "name": "one", "status": "started"})
    assert step.status_code == 200, step.text
    child = await play.http.worker.post(
        f"{single}/children", json={**body, "name": "c", "type": "a/b", "schemaVersion": 1, "input": 1}
    )
    assert child.status_code == 200, child.text
    done = await play.http.worker.post(f"{single}/complete", json={**body, "outcome": "succeeded"})
    assert (done.status_code, done.json().get("taskStatus")) == (200, "succeeded"), done.text


async def test_unparsable_bytes_fail_the_call(play: Play) -> None:
    for body in (b'{"completions": [', b"\xff\xfe", b'\xef\xbb\xbf{"completions": []}', b'{"completions": []} x'):
        answer = await play.http.worker.post("/v1/attempts/complete", content=body)
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_JSON"), body


async def test_b26_text_is_cleaned_and_cut_and_never_refused(play: Play) -> None:
    attempt = await play.run()
    part = json.dumps({**ids(attempt), "outcome": "failed"})[:-1]
    body = f'{part}, "error": {{"code": "BAD\\u0000NAME\\ud800", "message": "{"é" * 20_000}", "details": {{"x": NaN, "y": "\\udfff"}}}}}}'
    answer = await post(play, "/v1/attempts/complete", f'{{"completions": [{body}]}}')
    assert answer.json()["completions"][0]["taskStatus"] == "failed"
    failure = (await play.get(attempt["taskId"]))["failure"]
    assert failure["code"] == "BAD\ufffdNAME\ufffd"
    assert failure["message"].endswith("…[truncated]")
    assert len(failure["message"].encode()) <= 16 * 1024
    assert failure["details"] == {"x": "nan", "y": "\ufffd"}
    assert (await play.http.producer.get("/v1/tasks?status=failed")).json()["items"][0]["failure"]["code"] == failure["code"]


async def test_b26_what_cannot_be_written_spoils_no_other_item(play: Play) -> None:
    """As the key of a field that nobody knows, or within what should have been a text."""
    said = [
        '"outcome": "succeeded", "\\ud800": 1',
        '"outcome": "suspended", "wait": {"name": "w", "afterSeconds": 9, "\\udfff": 1}',
        '"outcome": "failed", "error": {"code": "BAD", "message": {"\\ud800": ["\\udfff", 1]}}',
        '"outcome": "failed", "error": ["\\ud800"]',
        '"outcome": "\\ud800"',
        '"outcome": "succeeded"',
    ]
    attempts = [await play.run() for _ in said]
    items = [json.dumps(ids(a))[:-1] + f", {fields}}}" for a, fields in zip(attempts, said, strict=True)]
    answer = await post(play, "/v1/attempts/complete", f'{{"completions": [{", ".join(items)}], "\\udbff": null}}')
    assert answer.status_code == 200, answer.text
    found = answer.json()["completions"]
    assert [item.get("taskStatus") for item in found] == ["succeeded", "waiting", "failed", "failed", None, "succeeded"]
    assert found[4]["error"]["errors"][0]["pointer"] == "/completions/4/outcome"
    assert (await play.get(attempts[2]["taskId"]))["failure"]["message"] == '{"\ufffd":["\ufffd",1]}'
    held = attempts[4]
    beat = (
        json.dumps(ids(held))[:-1]
        + ', "\\ud800": 1, "logs": [{"seq": 1, "message": ["\\ud800"]}], "progress": {"message": ["\\ud800"]}}'
    )
    both = f'{{"workerId": "tester", "instanceId": "one", "\\ud800": 1, "attempts": [{beat}]}}'
    answer = await post(play, "/v1/attempts/heartbeat", both)
    assert (answer.status_code, "error" in answer.json()["attempts"][0]) == (200, False), answer.text
    single = f"/v1/tasks/{held['taskId']}/attempts/{held['attemptId']}"
    answer = await post(play, f"{single}/release", json.dumps(ids(held))[:-1] + ', "\\ud800": 1}')
    assert answer.json()["taskStatus"] == "queued"


async def test_an_error_that_is_no_object_is_still_a_failure(play: Play) -> None:
    for error in ("just text", None, 7, [], {"code": 5}):
        attempt = await play.run()
        assert (await play.complete(attempt, "failed", error=error))["taskStatus"] == "failed"
        failure = (await play.get(attempt["taskId"]))["failure"]
        assert failure["code"]
        assert failure["message"]


async def test_an_item_that_cannot_be_read_has_its_own_error(play: Play) -> None:
    good = await play.run()
    items: list[Any] = [
        {**ids(good), "outcome": "perhaps"},
        {"attemptId": "x"},
        "text",
        {**ids(good), "fence": "1"},
        {**ids(good), "outcome": "succeeded", "result": 1},
    ]
    answer = (await play.http.worker.post("/v1/attempts/complete", json={"completions": items})).json()["completions"]
    assert [a.get("error", {}).get("code") for a in answer] == ["INVALID_REQUEST"] * 4 + [None]
    assert answer[0]["error"]["errors"][0]["pointer"] == "/completions/0/outcome"
    assert answer[4]["taskStatus"] == "succeeded"


async def test_one_attempt_twice_in_a_batch(play: Play) -> None:
    attempt = await play.run()
    item = {**ids(attempt), "outcome": "succeeded", "result": 1}
    answer = (
        await play.http.worker.post("/v1/attempts/complete", json={"completions": [item, item, {**item, "result": 2}]})
    ).json()
    first, second, third = answer["completions"]
    assert (first["duplicate"], second["duplicate"], third["error"]["code"]) == (False, True, "STALE_ATTEMPT")
    assert (await play.get(attempt["taskId"]))["result"] == 1


async def test_a_completion_claims_the_next_work_in_one_call(play: Play) -> None:
    attempt = await play.run()
    after = await play.submit()
    body = {"completions": [{**ids(attempt), "outcome": "succeeded", "result": 1}], "claim": play.claim_body()}
    answer = (await play.http.worker.post("/v1/attempts/complete", json=body)).json()
    assert answer["completions"][0]["taskStatus"] == "succeeded"
    assert [a["taskId"] for a in answer["claim"]["attempts"]] == [after["id"]]


async def test_a_refused_claim_does_not_lose_the_completions_answer(play: Play) -> None:
    attempt = await play.run()
    body = {"completions": [{**ids(attempt), "outcome": "succeeded", "result": 1}], "claim": {"slots": 0}}
    answer = await play.http.worker.post("/v1/attempts/complete", json=body)
    assert answer.status_code == 200
    assert answer.json()["completions"][0]["taskStatus"] == "succeeded"
    assert answer.json()["claim"]["error"]["code"] == "INVALID_REQUEST"


async def test_single_forms_answer_with_http_statuses(play: Play) -> None:
    attempt = await play.run()
    base = f"/v1/tasks/{attempt['taskId']}/attempts/{attempt['attemptId']}"
    lease = {"fence": attempt["fence"], "leaseToken": attempt["leaseToken"]}
    beat = await play.http.worker.post(f"{base}/heartbeat", json={**lease, "progress": {"percent": 5}})
    assert (beat.status_code, beat.json()["stop"]) == (200, None)
    done = await play.http.worker.post(f"{base}/complete", json={**lease, "outcome": "succeeded", "result": [1]})
    assert (done.status_code, done.json()["taskStatus"]) == (200, "succeeded")
    late = await play.http.worker.post(f"{base}/release", json=lease)
    assert (late.status_code, late.json()["code"], late.json()["retryable"]) == (409, "STALE_ATTEMPT", False)
    bad = await play.http.worker.post(f"{base}/complete", json={**lease, "taskId": attempt["attemptId"], "outcome": "succeeded"})
    assert (bad.status_code, bad.json()["code"]) == (400, "INVALID_REQUEST")


async def test_progress_and_logs_are_events_and_repeated_lines_are_dropped(play: Play, clock: Clock) -> None:
    attempt = await play.run()
    lines = [{"seq": n, "level": "info", "message": f"line {n}", "fields": {"n": n}} for n in (1, 2)]
    await play.heartbeat(attempt, progress={"percent": 50, "message": "working"}, logs=lines)
    clock.advance(1)
    await play.heartbeat(attempt, logs=[*lines, {"seq": 3, "level": "warning", "message": "line\u0000 3"}])
    clock.advance(1)
    await play.heartbeat(attempt, logs=lines)
    task = await play.get(attempt["taskId"])
    assert task["progress"]["percent"] == 50
    assert task["progress"]["message"] == "working"
    assert task["progress"]["at"]
    assert await play.kinds(task["id"]) == ["submitted", "claimed", "progress", "log", "log"]
    events = (await play.http.producer.get(f"/v1/tasks/{task['id']}/journal")).json()["items"]
    assert [line["message"] for e in events if e["kind"] == "log" for line in e["data"]["lines"]] == [
        "line 1",
        "line 2",
        "line\ufffd 3",
    ]


async def test_b41_reports_faster_than_the_rate_are_refused_and_the_lease_is_renewed(play: Play, clock: Clock) -> None:
    clock.hold()
    attempt = await play.run()
    await play.heartbeat(attempt, progress={"percent": 1})
    clock.advance(0.05)
    item = await play.heartbeat(attempt, progress={"percent": 2})
    assert (item["error"]["code"], item["error"]["retryable"]) == ("RATE_LIMITED", True)
    assert (await play.heartbeat(attempt))["stop"] is None
    clock.advance(0.2)
    await play.heartbeat(attempt, progress={"percent": 3})
    assert (await play.get(attempt["taskId"]))["progress"]["percent"] == 3
    assert (await play.kinds(attempt["taskId"])).count("progress") == 2


async def test_b41_logs_beyond_the_cap_are_cut_once_and_say_so(play: Play, clock: Clock) -> None:
    attempt = await play.run()
    for batch in range(6):
        lines = [{"seq": batch * 2000 + n, "message": "x"} for n in range(1, 2001)]
        assert (await play.heartbeat(attempt, logs=lines)).get("stop", "") is None
        clock.advance(1)
    events = (await play.http.producer.get(f"/v1/tasks/{attempt['taskId']}/journal")).json()["items"]
    logs = [e for e in events if e["kind"] == "log"]
    assert [len(e["data"]["lines"]) for e in logs] == [2000] * 5 + [0]
    assert logs[-1]["data"]["truncated"] is True


async def test_b19_an_oversize_line_is_cut(play: Play) -> None:
    attempt = await play.run()
    await play.heartbeat(attempt, logs=[{"seq": 1, "level": "info", "message": "x" * 100_000}])
    event = (await play.http.producer.get(f"/v1/tasks/{attempt['taskId']}/journal")).json()["items"][-1]
    message = event["data"]["lines"][0]["message"]
    assert message.endswith("…[truncated]")
    assert len(message.encode()) == 16 * 1024


@pytest.mark.in_process
async def test_a_defect_of_the_claim_does_not_cost_the_completions_their_answer(
    play: Play, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attempt = await play.run()

    async def fail(*_: Any) -> None:
        raise KeyError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(claims, "claim", fail)
        body = {"completions": [{**ids(attempt), "outcome": "succeeded"}], "claim": play.claim_body()}
        answer = await play.http.worker.post("/v1/attempts/complete", json=body)
    assert (answer.status_code, answer.json()["completions"][0]["taskStatus"]) == (200, "succeeded")
    assert answer.json()["claim"]["error"]["code"] == "INTERNAL"
    assert "the claim beside 1 completions failed" in caplog.text


DOUBLED = [
    ('"outcome": "failed", "error": {"code": "BAD"}, "outcome": "cancelled"', "/outcome"),
    ('"outcome": "succeeded", "result": 1, "result": 2', "/result"),
    ('"outcome": "suspended", "wait": {"name": "w", "afterSeconds": 1, "afterSeconds": 9}', "/wait/afterSeconds"),
]


@pytest.mark.parametrize(("fields", "place"), DOUBLED)
async def test_an_item_that_says_a_thing_twice_is_refused_alone(play: Play, fields: str, place: str) -> None:
    """Which of the two was meant is not known."""
    await play.submit()
    await play.submit()
    one, other = await play.claim(slots=2)
    doubled = json.dumps(ids(one))[:-1] + f", {fields}}}"
    sound = json.dumps({**ids(other), "outcome": "succeeded", "result": 1})
    answer = await play.http.worker.post("/v1/attempts/complete", content=f'{{"completions": [{doubled}, {sound}]}}')
    assert answer.status_code == 200, answer.text
    first, second = answer.json()["completions"]
    assert (first["attemptId"], refused(first)) == (one["attemptId"], "INVALID_JSON")
    assert first["error"]["errors"][0]["pointer"] == f"/completions/0{place}"
    assert second["taskStatus"] == "succeeded"
    path = f"/v1/tasks/{one['taskId']}/attempts/{one['attemptId']}/complete"
    alone = await play.http.worker.post(path, content=doubled)
    assert (alone.status_code, alone.json()["code"]) == (400, "INVALID_JSON")
    assert (await play.complete(one))["taskStatus"] == "succeeded"


async def test_a_batch_that_stands_twice_is_not_taken_for_the_last(play: Play) -> None:
    attempt = await play.run()
    item = json.dumps({**ids(attempt), "outcome": "succeeded", "result": 1})
    answer = await play.http.worker.post("/v1/attempts/complete", content=f'{{"completions": [{item}], "completions": []}}')
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_JSON")
    assert answer.json()["errors"][0]["pointer"] == "/completions"


async def test_texts_in_which_a_key_stands_twice_are_taken(play: Play) -> None:
    attempt = await play.run()
    error = '{"code": "BAD", "message": "m", "details": {"a": 1, "a": 2}, "code": "WORSE"}'
    item = json.dumps(ids(attempt))[:-1] + f', "outcome": "failed", "error": {error}}}'
    answer = await play.http.worker.post("/v1/attempts/complete", content=f'{{"completions": [{item}]}}')
    assert answer.json()["completions"][0]["taskStatus"] == "failed"
