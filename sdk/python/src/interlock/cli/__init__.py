"""The `interlock` command: every call of the protocol for people, and with `--json` for programs.

    main → streams (guarded output) → app (the tree of commands) → one command → exits (its status)

To read: `options` (what every command takes), `session` (service and key), `submit`, `tasks`, `watch`, `settle`, `keys`,
`fleet`, `worker`, `doctor`; `output` and `plain` put text on a terminal without letting it do anything there.
"""

from __future__ import annotations

import sys

from interlock.cli.exits import ExitCode
from interlock.cli.streams import OutputClosed, discard_output, guard_streams

__all__ = ["main"]

EXTRA = ("typer", "rich")


def main() -> int:
    """Run the command of `sys.argv` and return its exit status; nothing is raised, no traceback is printed."""
    try:
        guard_streams()
        from interlock.cli.app import run  # noqa: PLC0415 (a missing extra must be told, not raised)

        return run(sys.argv[1:])
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        sys.stderr.write(f"interlock: the command needs {error.name}: pip install 'interlock-tasks[cli]'\n")
        return ExitCode.USAGE
    except OutputClosed:
        discard_output()
        return ExitCode.OUTPUT_CLOSED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
