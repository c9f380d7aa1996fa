"""The emulator's own promises, on a function of four lines."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import sam_cli
from built import _collect_runtime_client, find_python
from emulator import Emulator
from support.waiting import wait_until

pytestmark = [
    pytest.mark.skipif(
        "{}.{}".format(*sys.version_info) != sam_cli.BUILD_PYTHON, reason="the runtime client is built for another Python"
    ),
]


@pytest.fixture
def toy(toy_function: Path, tmp_path: Path) -> Iterator[Emulator]:
    client = tmp_path / "runtime client"
    _collect_runtime_client(client)
    with Emulator(
        "Toy", sam_cli.emulator_binary(), find_python(), toy_function, [toy_function, client], {}, timeout_seconds=5
    ) as emulator:
        yield emulator


def test_calls_at_once_wait_for_each_other(toy: Emulator) -> None:
    answers: list[int] = []

    def call() -> None:
        answers.extend(toy.invoke({"echo": number})["echo"] for number in range(10))

    threads = [threading.Thread(target=call) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == sorted(list(range(10)) * 6)
    assert toy.starts == 1


def test_a_function_that_exits_is_started_again(toy: Emulator) -> None:
    before = toy.invoke({})["pid"]
    assert toy.invoke({"exit": True})["errorType"] == "Runtime.ExitError"
    assert toy.invoke({})["pid"] != before


def test_a_function_is_cut_off_at_its_timeout(toy: Emulator) -> None:
    toy.timeout_seconds = 1
    before = toy.invoke({})["pid"]
    assert toy.invoke({"hang": True})["errorType"] == "Sandbox.Timedout"
    assert toy.invoke({})["pid"] != before


def test_an_emulator_that_is_killed_is_started_again(toy: Emulator) -> None:
    toy.invoke({})
    child = toy._child
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)
    wait_until(lambda: child.poll() is not None)
    assert toy.invoke({"echo": "after"})["echo"] == "after"
    assert toy.starts == 2


def test_an_exception_is_lambdas_error_object(toy: Emulator) -> None:
    assert toy.invoke({"raise": True})["errorType"] == "ValueError"


def test_stop_leaves_no_process(toy: Emulator) -> None:
    child = toy.invoke({})["pid"]
    port = toy._port
    toy.stop()
    wait_until(lambda: subprocess.run(["kill", "-0", str(child)], capture_output=True, check=False).returncode != 0)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_nothing_is_left_of_what_it_wrote(toy: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    toy.invoke({})
    assert "START RequestId" in toy.output()
    toy.abandon()  # as at the end of many
    assert list(folder.iterdir()) == []
    assert toy.output() == ""


def test_the_function_sees_no_package_of_this_environment(toy: Emulator, toy_function: Path) -> None:
    (toy_function / "app.py").write_text("import pytest\n\n\ndef handler(event, context):\n    return {}\n")
    assert "No module named 'pytest'" in toy.invoke({})["errorMessage"]
