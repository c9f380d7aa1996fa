"""How a handler is unwound when its run waits."""

from __future__ import annotations


class Suspend(BaseException):
    """Unwinds the handler: the attempt ends, its slot is free, and the run is resumed when its wait is over.

    Not an Exception, so that `except Exception` in a handler lets it through.
    """


def is_suspend(error: BaseException) -> bool:
    """Whether this is a Suspend, or a group of them and of nothing else (what a TaskGroup makes of it)."""
    members = getattr(error, "exceptions", None)
    if isinstance(members, tuple) and members:
        return all(is_suspend(member) for member in members)
    return isinstance(error, Suspend)
