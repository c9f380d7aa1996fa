"""`interlock worker run`."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from sdk.cli.command import Cli
from sdk.cli.conftest import RunHere
from sdk.live import Live
from support.waiting import wait_until

PROGRAM = """
from interlock import TaskWorker
other = 3
worker = TaskWorker(worker_id="cli-run", spool={spool!r})

@worker.handle({type!r}, 1, effect_safety="pure")
def run(inp, ctx):
    print("handling", flush=True)
    return inp
"""


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize("target", ["program:worker", "program.py:worker"])
def test_it_serves_until_a_signal_drains_it(cli: Cli, live: Live, tmp_path: Path, target: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.format(spool=str(tmp_path / "spool"), type=live.type))
    url, key = cli.environment["INTERLOCK_URL"], cli.environment["INTERLOCK_WORKER_KEY"]
    own = {"INTERLOCK_URL": "", "INTERLOCK_WORKER_KEY": ""}
    line = ("worker", "run", target, "--url", url, "--key", key, "--json")
    with (tmp_path / "err").open("wb") as err, cli.start(*line, env=own, stderr=err) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["kind"] == "started"
        assert live.wait(live.submit({"n": 1})).result == {"n": 1}
        process.send_signal(signal.SIGINT)
        lines = process.stdout.read().splitlines()
        assert process.wait(30) == 0
    assert lines[0] == b"handling"
    assert json.loads(lines[-1])["kind"] == "stopped"
    said = (tmp_path / "err").read_text()
    assert key not in said
    assert "Traceback" not in said
    wait_until(lambda: "everything is reported" in said, 1)


def test_what_cannot_be_run_is_told(run_here: RunHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("program", "broken", "needs", "quits", "idle", "absent"):
        monkeypatch.delitem(sys.modules, name, raising=False)  # and again after the test
    (tmp_path / "program.py").write_text(PROGRAM.format(spool=str(tmp_path / "spool"), type="a/b"))
    (tmp_path / "broken.py").write_text("import sys\n\nraise ValueError('no good')\n")
    (tmp_path / "needs.py").write_text("import surely_absent\n")
    (tmp_path / "idle.py").write_text(
        'import interlock\n\nworker = interlock.TaskWorker(worker_id="idle", url="http://x", key="il_w_1_2")\n'
    )
    (tmp_path / "quits.py").write_text("raise SystemExit(0)\n")
    said = {
        "program:nothing": ("nothing of program is not there", "program:worker"),
        "program:other": ("is a int, not a TaskWorker", "program:worker"),
        "program": ("MODULE:WORKER",),
        "absent:worker": ("there is no module absent",),
        "absent.py:worker": ("there is no file absent.py",),
        "broken:worker": ("ValueError: no good", "line 3"),
        "needs:worker": ("surely_absent", "needs.py"),
        "quits:worker": ("SystemExit",),
        "idle:worker": ("interlock: the worker has no handler: declare one with @worker.handle",),
    }
    for target, parts in said.items():
        done = run_here("worker", "run", target, expect=2)
        assert all(part in done.err for part in parts), done.err
        assert "runs as process" not in done.err


def test_a_worker_without_a_key_says_so(offline: Cli, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.format(spool=str(tmp_path / "spool"), type="a/b"))
    done = offline.run("worker", "run", "program:worker", "--url", "http://127.0.0.1:9", "--json", expect=2)
    assert "INTERLOCK_WORKER_KEY" in done.err
    assert "runs as process" not in done.err
    assert "started" not in done.out
