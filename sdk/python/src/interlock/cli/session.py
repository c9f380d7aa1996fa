"""What one command works with: the service's URL, a key of the right kind, and its output."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from interlock.cli.output import Output
from interlock.cli.plain import show_plainly
from interlock.errors import ConfigurationError
from interlock.settings import KEY_VARIABLES, KeyKind, read_profile

if TYPE_CHECKING:
    from interlock.client import Client

PATIENCE = 10.0
"""A person waits no longer than this (seconds) for one answer, repeated tries included, unless --patience says so."""

READERS: tuple[KeyKind, ...] = ("task-producer", "operator")
"""The kinds that may read tasks, task types and workers, and cancel."""


class Session:
    """One run of a command. `key`, if given, is used for every call; else the key of the first kind that is set."""

    def __init__(
        self, *, url: str | None, key: str | None, profile: str | None, patience: float | None, json: bool, verbose: bool
    ) -> None:
        self.url = url
        self.key = key
        self.profile = profile
        self.patience = PATIENCE if patience is None else max(patience, 0.1)
        self.verbose = verbose
        self.out = Output(json=json)
        show_log(self.out, verbose=verbose)

    def client(self, *kinds: KeyKind) -> Client:
        """A client with a key of one of these kinds. Raises ConfigurationError if none is set."""
        return find_client(kinds, self.url, self.key, self.profile, self.patience)


def find_client(kinds: Sequence[KeyKind], url: str | None, key: str | None, profile: str | None, timeout: float) -> Client:
    """A client with the key, or with one of these kinds that is set. Raises ConfigurationError if none is."""
    from interlock.client import Client

    if key:
        return Client(url, key, kind=kinds[0], profile=profile, timeout=timeout)
    for kind in kinds:
        if has_key(kind, profile):
            return Client(url, kind=kind, profile=profile, timeout=timeout)
    names = " or ".join(KEY_VARIABLES[kind] for kind in kinds)
    raise ConfigurationError(f"no {' or '.join(kinds)} key: set {names}, write a profile, or give --key")


def has_key(kind: KeyKind, profile: str | None) -> bool:
    """Whether the environment or the profile holds a key of the kind."""
    keys = read_profile(profile).get("keys")
    return bool(os.environ.get(KEY_VARIABLES[kind])) or (isinstance(keys, dict) and bool(keys.get(kind)))


class ErrorLog(logging.Handler):
    """The package's log on standard error, one harmless line each."""

    def __init__(self, out: Output) -> None:
        super().__init__()
        self.out = out

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; a log that cannot be written stops nothing."""
        try:
            self.out.notice(f"{record.levelname.lower()}: {show_plainly(record.getMessage())}")
            if record.exc_info and record.exc_info[1] is not None:  # what a handler raised: where it did is what one looks for
                for line in "".join(traceback.format_exception(*record.exc_info)).splitlines():
                    self.out.notice(f"  {show_plainly(line)}")
        except Exception:
            self.handleError(record)


def show_log(out: Output, *, verbose: bool) -> None:
    """Send the package's warnings (with `verbose`, all it says, and each request) to standard error."""
    logging.raiseExceptions = False
    for name in ("interlock", "httpx"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [ErrorLog(out)]
        logger.propagate = False
        logger.setLevel(logging.DEBUG if verbose else logging.WARNING)


def show_traceback() -> None:
    """The traceback of the error at hand, on standard error, harmlessly."""
    for line in traceback.format_exc().splitlines():
        sys.stderr.write(show_plainly(line) + "\n")
