"""Fixtures for all tests, and the two tiers: tests marked `slow` run with --all only."""

from __future__ import annotations

import signal

import pytest

pytest_plugins = [
    "support.dev_service",
    "support.hosts",
    "support.pooler",
    "support.database",
    "support.clock",
    "support.api",
    "support.proxy",
    "support.served",
    "support.stream_process",
    "support.owner",
    "support.timetable",
    "support.worker_process",
    "support.play",
    "support.runs",  # last: it builds on the others
]


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it puts into the background deaf to Ctrl-C, and whatever that starts would be too: the tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the slow tests too")
    parser.addoption(
        "--host",
        choices=["asgi", "dev", "lambda-local"],
        default="asgi",
        help="what serves the HTTP suite: this process, scripts/dev, or the built functions of scripts/lambda-local",
    )
    parser.addoption("--pooler", action="store_true", help="the HTTP suite's service reaches its database through PgBouncer")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [] if config.getoption("--all") else [item for item in items if item.get_closest_marker("slow")]
    markers = {"asgi": (), "dev": ("in_process",), "lambda-local": ("in_process", "warm")}[config.getoption("--host")]
    left_out += [item for item in items if any(map(item.get_closest_marker, markers)) and item not in left_out]
    if markers:  # what is patched here is not patched there
        patched = {"http", "monkeypatch"}
        left_out += [item for item in items if patched <= set(getattr(item, "fixturenames", ())) and item not in left_out]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def pytest_report_header(config: pytest.Config) -> str:
    return f"service: {config.getoption('--host')}"


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "asyncio", {"use_uvloop": False}
