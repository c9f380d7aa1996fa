"""Asking the person at the terminal before something is done that cannot be undone."""

from __future__ import annotations

import sys

from interlock.cli.exits import CommandFailed, ExitCode
from interlock.cli.output import Output
from interlock.cli.plain import show_plainly


def confirm(out: Output, question: str) -> None:
    """Go on if the person says yes. Raises CommandFailed for any other answer, and where nobody can be asked."""
    if not at_terminal():
        raise CommandFailed("nobody is there to be asked", ExitCode.USAGE, next="--yes does it without asking.")
    # On standard error: the output may be read by a program.
    sys.stderr.write(f"{show_plainly(question)} [y/N] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        out.notice("")
    if answer.strip().lower() not in ("y", "yes"):
        raise CommandFailed("nothing was done", ExitCode.DECLINED)


def at_terminal() -> bool:
    """Whether a person types here."""
    try:
        return sys.stdin is not None and sys.stdin.isatty()
    except ValueError:  # It is closed.
        return False
