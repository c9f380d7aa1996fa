"""A run says what it did not run: a suite that shrinks on a host must be seen to."""

from __future__ import annotations

import subprocess
import sys

import pytest

from repo.tree import ROOT

pytestmark = pytest.mark.slow  # runs of their own


def summary(*words: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False).stdout


@pytest.mark.parametrize("runners", ["0", "2"])
def test_what_is_slow_is_counted(runners: str) -> None:
    assert "left out on asgi: 3 slow" in summary("tests/chaos/test_two_nodes.py", "-n", runners)


def test_what_a_host_leaves_out_is_counted_by_its_reason() -> None:
    told = summary(
        "tests/http/test_on_time.py", "tests/http/test_waits.py", "--host", "lambda-local", "--collect-only", "-n", "0"
    )
    (line,) = [line for line in told.splitlines() if line.startswith("left out")]
    assert line.startswith("left out on lambda-local: ")
    assert " in_process" in line
    nothing = summary("tests/unit/test_times.py", "--collect-only", "-n", "0")
    assert "left out" not in nothing
