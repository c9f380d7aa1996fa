"""Where the `interlock` command begins: nothing is imported before Ctrl-C ends it in silence.

Apart from the package `interlock`, which alone takes a good part of a second to import on a slow machine.
"""

import os
import signal

__all__ = ["main"]

INTERRUPTED = 130


def main() -> int:
    """Run the command of `sys.argv` and return its exit status."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # Else it is ignored, as for a job in the background.
        signal.signal(signal.SIGINT, leave)
    from interlock.cli import main as run  # noqa: PLC0415 (only now can it be interrupted)

    code = run(ready=listen)
    # All is written; what the interpreter does at its end must not print a traceback either.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)
    return code


def leave(_number: int, _frame: object) -> None:
    """End at once: nothing was begun yet, or all is done. An exception could be swallowed by, or printed from, an import."""
    os._exit(INTERRUPTED)


def listen() -> None:
    """Let Ctrl-C be an exception again, which the commands know how to end on."""
    if signal.getsignal(signal.SIGINT) is leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)
