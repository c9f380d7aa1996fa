"""Output that nobody reads, that cannot hold the characters, or that is not there: never a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from interlock import TaskContext
from sdk.cli.command import INTERLOCK, Cli
from sdk.cli.conftest import RunHere
from sdk.conftest import Answer, ScriptedServer, Seen
from sdk.live import Live

ODD = "→ 😀 \u202f Zoë \x1b[31m \u202e \x9b"
BEYOND = 2_000
AGREED = {0, 141}


def task_view(number: int) -> dict[str, Any]:
    return {
        "id": str(uuid.UUID(int=number)), "type": "a/b", "schemaVersion": 1, "status": "queued", "settled": False, "attempts": 0,
        "createdAt": "2026-01-01T00:00:00.000000Z", "journalSeq": 0, "failure": None, "tags": {"name": ODD},
    }  # fmt: skip


@pytest.fixture
def many(scripted: ScriptedServer) -> dict[str, str]:
    """The settings of a service with 2,000 tasks, one of which has a journal that does not end."""

    def page(seen: Seen) -> Answer:
        start = int(seen.path.partition("cursor=")[2].partition("&")[0] or 0)
        after = start + 200
        return Answer(
            200, {"items": [task_view(n) for n in range(start, after)], "nextCursor": str(after) if after < BEYOND else None}
        )

    def events(seen: Seen) -> Answer:
        after = int(seen.path.partition("after=")[2].partition("&")[0])
        items = [
            {"seq": n, "at": "2026-01-01T00:00:00Z", "kind": "progress", "data": {"message": ODD}}
            for n in range(after + 1, after + 201)
        ]
        return Answer(200, {"items": items, "nextCursor": "more"})

    scripted.answer("GET", "/v1/tasks", page)
    scripted.answer("GET", "/v1/tasks/busy", Answer(200, {**task_view(1), "status": "running", "journalSeq": 10**9}))
    scripted.answer("GET", "/v1/tasks/busy/journal", events)
    return {"INTERLOCK_URL": scripted.url, "INTERLOCK_PRODUCER_KEY": "il_p_1_2"}


@pytest.mark.parametrize(
    ("line", "unbuffered"),
    [
        ("tasks list --limit 2000", "1"),
        ("tasks list --limit 2000", ""),
        ("tasks list --limit 2000 --json", "1"),
        ("tasks watch busy", "1"),
        ("tasks watch busy --json", "1"),
    ],
)
def test_b79_a_reader_that_goes_away_ends_the_command_in_silence(
    offline: Cli, many: dict[str, str], line: str, unbuffered: str
) -> None:
    done = offline.shell(f"interlock {line} | head -1", env={**many, "PYTHONUNBUFFERED": unbuffered})
    assert done.stderr == b""
    assert done.code in AGREED
    assert len(done.out.splitlines()) == 1
    if "--json" in line and "watch" in line:
        assert json.loads(done.out)["seq"] == 1


@pytest.mark.parametrize(
    "line", ["interlock --help | true", "interlock tasks list --limit 1 --json >&-", "interlock tasks list 2>&- | head -1"]
)
def test_b79_help_and_closed_outputs(offline: Cli, many: dict[str, str], line: str) -> None:
    done = offline.shell(line, env=many)
    assert done.stderr == b""
    assert done.code in AGREED


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_an_output_that_cannot_be_written_is_said(offline: Cli, many: dict[str, str]) -> None:
    done = offline.shell("interlock tasks list --limit 1 --json >/dev/full", env=many)
    assert done.code == 1
    assert b"Traceback" not in done.stderr
    assert b"No space left" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("tasks submit a/b", b"submitted 00000000-0000-0000-0000-000000000001"),
        ("tasks submit a/b --json", b"submitted 00000000-0000-0000-0000-000000000001"),
        ("tasks rerun 00000000-0000-0000-0000-000000000009", b"00000000-0000-0000-0000-000000000001 a/b@1 queued"),
        ("keys new ci --kind task-producer", b"interlock keys revoke 0123456789abcdef"),
    ],
)
def test_what_was_made_is_told_although_the_output_is_full(
    offline: Cli, scripted: ScriptedServer, line: str, told: bytes
) -> None:
    scripted.answer("POST", "/v1/tasks", Answer(201, task_view(1)))
    scripted.answer("POST", "/v1/tasks/00000000-0000-0000-0000-000000000009/rerun", Answer(201, task_view(1)))
    made = {"id": "0123456789abcdef", "key": "il_p_secret", "kind": "task-producer", "project": "p"}
    scripted.answer("POST", "/v1/keys", Answer(201, made))
    names = ("INTERLOCK_PRODUCER_KEY", "INTERLOCK_OPERATOR_KEY")
    settings = {"INTERLOCK_URL": scripted.url} | dict.fromkeys(names, "il_p_1_2")
    done = offline.shell(f"interlock {line} >/dev/full", env=settings)
    assert (done.code, b"Traceback" in done.stderr) == (1, False)
    assert told in done.stderr
    assert b"No space left" in done.stderr
    assert b"il_p_secret" not in done.stderr


LEGACY = {
    "cp1252": {"PYTHONUTF8": "0", "PYTHONIOENCODING": "cp1252"},
    "ascii": {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""},
}


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_b80_the_result_is_printed_whatever_the_encoding(cli: Cli, live: Live, encoding: str) -> None:
    def handle(inp: Any, ctx: TaskContext) -> Any:
        ctx.progress(10, ODD)
        ctx.log.info(ODD)
        return {ODD: inp}

    live.start(handle)
    line = ("tasks", "submit", live.type, "--input", json.dumps(ODD), "--tag", "name=→ 😀", "--wait", "--json")
    done = cli.process(*line, env=LEGACY[encoding], expect=0)
    assert done.json["result"] == {ODD: ODD}
    assert done.json["tags"] == {"name": "→ 😀"}
    task = done.json["id"]
    assert task in done.stderr.decode("ascii", "replace")

    lines = cli.run("tasks", "watch", task, "--json", encoding=encoding, expect=0).out.splitlines()
    assert json.loads(lines[-1])["task"]["result"] == {ODD: ODD}

    people = cli.run("tasks", "watch", task, encoding=encoding, expect=0).stdout
    assert task.encode() in people
    assert b"\\u2192" in people
    line = ("tasks", "submit", live.type, "--input", json.dumps(ODD), "--wait")
    people = cli.run(*line, encoding=encoding, expect=0).stdout
    assert people.split()[2] == b"queued"


WORDS = ["tasks list --limit 2", "tasks get odd", "tasks journal odd", "tasks watch odd", "tasks workers"]


@pytest.mark.parametrize("command", WORDS)
def test_b81_nothing_that_others_wrote_reaches_a_terminal_as_a_command(
    run_here: RunHere, scripted: ScriptedServer, command: str
) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202egnp\x9b31m\r\u200b\nsecond"
    view = {
        **task_view(1), "status": "failed", "settled": True, "journalSeq": 2, "type": evil, "failure": {"code": evil, "message": evil},
        "tags": {evil: evil}, "input": {evil: evil}, "idempotencyKey": evil, "attempt": {"id": evil, "number": 1, "workerId": evil},
    }  # fmt: skip
    events = [
        {
            "seq": n,
            "at": evil,
            "kind": evil if n == 1 else "log",
            "data": {evil: evil, "lines": [{"message": evil, "level": evil}]},
        }
        for n in (1, 2)
    ]
    scripted.answer("GET", "/v1/tasks", Answer(200, {"items": [view], "nextCursor": evil}))
    scripted.answer("GET", "/v1/tasks/odd", Answer(200, view))
    scripted.answer("GET", "/v1/tasks/odd/journal", Answer(200, {"items": events, "nextCursor": None}))
    worker = {
        "workerId": evil,
        "state": evil,
        "pool": evil,
        "handlers": [{"type": evil, "schemaVersion": 1, "effectSafety": evil}],
    }
    scripted.answer("GET", "/v1/workers", Answer(200, {"items": [worker], "nextCursor": None}))
    for extra in ((), ("--json",)):
        done = run_here(
            *command.split(), *extra, "--url", scripted.url, "--key", "il_p_1_2", expect=6 if "watch" in command else 0
        )
        shown = done.out + done.err
        assert "owned" in shown
        assert not [letter for letter in shown if not letter.isprintable() and letter != "\n"]


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_ctrl_c_ends_a_wait_and_says_how_to_go_on(cli: Cli, live: Live, options: tuple[str, ...]) -> None:
    line = ("tasks", "submit", live.type, "--delay", "1h", "--wait", *options)
    with cli.start(*line) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = (process.stderr if options else process.stdout).readline()
        task = first.split()[-1 if options else 0].decode()
        assert uuid.UUID(task), first
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert f"interlock tasks watch {task}".encode() in err
    if options:
        assert json.loads(out)["id"] == task


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_sigterm_ends_a_watch_in_silence(offline: Cli, many: dict[str, str]) -> None:
    with offline.start("tasks", "watch", "busy", env=many, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.terminate()
        _, err = process.communicate(timeout=30)
    assert process.returncode == 143
    assert err == b""


@pytest.mark.parametrize("absent", ["typer", "rich"])
def test_a_missing_extra_is_told(tmp_path: Path, absent: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules[{absent!r}] = None\n")
    done = subprocess.run(
        [INTERLOCK, "--help"], env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.decode().strip() == f"interlock: the command needs {absent}: pip install 'interlock-tasks[cli]'"


def test_it_runs_as_a_module_too(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "interlock.cli", "--version"], cwd=tmp_path, capture_output=True, check=True, timeout=60
    )
    assert done.stdout.startswith(b"interlock ")
