"""The pytest fixture `interlock_service`, in a project of somebody's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sdk.live import Live
from support.dev_service import ROOT
from support.waiting import wait_until

TEST = """
def test_live(interlock_service):
    worker = interlock_service.worker("kit")

    @worker.handle("kit/hello", 1, effect_safety="pure")
    def hello(inp, ctx):
        return ctx.step("greet", lambda: f"Hello, {inp}!")

    worker.start()
    with interlock_service.producer() as producer:
        assert producer.submit("kit/hello", 1, "Ada").result(timeout=30) == "Hello, Ada!"
    worker.drain()
    assert "il_" not in repr(interlock_service)
    print("DATA", interlock_service.folder)
"""


def run_pytest(folder: Path, *, test: str = TEST, options: str = "", **environment: str) -> subprocess.Popen[str]:
    (folder / "conftest.py").write_text('pytest_plugins = ["interlock.testing.fixture"]\n')
    (folder / "test_it.py").write_text(test)
    (folder / "pytest.ini").write_text(f"[pytest]\nfilterwarnings = error\n{options}\n")
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    settings = {name: value for name, value in os.environ.items() if not name.startswith("INTERLOCK_")}
    return subprocess.Popen(
        command, cwd=folder, env={**settings, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.slow
def test_a_service_that_runs_is_taken(live: Live, tmp_path: Path) -> None:
    keys = {"INTERLOCK_PRODUCER_KEY": live.service.key("task-producer"), **live.environment}
    told, _ = run_pytest(tmp_path, **keys).communicate(timeout=60)
    assert "1 passed" in told, told


@pytest.mark.slow
def test_without_any_it_says_what_it_needs(tmp_path: Path) -> None:
    told, _ = run_pytest(tmp_path).communicate(timeout=60)
    assert "1 error" in told, told
    assert "set INTERLOCK_URL" in told
    assert "INTERLOCK_CHECKOUT" in told


@pytest.mark.slow  # a whole node starts, with its own database
def test_a_checkout_is_started_and_ends_with_the_session(tmp_path: Path) -> None:
    told, _ = run_pytest(tmp_path, INTERLOCK_CHECKOUT=str(ROOT)).communicate(timeout=110)
    assert "1 passed" in told, told
    data = Path(told.split("DATA ", 1)[1].splitlines()[0]) / "data"
    assert (data / "dev.json").exists()
    wait_until(lambda: not processes_of(data), 20)


@pytest.mark.slow
def test_a_session_that_is_killed_leaves_no_service(tmp_path: Path) -> None:
    process = run_pytest(tmp_path, INTERLOCK_CHECKOUT=str(ROOT), PYTEST_DEBUG_TEMPROOT=str(tmp_path))

    def started() -> bool:
        return any(path.name == "dev.json" for path in tmp_path.glob("pytest-of-*/*/*/data/dev.json"))

    wait_until(started, 60)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=10)
    wait_until(lambda: not processes_of(tmp_path), 30)


def processes_of(folder: Path) -> list[str]:
    """The command lines of running programs that name the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if str(folder) in line:
            found.append(line)
    return found
