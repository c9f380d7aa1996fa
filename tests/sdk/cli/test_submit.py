"""`interlock tasks submit`."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import pytest

from interlock import Retryable, TaskContext, UnknownOutcome
from interlock.cli.app import run
from sdk.cli.command import Cli
from sdk.conftest import Answer, ScriptedServer, Seen
from sdk.live import Live

ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


def test_submit_says_the_id_first_and_warns_of_a_type_that_nobody_serves(cli: Cli, live: Live) -> None:
    done = cli.run(
        "tasks",
        "submit",
        live.type,
        "--input",
        '{"name": "Ada"}',
        "--tag",
        "order=17",
        "--priority",
        "-5",
        "--delay",
        "1h",
        expect=0,
    )
    assert ID.fullmatch(done.out.split()[0])
    assert f"{live.type}@1 queued" in done.out
    assert "no worker ever registered" in done.err
    task = live.producer.get(done.out.split()[0])
    assert (task.input, task.tags, task.priority, task.waiting and task.waiting["reason"]) == (
        {"name": "Ada"},
        {"order": "17"},
        -5,
        "not-due",
    )


def test_every_option_of_submit_arrives(offline: Cli, scripted: ScriptedServer) -> None:
    view = {"id": str(uuid.uuid4()), "type": "a/b", "schemaVersion": 3, "status": "queued", "settled": False}
    scripted.answer("POST", "/v1/tasks", Answer(201, view))
    done = offline.run(
        "tasks", "submit", "a/b@3", "--input", "-", "--idempotency-key", "k", "--pool", "gpu", "--priority", "7",
        "--tag", "x=1", "--tag", "y=2",
        "--run-at", "2030-01-01T00:00:00Z", "--require-worker", "online", "--attempt-timeout", "2m", "--start-deadline", "1h",
        "--lease", "30", "--max-attempts", "3", "--concurrency", "k=2=5", "--traceparent", "00-1-2-01",
        "--json", "--url", scripted.url, "--key", "il_p_1_2",
        input=b'{"n": 9007199254740993, "f": 1e2}', expect=0,
    )  # fmt: skip
    assert done.json == view
    seen = scripted.seen[0]
    assert b'"input":{"n": 9007199254740993, "f": 1e2}' in seen.body
    retry = {"maxAttempts": 3, "initialDelaySeconds": 1.0, "multiplier": 2.0, "maxDelaySeconds": 300.0, "jitter": 0.2}
    assert seen.json == {
        "type": "a/b", "schemaVersion": 3, "input": {"n": 9007199254740993, "f": 100.0}, "idempotencyKey": "k", "pool": "gpu",
        "priority": 7, "tags": {"x": "1", "y": "2"}, "runAt": "2030-01-01T00:00:00Z", "requireWorker": "online",
        "timeoutSeconds": 120.0,
        "startDeadlineSeconds": 3600.0, "leaseSeconds": 30.0, "retry": retry, "concurrency": {"key": "k=2", "limit": 5},
        "trace": {"traceparent": "00-1-2-01"},
    }  # fmt: skip


def test_submit_waits_and_its_status_tells_the_end(cli: Cli, live: Live) -> None:
    def handle(inp: Any, ctx: TaskContext) -> Any:
        if inp == "fail":
            raise ValueError("no good")
        if inp == "unknown":
            raise UnknownOutcome("sent, no answer")
        if inp == "never":
            raise Retryable("later", after=3600)
        return {"n": inp["n"] + 1, "text": "→ 😀 \u202f"}

    live.start(handle)
    submit = ("tasks", "submit", live.type, "--lease", "2", "--wait")

    done = cli.run(*submit, "--input", '{"n": 9007199254740992}', expect=0)
    head, state, *rest = done.out.splitlines()
    assert ID.match(head)
    assert state == "succeeded"
    assert json.loads("\n".join(rest)) == {"n": 9007199254740993, "text": "→ 😀 \u202f"}

    done = cli.run(*submit, "--input", '{"n": 9007199254740992}', "--json", expect=0)
    assert done.json["result"]["n"] == 9007199254740993
    assert done.json["id"] in done.err

    done = cli.run(*submit, "--input", '"fail"', expect=6)
    assert "no good" in done.out

    done = cli.process(*submit, "--input", '"unknown"', "--json", expect=8)
    assert done.json["status"] == "outcome-unknown"
    assert f"tasks resolve {done.json['id']}" in cli.run("tasks", "get", done.json["id"], expect=0).out

    done = cli.run(*submit, "--input", '"never"', "--timeout", "1", "--json", expect=9)
    assert done.json["status"] == "queued"
    assert f"interlock tasks watch {done.json['id']}" in done.err
    live.producer.cancel(done.json["id"])


def test_the_same_key_is_one_task_and_another_request_a_conflict(cli: Cli, live: Live) -> None:
    submit = ("tasks", "submit", live.type, "--delay", "1h", "--idempotency-key", str(uuid.uuid4()))
    first = cli.run(*submit, "--input", '{"id": 9007199254740993}', expect=0)
    again = cli.run(*submit, "--input", '{"id": 9007199254740993}', expect=0)
    assert again.out == first.out
    assert "nothing new was stored" in again.err
    other = cli.run(*submit, "--input", '{"id": 9007199254740992}', "--json", expect=10)
    assert other.json["error"]["code"] == "IDEMPOTENCY_CONFLICT"
    assert first.out.split()[0] in other.json["error"]["message"]


def test_a_submit_without_an_answer_says_how_to_ask_again(offline: Cli, scripted: ScriptedServer) -> None:
    keys = []

    def drop(seen: Seen) -> Answer:
        keys.append(seen.json["idempotencyKey"])
        return Answer(drop=True)

    scripted.answer("POST", "/v1/tasks", drop)
    done = offline.run("tasks", "submit", "a/b", "--url", scripted.url, "--key", "il_p_1_2", "--patience", "0.5", expect=3)
    assert len(set(keys)) == 1
    assert f"--idempotency-key {keys[0]}" in done.err


WRONG: list[tuple[str, ...]] = [
    ("--input", "{name: Ada}"),
    ("--schema-version", "x"),
    ("--timeout", "5"),
    ("--priority", "101"),
    ("--tag", "x"),
    ("--no-such-option",),
    ("--require-worker", "maybe"),
]


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_a_wrong_command_line_sends_nothing(
    arguments: tuple[str, ...], scripted: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tasks", "submit", "a/b", *arguments, "--url", scripted.url, "--key", "il_p_1_2"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "interlock tasks submit --help" in said.err
    assert scripted.seen == []


def test_a_wrong_command_line_for_programs(offline: Cli) -> None:
    done = offline.process("tasks", "submit", "a/b@2", "--schema-version", "1", "--json", expect=2)
    assert done.json["error"]["exit"] == "usage"
    assert "version 2" in done.json["error"]["message"]
