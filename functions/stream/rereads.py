"""What a hint says of a whole project, "read everything of that kind again", costs a look at all of it: many such are one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

#: The first is told at once; what comes within this time is told together.
GAP_SECONDS = 0.2


class Rereads:
    """The projects to be looked at again. `run` is its loop; `tell(projects)` looks, and raises nothing."""

    def __init__(self, tell: Callable[[list[str]], Awaitable[None]]) -> None:
        self._tell = tell
        self._asked: set[str] = set()
        self._kick = asyncio.Event()

    def ask(self, project: str) -> None:
        """Look at it soon."""
        self._asked.add(project)
        self._kick.set()

    async def run(self) -> None:
        """Looks for ever; ends by cancellation only."""
        while True:
            await self._kick.wait()
            self._kick.clear()
            asked, self._asked = sorted(self._asked), set()
            await self._tell(asked)
            await asyncio.sleep(GAP_SECONDS)
