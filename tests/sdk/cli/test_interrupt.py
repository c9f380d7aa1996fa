"""Ctrl-C at every moment of a run's beginning and end: no traceback, exit status 130."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from sdk.cli.command import INTERLOCK

pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX signals")

AT_IMPORT = """
import os, signal, sys

class Interrupt:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt)
"""
AT_END = "import atexit, os, signal\natexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"


def run(folder: Path, program: str, arguments: str = "--version", *, ignored: bool = False) -> subprocess.CompletedProcess[bytes]:
    (folder / "sitecustomize.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    line = f"exec {shlex.quote(str(INTERLOCK))} {arguments}"
    line = f"trap '' INT; {line}" if ignored else line
    return subprocess.run(["bash", "-c", line], env=environment, capture_output=True, timeout=60, check=False)


WATCH = "tasks watch x --url http://127.0.0.1:9 --key k"
BULK = "tasks bulk cancel --all --url http://127.0.0.1:9 --key k"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("interlock", "--version"),
        ("interlock.cli", "--version"),
        ("typer", "--version"),
        ("interlock.cli.app", "--version"),
        ("interlock.cli.watch", WATCH),
        ("httpx", WATCH),
        ("interlock.producer", WATCH),
        ("interlock.operator", BULK),
    ],
)
def test_while_it_is_imported(tmp_path: Path, name: str, arguments: str) -> None:
    done = run(tmp_path, AT_IMPORT.format(name=name), arguments)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_when_all_is_done(tmp_path: Path) -> None:
    done = run(tmp_path, AT_END)
    assert (done.returncode, done.stderr) == (130, b"")
    assert done.stdout.startswith(b"interlock ")


def test_a_job_in_the_background_does_not_hear_it(tmp_path: Path) -> None:
    done = run(tmp_path, AT_IMPORT.format(name="typer"), ignored=True)
    assert (done.returncode, done.stderr) == (0, b"")
