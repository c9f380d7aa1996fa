"""The real `interlock` command as a process, as a person or a script runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


class Cli:
    """Runs the command with these settings in its environment."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self.environment = environment
        self.folder = folder

    def settings(self, env: dict[str, str] | None) -> dict[str, str]:
        return {**os.environ, "PYTHONUTF8": "1", "PYTHONPATH": USER_SITE, **self.environment, **(env or {})}

    def start(self, *arguments: str, env: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[bytes]:
        given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": self.folder, **options}
        found = self.settings(env)
        return subprocess.Popen([INTERLOCK, *arguments], env=found, **given)

    def run(self, *arguments: str, input: bytes | None = None, expect: int | None = None, **options: Any) -> Done:
        """Run to the end. A traceback is never right, whatever the test is about; nor is another exit status than `expect`."""
        stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
        with self.start(*arguments, stdin=stdin, **options) as process:
            stdout, stderr = process.communicate(input, timeout=60)
        done = Done(process.returncode, stdout or b"", stderr or b"")
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        assert expect is None or done.code == expect, (done.code, done.stdout, done.stderr)
        return done

    def shell(self, line: str, env: dict[str, str] | None = None) -> Done:
        """Run a line of bash in which `interlock` is the command; its status is that of `interlock`."""
        found = {
            **os.environ,
            "PYTHONUTF8": "1",
            **self.environment,
            **(env or {}),
            "PATH": f"{INTERLOCK.parent}:{os.environ['PATH']}",
        }
        script = f"{line}\nexit ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", script], env=found, cwd=self.folder, capture_output=True, timeout=60, check=False)
        return Done(done.returncode, done.stdout, done.stderr)
