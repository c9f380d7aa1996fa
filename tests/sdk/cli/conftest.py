"""The command against the one service of the SDK's tests, and without any."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sdk.cli.command import Cli, Done
from sdk.live import Live
from support.dev_service import DevService

VARIABLES = {
    "task-producer": "INTERLOCK_PRODUCER_KEY",
    "task-worker": "INTERLOCK_WORKER_KEY",
    "operator": "INTERLOCK_OPERATOR_KEY",
    "admin": "INTERLOCK_ADMIN_KEY",
}


@pytest.fixture
def offline(tmp_path: Path) -> Cli:
    """The command without any setting."""
    return Cli({}, tmp_path)


@pytest.fixture
def cli(live: Live, live_service: DevService, tmp_path: Path) -> Cli:
    """The command with the service's URL and keys in its environment."""
    keys = {variable: live_service.key(kind) for kind, variable in VARIABLES.items()}
    return Cli({"INTERLOCK_URL": live_service.url, **keys}, tmp_path)


RunHere = Callable[..., Done]


@pytest.fixture
def run_here(offline: Cli) -> RunHere:
    """Run the command without any setting but those that the test puts into the environment."""
    return offline.run


@pytest.fixture
def here(cli: Cli, run_here: RunHere, monkeypatch: pytest.MonkeyPatch) -> RunHere:
    """As `run_here`, with the settings of `cli` in the environment, where a test may change them."""
    for name, value in cli.environment.items():
        monkeypatch.setenv(name, value)
    return run_here


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """The command owns the log of its process; here it gives it back."""
    loggers = [logging.getLogger(name) for name in ("interlock", "httpx")]
    before = [(logger.handlers[:], logger.propagate, logger.level) for logger in loggers]
    exceptions = logging.raiseExceptions
    yield
    logging.raiseExceptions = exceptions
    for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers
        logger.propagate = propagate
        logger.setLevel(level)
