"""The `interlock` command: every call of the protocol for people, and with `--json` for programs.

    interlock_command → main → streams (guarded output) → app → tree (of commands) → one command → exits (its status)

To read: `options` (what every command takes), `session` (service and key), `submit`, `tasks`, `watch`, `settle`, `bulk`,
`controls`, `keys`, `login`, `fleet`, `workers`, `top`, `worker`, `doctor`, `completion`; `output` and `plain` put text on a
terminal without letting it do anything there.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from importlib.util import find_spec
from types import FrameType

from interlock.cli.exits import ExitCode
from interlock.cli.streams import OutputClosed, discard_output, guard_streams

__all__ = ["main"]

EXTRA = ("typer", "rich")


def nothing() -> None:
    """Nothing is to be done."""


def main(ready: Callable[[], None] = nothing) -> int:
    """Run the command of `sys.argv` and return its exit status; nothing is raised, no traceback is printed.

    `ready` is called when a command has been chosen, all is imported, and Ctrl-C will be heard as KeyboardInterrupt.
    """
    guard_streams()
    try:
        code = run_guarded(ready)
        sys.stdout.flush()
    except OutputClosed:
        code = ExitCode.OUTPUT_CLOSED
    except OSError as error:
        sys.stderr.write(f"interlock: the output cannot be written: {error.strerror}\n")
        code = ExitCode.UNEXPECTED
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    else:
        return code
    # What is still buffered could not be written either when the interpreter ends.
    discard_output()
    return code


def run_guarded(ready: Callable[[], None]) -> int:
    """Run the command, or tell which package of the extra is missing."""
    for package in EXTRA:
        if find_spec(package) is None:
            sys.stderr.write(f"interlock: the command needs {package}: pip install 'interlock-tasks[cli]'\n")
            return ExitCode.USAGE
    from interlock.cli.app import run

    # Not the default end: a moving line on a terminal has hidden the cursor, which has to come back.
    signal.signal(signal.SIGTERM, end)
    return run([read_argument(argument) for argument in sys.argv[1:]], ready)


def end(_number: int, _frame: FrameType | None) -> None:
    """End in good order."""
    raise SystemExit(ExitCode.TERMINATED)


def read_argument(argument: str) -> str:
    """The argument as UTF-8 also where the locale knows only ASCII, and Python made surrogates of the other bytes."""
    try:
        return os.fsencode(argument).decode("utf-8") if os.name != "nt" else argument
    except UnicodeError:
        return argument
