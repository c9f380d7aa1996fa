"""Reading, watching and settling tasks."""

from __future__ import annotations

import json
import os
import pty
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from interlock import TaskContext, UnknownOutcome
from sdk.cli.command import Cli
from sdk.cli.conftest import RunHere
from sdk.conftest import Answer, ScriptedServer, Seen
from sdk.live import Live
from support.waiting import wait_until


def test_list_get_and_journal(here: RunHere, cli: Cli, live: Live) -> None:
    ids = [live.submit({"n": n}, delay=3600, tags={"order": str(n)}) for n in range(3)]
    table = cli.run("tasks", "list", "--type", f"{live.type}@1", expect=0).out.splitlines()
    assert table[0].split() == ["ID", "STATUS", "TYPE", "CREATED", "ATTEMPTS", "DETAIL"]
    assert [line.split()[0] for line in table[1:]] == ids[::-1]
    assert all("not-due" in line for line in table[1:])

    page = here("tasks", "list", "--type", live.type, "--limit", "2", "--status", "queued", "--status", "running", expect=0)
    assert len(page.out.splitlines()) == 3
    cursor = page.err.split("--cursor ")[1].strip()
    options = ("--type", live.type, "--status", "queued", "--status", "running", "--cursor", cursor, "--json")
    assert [item["id"] for item in here("tasks", "list", *options, expect=0).json["items"]] == ids[:1]
    assert [
        item["id"] for item in here("tasks", "list", "--tag", "order=1", "--type", live.type, "--json", expect=0).json["items"]
    ] == [ids[1]]

    assert here("tasks", "get", ids[0], "--json", expect=0).json["input"] == {"n": 0}
    shown = here("tasks", "get", ids[0], expect=0).out
    assert all(part in shown for part in (ids[0], live.type, "queued", "not-due", "order=0", '"n": 0'))
    assert [event["kind"] for event in here("tasks", "journal", ids[0], "--json", expect=0).json["items"]] == ["submitted"]
    assert here("tasks", "journal", ids[0], expect=0).out.split()[0] == "1"
    assert here("tasks", "journal", ids[0], "--after", "1", "--json", expect=0).json["items"] == []


def test_an_empty_list_says_so_on_standard_error(here: RunHere, live: Live) -> None:
    done = here("tasks", "list", "--type", live.type, expect=0)
    assert done.out == ""
    assert "none" in done.err


def test_watch_tells_everything_and_its_status_is_the_end(cli: Cli, live: Live) -> None:
    def handle(inp: Any, ctx: TaskContext) -> Any:
        ctx.progress(50, "half → way")
        ctx.log.info("line one\nline two")
        if inp == "fail":
            raise ValueError("broken\nin two lines")
        return inp

    live.start(handle)
    good, bad = live.submit({"n": 2**60}), live.submit("fail")
    live.wait(good)
    live.wait(bad)

    done = cli.run("tasks", "watch", good, expect=0)
    kinds = [line.split()[2] for line in done.out.splitlines()[1:5]]
    assert kinds == ["submitted", "claimed", "progress", "log"]
    assert "50 % half → way" in done.out
    assert "line one\\nline two" in done.out
    assert str(2**60) in done.out

    done = cli.run("tasks", "watch", bad, "--json", expect=6)
    *events, end = [json.loads(line) for line in done.out.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, end["task"]["journalSeq"] + 1))
    assert (end["kind"], end["status"], end["settled"]) == ("end", "failed", True)
    assert end["task"]["failure"]["message"] == "broken\nin two lines"

    done = cli.run("tasks", "watch", bad, "--after", str(events[-2]["seq"]), expect=6)
    assert [line.split()[2] for line in done.out.splitlines()[1:2]] == ["failed"]


def test_watch_follows_a_task_to_its_end_and_can_be_told_when_to_stop(cli: Cli, live: Live) -> None:
    task = live.submit("later", delay=3600)
    assert "--after 1" in cli.run("tasks", "watch", task, "--timeout", "0.5", expect=9).err
    with cli.start("tasks", "watch", task, "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["kind"] == "submitted"
        live.producer.cancel(task, "not needed")
        rest = [json.loads(line) for line in process.stdout]
        assert process.wait(20) == 7
    assert [event["kind"] for event in rest] == ["cancelled", "end"]


def test_watch_survives_an_outage(offline: Cli, scripted: ScriptedServer) -> None:
    task = str(uuid.uuid4())
    view = {"id": task, "type": "a/b", "schemaVersion": 1, "status": "running", "settled": False, "journalSeq": 1}
    done = {**view, "status": "succeeded", "settled": True, "journalSeq": 2, "result": 1}
    first = {"items": [{"seq": 1, "at": "2026-01-01T00:00:00Z", "kind": "submitted", "data": {}}], "nextCursor": None}
    last = {"items": [{"seq": 2, "at": "2026-01-01T00:00:01Z", "kind": "succeeded", "data": {}}], "nextCursor": None}
    away = threading.Event()

    def look(answer: Answer) -> Callable[[Seen], Answer]:
        def give(seen: Seen) -> Answer:
            return Answer(drop=True) if away.is_set() else answer

        return give

    def read_first(seen: Seen) -> Answer:
        away.set()
        return Answer(200, first)

    scripted.answer("GET", f"/v1/tasks/{task}", Answer(200, view), look(Answer(200, done)))
    scripted.answer("GET", f"/v1/tasks/{task}/journal", read_first, look(Answer(200, last)))
    with offline.start("tasks", "watch", task, "--url", scripted.url, "--key", "il_p_1_2", "--patience", "1") as process:
        assert process.stderr is not None
        assert b"still trying" in process.stderr.readline()
        away.clear()
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert b"answers again" in err
    assert [line.split()[0] for line in out.splitlines()[1:3]] == [b"1", b"2"]


def test_cancel(cli: Cli, live: Live) -> None:
    task = live.submit(None, delay=3600)
    assert cli.run("tasks", "cancel", task, "--reason", "not needed", expect=0).out.split()[2] == "cancelled"
    again = cli.run("tasks", "cancel", task, "--json", expect=0)
    assert again.json["status"] == "cancelled"
    assert "nothing changed" in again.err
    live.start(lambda inp, ctx: inp)
    finished = live.submit(1)
    live.wait(finished)
    refused = cli.run("tasks", "cancel", finished, "--json", expect=10)
    assert refused.json["error"]["code"] == "TASK_FINISHED"
    assert refused.json["error"]["exitCode"] == 10


def test_resolve_shows_the_attempt_that_it_settles(cli: Cli, live: Live) -> None:
    def handle(inp: Any, ctx: TaskContext) -> Any:
        raise UnknownOutcome("sent, no answer")

    live.start(handle, effect_safety="non-idempotent")
    paid, lost = live.submit("paid"), live.submit("lost")
    for task in (paid, lost):
        live.wait(task)

    resolve = (
        "tasks",
        "resolve",
        paid,
        "--as",
        "succeeded",
        "--result",
        '{"n": 9007199254740993, "f": 1e2}',
        "--note",
        "found at the bank",
    )
    done = cli.run(*resolve, expect=0)
    attempt = live.producer.get(paid).attempt
    assert attempt
    assert attempt.id in done.err
    assert "sent, no answer" in done.err
    assert "succeeded" in done.out
    assert cli.run("tasks", "get", paid, "--json").json["result"]["n"] == 9007199254740993
    assert "nothing changed" in cli.run(*resolve, "--attempt", attempt.id, expect=0).err

    assert cli.run("tasks", "resolve", lost, "--as", "requeue", "--note", "it never arrived", "--json", expect=0).json[
        "status"
    ] in (
        "queued",
        "running",
        "outcome-unknown",
    )
    other = ("--as", "failed", "--note", "no", "--attempt", str(uuid.uuid4()), "--json")
    assert cli.run("tasks", "resolve", paid, *other, expect=10).json["error"]["code"] == "TASK_NOT_UNKNOWN"
    assert cli.run("tasks", "resolve", paid, "--as", "failed", "--note", "no", "--result", "1", expect=2).out == ""


def test_workers_and_types(cli: Cli, live: Live) -> None:
    worker = live.start(lambda inp, ctx: inp)
    live.wait(live.submit(1))
    rows = {row.split()[0]: row for row in cli.run("tasks", "workers", "--all", expect=0).out.splitlines()}
    assert f"{live.type}@1 (idempotent)" in rows[worker.worker_id]
    assert "ready" in rows[worker.worker_id]
    rows = {row.split()[0]: row for row in cli.run("tasks", "types", "--all", expect=0).out.splitlines()}
    assert worker.worker_id in rows[f"{live.type}@1"]
    items = cli.run("tasks", "workers", "--all", "--json", expect=0).json["items"]
    assert worker.worker_id in [item["workerId"] for item in items]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pseudo-terminals")
def test_on_a_terminal_a_line_moves_and_ids_stay_whole(cli: Cli, live: Live) -> None:
    task = live.submit(None, delay=3600)
    ours, theirs = pty.openpty()
    seen = b""
    try:
        with cli.start("tasks", "watch", task, stdout=theirs, stderr=theirs, env={"COLUMNS": "30", "TERM": "xterm"}) as process:
            os.close(theirs)

            def look() -> bool:
                nonlocal seen
                seen += os.read(ours, 65536)
                return b"not-due" in seen

            wait_until(look, 20)
            live.producer.cancel(task)
            while True:
                try:
                    seen += os.read(ours, 65536)
                except OSError:  # The other end is closed.
                    break
            assert process.wait(20) == 7
    finally:
        os.close(ours)
    assert task.encode() in seen
    assert b"cancelled" in seen
    assert b"Traceback" not in seen
