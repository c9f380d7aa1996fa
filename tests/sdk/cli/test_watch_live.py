"""`interlock tasks watch` hears of a task by its stream, and says how to go on when it is interrupted."""

from __future__ import annotations

import json
import os
import signal

import pytest

from sdk.cli.command import Cli
from sdk.live import Live


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_a_watch_opens_the_stream_and_says_how_to_go_on(cli: Cli, live: Live) -> None:
    task = live.submit(delay=3600)
    with cli.start("tasks", "watch", task, "--json", "--verbose") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["seq"] == 1
        said = b""
        while f"/v1/tasks/{task}/stream".encode() not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert f"interlock tasks watch {task} --after 1 goes on from here".encode() in err
    assert json.loads(out)["error"]["exit"] == "interrupted"
