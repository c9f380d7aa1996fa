"""The `interlock` command as a person or a script runs it: in this process, or as one of its own where that is the question."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from interlock.cli import main

INTERLOCK = Path(sys.executable).with_name("interlock")
USER_SITE = str(Path(__file__).with_name("user_site"))


@dataclass
class Done:
    """What a run left."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def out(self) -> str:
        return self.stdout.decode("utf-8")

    @property
    def err(self) -> str:
        return self.stderr.decode("utf-8")

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)

    def check(self, expect: int | None) -> Done:
        """Another exit status than `expect` is not right."""
        assert expect is None or self.code == expect, (self.code, self.stdout, self.stderr)
        return self


class Cli:
    """Runs the command with these settings in its environment."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self.environment = environment
        self.folder = folder

    def run(
        self,
        *arguments: str,
        input: bytes | None = None,
        expect: int | None = None,
        env: dict[str, str] | None = None,
        encoding: str = "utf-8",
    ) -> Done:
        """Run to the end in this process, all but the start of an interpreter as it is: a tenth of the time. What it raises is raised."""
        before = signal.getsignal(signal.SIGTERM)
        out, err = io.BytesIO(), io.BytesIO()
        with self.standing_there(arguments, env), standard_streams(input or b"", out, err, encoding) as (stdout, stderr):
            try:
                code = main()
            finally:
                signal.signal(signal.SIGTERM, before)
            # Before the streams are collected, which closes what is below them.
            return Done(int(code), stdout(), stderr()).check(expect)

    @contextlib.contextmanager
    def standing_there(self, arguments: tuple[str, ...], env: dict[str, str] | None) -> Iterator[None]:
        """The command's arguments, environment and working folder."""
        given = {**self.environment, **(env or {})}
        with (
            mock.patch.object(sys, "argv", ["interlock", *arguments]),
            mock.patch.dict(os.environ, given),
            contextlib.chdir(self.folder),
        ):
            yield

    def settings(self, env: dict[str, str] | None) -> dict[str, str]:
        return {**os.environ, "PYTHONUTF8": "1", "PYTHONPATH": USER_SITE, **self.environment, **(env or {})}

    def start(self, *arguments: str, env: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[bytes]:
        given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": self.folder, **options}
        found = self.settings(env)
        return subprocess.Popen([INTERLOCK, *arguments], env=found, **given)

    def process(self, *arguments: str, input: bytes | None = None, expect: int | None = None, **options: Any) -> Done:
        """Run to the end in a process of its own. A traceback is never right, whatever the test is about."""
        stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
        with self.start(*arguments, stdin=stdin, **options) as process:
            stdout, stderr = process.communicate(input, timeout=60)
        assert b"Traceback" not in (stderr or b""), stderr.decode()
        return Done(process.returncode, stdout or b"", stderr or b"").check(expect)

    def shell(self, line: str, env: dict[str, str] | None = None) -> Done:
        """Run a line of bash in which `interlock` is the command; its status is that of `interlock`."""
        found = {**self.settings(env), "PATH": f"{INTERLOCK.parent}:{os.environ['PATH']}"}
        script = f"{line}\nexit ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", script], env=found, cwd=self.folder, capture_output=True, timeout=60, check=False)
        return Done(done.returncode, done.stdout, done.stderr)


@contextlib.contextmanager
def standard_streams(given: bytes, out: io.BytesIO, err: io.BytesIO, encoding: str) -> Iterator[Any]:
    """Standard streams of bytes, as a process has; gives what reads the two that were written."""
    streams = {
        "stdin": io.TextIOWrapper(io.BytesIO(given), encoding=encoding),
        "stdout": io.TextIOWrapper(out, encoding=encoding),
        "stderr": io.TextIOWrapper(err, encoding=encoding, line_buffering=True),
    }

    def read(name: str, below: io.BytesIO) -> bytes:
        getattr(sys, name).flush()
        return below.getvalue()

    with mock.patch.multiple(sys, **streams):
        yield (lambda: read("stdout", out)), (lambda: read("stderr", err))
