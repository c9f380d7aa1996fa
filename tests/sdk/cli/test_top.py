"""`interlock tasks top`."""

from __future__ import annotations

import json
import os
import pty
import signal
import threading

import pytest

from sdk.cli.command import Cli
from sdk.cli.conftest import RunHere
from sdk.conftest import Answer, ScriptedServer
from sdk.live import Live
from support.waiting import wait_until


def test_once_shows_all(here: RunHere, live: Live) -> None:
    worker = live.start(lambda inp, ctx: inp, max_concurrent=3)
    live.submit(delay=3600)
    live.wait(live.submit())
    found = here("tasks", "top", "--once", "--json", expect=0).json
    mine = next(item for item in found["types"] if item["type"] == live.type)
    assert (mine["schemaVersion"], mine["queued"] >= 1) == (1, True)
    assert worker.worker_id in {item["workerId"] for item in found["workers"]}
    shown = here("tasks", "top", "--once", expect=0).out
    assert "workers online" in shown.splitlines()[0]
    assert any(line.startswith(f"{live.type}@1 ") for line in shown.splitlines())
    assert any(line.startswith(f"{worker.worker_id} ") and " 0/3 " in line for line in shown.splitlines())
    here("tasks", "top", "--every", "0", expect=2)


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_it_is_drawn_again_on_a_terminal_until_ctrl_c(cli: Cli, live: Live) -> None:
    live.submit(delay=3600)
    ours, theirs = pty.openpty()
    seen = b""
    try:
        size = {"COLUMNS": "60", "LINES": "8", "TERM": "xterm"}
        with cli.start("tasks", "top", "--every", "0.2", stdout=theirs, stderr=theirs, env=size) as process:
            os.close(theirs)

            def drawn_twice() -> bool:
                nonlocal seen
                seen += os.read(ours, 65536)
                return seen.count(b"\x1b[H") >= 2 and seen.endswith(b"\x1b[J")

            wait_until(drawn_twice, 30)
            process.send_signal(signal.SIGINT)
            while True:
                try:
                    seen += os.read(ours, 65536)
                except OSError:  # The other end is closed.
                    break
            assert process.wait(20) == 130
    finally:
        os.close(ours)
    assert b"Traceback" not in seen
    screen = seen.split(b"\x1b[H")[1].partition(b"\x1b[J")[0]
    rows = screen.replace(b"\x1b[K", b"").decode().splitlines()
    assert len(rows) <= 7
    assert max(map(len, rows)) <= 59


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_an_outage_is_told_once_and_waited_out(offline: Cli, scripted: ScriptedServer) -> None:
    none = Answer(200, {"items": [], "nextCursor": None})
    away = Answer(503, {"code": "UNAVAILABLE", "status": 503, "title": "No", "detail": "away", "retryable": True})
    back = threading.Event()
    scripted.answer("GET", "/v1/task-types", none, lambda _: none if back.is_set() else away)
    scripted.answer("GET", "/v1/workers", none)
    line = ("tasks", "top", "--json", "--every", "0.2", "--url", scripted.url, "--key", "il_p_1_2", "--patience", "2")
    with offline.start(*line) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["types"] == []
        assert b"still trying" in process.stderr.readline()
        back.set()
        assert b"answers again" in process.stderr.readline()
        assert json.loads(process.stdout.readline())["workers"] == []
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err == b"interlock: interrupted\n"
