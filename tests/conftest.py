"""Fixtures for all tests, and the two tiers: tests marked `slow` run with --all only."""

from __future__ import annotations

import pytest

pytest_plugins = [
    "support.database",
    "support.clock",
    "support.api",
    "support.dev_service",
    "support.proxy",
    "support.served",
    "support.owner",
    "support.timetable",
    "support.worker_process",
    "support.play",
    "support.runs",  # last: it builds on the others
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the slow tests too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if not item.get_closest_marker("slow")]


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "asyncio", {"use_uvloop": False}
