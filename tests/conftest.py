"""Fixtures for all tests, and the two tiers: tests marked `slow` run with --all only."""

from __future__ import annotations

import signal
from collections import Counter
from typing import Any

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


#: What was left out, by its reason: counted where tests are collected, told where they are summed up.
LEFT_OUT = pytest.StashKey[dict[str, int]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    host = config.getoption("--host")
    markers = {"asgi": (), "dev": ("in_process",), "lambda-local": ("in_process", "warm")}[host]

    def reason(item: pytest.Item) -> str | None:
        if item.get_closest_marker("slow") and not config.getoption("--all"):
            return "slow"
        for marker in markers:
            if item.get_closest_marker(marker):
                return marker
        # What is patched here is not patched there.
        patched = {"http", "monkeypatch"} <= set(getattr(item, "fixturenames", ()))
        return "in_process" if markers and patched else None

    reasons = [reason(item) for item in items]
    left_out = [item for item, why in zip(items, reasons, strict=True) if why]
    config.stash[LEFT_OUT] = dict(Counter(why for why in reasons if why))
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = config.stash[LEFT_OUT]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item, why in zip(items, reasons, strict=True) if not why]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Each runner has collected the same: one of them tells it."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", {})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if found := config.stash.get(LEFT_OUT, {}):
        told = ", ".join(f"{count} {why}" for why, count in sorted(found.items()))
        terminalreporter.write_line(f"left out on {config.getoption('--host')}: {told}")


def pytest_report_header(config: pytest.Config) -> str:
    return f"service: {config.getoption('--host')}"


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "asyncio", {"use_uvloop": False}
