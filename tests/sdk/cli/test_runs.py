"""`interlock tasks signal | steps | children`, `rerun --from-step`, `resolve --step`: a durable run from outside."""

from __future__ import annotations

from typing import Any

from interlock import TaskContext, UnknownOutcome
from interlock.cli.runs import step_row
from sdk.cli.command import Cli
from sdk.conftest import Answer, ScriptedServer
from sdk.live import Live


def test_a_run_from_outside(cli: Cli, live: Live) -> None:
    def lose() -> None:
        raise UnknownOutcome("sent, no answer")

    def handler(inp: Any, ctx: TaskContext) -> Any:
        nothing = ctx.step("nothing", lambda: None)
        told = ctx.wait_for_signal("go", timeout=60)
        ctx.child("nobody/serves", 2, None, name="kid", detached=True)
        return [nothing, told, ctx.step("send", lose, effect_safety="non-idempotent")]

    live.start(handler, effect_safety="pure")
    task_id = live.submit({})
    live.wait_status(task_id, "waiting")
    sent = cli.run("tasks", "signal", task_id, "go", "--payload", '{"n": 1e2}', "--signal-key", "k", expect=0)
    assert "go is stored (event 5); the task is queued" in sent.out
    live.wait(task_id)
    again = cli.run("tasks", "signal", task_id, "go", "--payload", '{"n": 100}', "--signal-key", "k", "--json", expect=0)
    assert again.json["duplicate"] is True
    assert "sent before" in again.err
    shown = cli.run("tasks", "steps", task_id, expect=0).out
    assert [line.split()[1:4] for line in shown.splitlines()[1:3]] == [
        ["nothing", "step", "succeeded"], ["signal:go", "wait", "succeeded"],
    ]  # fmt: skip
    assert "null" in shown.splitlines()[1]  # a value, and shown as one
    assert "started, not final" in shown
    items = cli.run("tasks", "steps", task_id, "--json", expect=0).json["items"]
    assert (items[0]["name"], items[0]["output"]) == ("nothing", None)
    kids = cli.run("tasks", "children", task_id, expect=0).out
    assert "nobody/serves@2" in kids
    assert "detached" in kids
    assert f"resolve {task_id} --step send --as" in cli.run("tasks", "get", task_id, expect=0).out
    wrong = cli.run("tasks", "resolve", task_id, "--as", "succeeded", "--step", "sned", "--note", "n", expect=4).err
    assert "the open step is send: --step send settles it alone" in wrong
    assert "interlock tasks steps" in wrong
    cli.run("tasks", "resolve", task_id, "--as", "succeeded", "--step", "send", "--result", '"sent"', "--note", "seen", expect=0)
    task = live.wait(task_id)
    assert task.result == [None, {"n": 100.0}, "sent"]
    assert "interlock tasks steps" in cli.run("tasks", "rerun", task_id, "--from-step", "kdi", expect=4).err
    rerun = cli.run("tasks", "rerun", task_id, "--from-step", "kid", "--json", expect=0).json
    ended = live.wait(rerun["id"])
    assert ended.status == "outcome-unknown"
    assert [step.name for step in live.producer.steps(rerun["id"])][:2] == ["nothing", "signal:go"]


def test_a_wait_that_time_ended_is_no_fault() -> None:
    view = {"seq": 5, "name": "sleep", "kind": "wait", "status": "succeeded", "final": True, "output": {"timedOut": True}}
    assert step_row(view)[-1] == "by time"
    assert step_row(view | {"output": {"signal": True}})[-1] == '{"signal":true}'
    assert step_row(view | {"kind": "step"})[-1] == '{"timedOut":true}'  # a step's own value


def test_what_cannot_be_meant_is_refused(offline: Cli, scripted: ScriptedServer) -> None:
    key = ("--url", scripted.url, "--key", "il_o_1_2")
    offline.run("tasks", "resolve", "x", "--as", "reconcile", "--step", "s", "--note", "n", *key, expect=2)
    offline.run("tasks", "signal", "x", "go", "--payload", "{", *key, expect=2)
    assert scripted.seen == []
    scripted.answer(
        "POST", "/v1/tasks/x/resolve", Answer(200, {"id": "x", "type": "a/b", "schemaVersion": 1, "status": "queued"})
    )
    offline.run("tasks", "resolve", "x", "--as", "reconcile", "--attempt", "a", "--note", "n", *key, expect=0)
    assert scripted.seen[-1].json == {"as": "reconcile", "attemptId": "a", "note": "n"}
