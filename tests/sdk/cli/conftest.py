"""The command against the one service of the SDK's tests, and without any."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdk.cli.command import Cli
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
