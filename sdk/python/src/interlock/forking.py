"""Forks: a child is a copy of the thread that forked, and owns nothing of what its parent's worker is doing.

What must not live on in a child is named to `leave_to_parent`; its `forget_parent` is called in each child before
anything else runs there. A handler that forks and returns in the child as well ends there, by `end_child`.
"""

from __future__ import annotations

import contextlib
import os
import traceback
import weakref
from typing import NoReturn, Protocol


class Owned(Protocol):
    """What belongs to one process."""

    def forget_parent(self) -> None:
        """Called in a forked child: let go of what is the parent's, without a lock, and without telling anybody."""


def leave_to_parent(owned: Owned) -> None:
    """Have `owned.forget_parent()` called in forked children, as long as it is in use."""
    _owned.add(owned)


def end_child(error: BaseException | None = None) -> NoReturn:
    """End a forked child that came out of its handler, by its exception if any, as a program would end; no clean-up runs."""
    status = 0
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        status = 1
        with contextlib.suppress(BaseException):  # Whatever is wrong with the text, the child has to end.
            told = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            os.write(2, told.encode("utf-8", "backslashreplace"))  # not sys.stderr: another thread may have held its lock
    os._exit(status & 0xFF)


def _forget_parents() -> None:
    for owned in list(_owned):
        with contextlib.suppress(Exception):  # One that fails must not keep the others.
            owned.forget_parent()


_owned: weakref.WeakSet[Owned] = weakref.WeakSet()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents)
