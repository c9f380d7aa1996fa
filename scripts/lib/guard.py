"""Child processes that never outlive their owner, not even one that was killed with -9.

`start` puts a small guard process between the owner and the command. The guard reads a pipe whose only
writing end the owner holds: when the owner ends, however it ends, the kernel closes that end, the guard
sees it and stops the command. The guard is a process of its own, because a kernel signal at the parent's
death (Linux' PR_SET_PDEATHSIG) exists on Linux only, is bound to the *thread* that forked, and cannot
escalate. It is used too, between guard and command, so that killing the guard stops the command as well.

This file is both the owner's module and, run as a script, the guard itself: standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

PR_SET_PDEATHSIG = 1

#: Signals to stop a command with, in turn, each with the seconds it is given before the next one.
StopPlan = Sequence[tuple[int, float]]
GENTLE: StopPlan = ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0))


class StartFailed(Exception):
    """The command could not be started; the text says why."""


@dataclass(frozen=True)
class OsUser:
    """The operating-system user that a command runs as."""

    uid: int
    gid: int
    home: str


class Guarded:
    """A running command and its guard, as the owner sees them."""

    def __init__(self, guard: subprocess.Popen[bytes], pid: int) -> None:
        self._guard = guard
        self.pid = pid

    @property
    def guard_pid(self) -> int:
        return self._guard.pid

    def poll(self) -> int | None:
        """The command's exit status (128 + n: ended by signal n), or None while it runs."""
        return self._guard.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the command's end; raises `subprocess.TimeoutExpired`."""
        code = self._guard.wait(timeout)
        self._close()
        return code

    def stop(self) -> int:
        """Stop the command by its plan and return its exit status. May be repeated."""
        self._close()
        return self._guard.wait()

    def _close(self) -> None:
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.close()


def start(
    command: Sequence[str],
    *,
    output: IO[bytes] | int,
    user: OsUser | None = None,
    environment: Mapping[str, str] | None = None,
    cwd: Path | str = "/",
    keep_fds: Sequence[int] = (),
    stop_plan: StopPlan = GENTLE,
) -> Guarded:
    """Start `command` under a guard, in a session of its own (a Ctrl-C reaches the owner only).

    `output` takes the command's stdout and stderr; `keep_fds` stay open in it under the same numbers;
    `user` is what it runs as when the owner is root. Raises `StartFailed`.
    """
    spec = {
        "command": list(command),
        "cwd": str(cwd),
        "environment": dict(os.environ if environment is None else environment),
        "user": None if user is None else [user.uid, user.gid],
        "keep_fds": list(keep_fds),
        "stop_plan": [[int(number), seconds] for number, seconds in stop_plan],
    }
    reader, writer = os.pipe()
    try:
        guard = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(writer)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",
            start_new_session=True,
            pass_fds=(writer, *keep_fds),
        )
    finally:
        os.close(writer)
    with os.fdopen(reader, "rb") as answers:
        assert guard.stdin is not None
        # The spec travels through the pipe and not through argv: the environment may hold secrets.
        body = json.dumps(spec).encode()
        with contextlib.suppress(BrokenPipeError):
            guard.stdin.write(len(body).to_bytes(4, "big") + body)
            guard.stdin.flush()
        answer: dict[str, Any] = json.loads(answers.readline() or b'{"error": "its guard ended at once"}')
    if "error" in answer:
        guard.stdin.close()
        guard.wait()
        raise StartFailed(f"{command[0]}: {answer['error']}")
    return Guarded(guard, answer["pid"])


def _die_with(parent: int) -> Callable[[], None]:
    """What the child does between fork and exec. It runs after the change of user, and must: that change clears the setting."""

    def run() -> None:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGINT), 0, 0, 0)
            if os.getppid() != parent:  # it died between the fork and the line above
                os._exit(1)

    return run


def _ignore(_signal: int, _frame: FrameType | None) -> None:
    """A handler rather than SIG_IGN, which the command would inherit."""


def _stop(child: subprocess.Popen[bytes], plan: StopPlan) -> None:
    os.read(0, 1)  # returns at the owner's end, or when it closes the pipe: nothing is ever written
    for number, seconds in plan:
        child.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(seconds)
            return


def _read_exactly(size: int) -> bytes:
    """`size` bytes of the owner's pipe, unbuffered; nothing if it ended before."""
    parts = b""
    while len(parts) < size:
        part = os.read(0, size - len(parts))
        if not part:
            return b""
        parts += part
    return parts


def _guard(answer_fd: int) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ignore)
    body = _read_exactly(int.from_bytes(_read_exactly(4), "big"))
    if not body:
        return 1  # the owner ended before it had said what to run
    spec = json.loads(body)
    uid, gid = spec["user"] or (None, None)
    with os.fdopen(answer_fd, "w") as answers:
        try:
            child = subprocess.Popen(
                spec["command"],
                stdin=subprocess.DEVNULL,
                cwd=spec["cwd"],
                env=spec["environment"],
                user=uid,
                group=gid,
                extra_groups=None if uid is None else [],
                pass_fds=spec["keep_fds"],
                preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509 (this process has one thread)
            )
        except (OSError, subprocess.SubprocessError) as error:
            answers.write(json.dumps({"error": str(error)}) + "\n")
            return 1
        answers.write(json.dumps({"pid": child.pid}) + "\n")
    for fd in spec["keep_fds"]:
        os.close(fd)
    threading.Thread(target=_stop, args=(child, spec["stop_plan"]), daemon=True).start()
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(_guard(int(sys.argv[1])))
