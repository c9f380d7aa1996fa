"""Processes that own a Postgres and can be killed, and folders that the user it runs as can reach."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from support.waiting import wait_until

LIB = Path(__file__).resolve().parents[2] / "scripts" / "lib"

OWNER = """
import sys
from pathlib import Path
from postgres import Postgres
server = Postgres(Path(sys.argv[1]))
server.start()
server.create_database("kept")
print(server.pid, server.guard_pid, server.url("kept"), flush=True)
sys.stdin.read()
server.stop()
"""


class Owner:
    """A process that owns a Postgres in `folder`, as scripts/dev does. `server`, `guard` are pids."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(LIB)},
        )
        assert self.process.stdout is not None
        server, guard, self.url = self.process.stdout.readline().split()
        self.server, self.guard = int(server), int(guard)

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()


@pytest.fixture
def start_owner() -> Iterator[Callable[[Path], Owner]]:
    owners: list[Owner] = []

    def start(folder: Path) -> Owner:
        owners.append(Owner(folder))
        return owners[-1]

    yield start
    for owner in owners:
        if owner.process.returncode is None:
            owner.close()
        wait_until(lambda pid=owner.server: not is_alive(pid))


def is_alive(pid: int) -> bool:
    """Whether a process exists and has not just ended (a zombie waits for its parent only)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children_of(pid: int) -> list[int]:
    """Every process below this one."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            for child in path.read_text().split():
                found += [int(child), *children_of(int(child))]
    return found


def kill_all(pids: Iterable[int]) -> None:
    """`kill -9` of each, as far as it still lives: the end of one may be the end of others."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="interlock-test-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
