"""Named points at which a test may freeze or crash the service. Free when nothing is armed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

armed: dict[str, Callable[[], Awaitable[None]]] = {}


async def testpoint(name: str) -> None:
    """Runs what a test armed under `name`, or nothing."""
    if armed and (action := armed.get(name)) is not None:
        await action()
