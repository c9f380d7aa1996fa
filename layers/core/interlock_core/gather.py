"""Calls that arrive while another is under way share the next flight: one round trip and one commit for all of them.

Commits per task are what limits a host (docs/decisions/0004). In a function, which serves one call at a time, a flight
carries one call and nothing is delayed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Gather(Generic[T, R]):
    """Runs `fly(items)` for whatever items wait, one flight at a time.

    `fly` answers each item with a result or an exception, in order. Items whose `apart` keys are equal never share a
    flight (None: anything may be beside it).
    """

    def __init__(
        self,
        fly: Callable[[Sequence[T]], Awaitable[Sequence[R | BaseException]]],
        apart: Callable[[T], Hashable | None],
        most: int = 200,
    ) -> None:
        self._fly = fly
        self._apart = apart
        self._most = most
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._flight: asyncio.Task[None] | None = None

    async def run(self, item: T) -> R:
        """The item's own result. A caller that is cancelled leaves its item to its flight: it may happen or not, as a whole."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._flight is None or self._flight.done():
            self._flight = asyncio.create_task(self._take_off())
        return await future

    async def _take_off(self) -> None:
        while batch := self._board():
            try:
                results = await self._fly([item for item, _ in batch])
            except BaseException as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                if not isinstance(error, Exception):
                    raise
                continue
            for (_, future), result in zip(batch, results, strict=True):
                if future.done():
                    continue
                if isinstance(result, BaseException):
                    future.set_exception(result)
                else:
                    future.set_result(result)

    def _board(self) -> list[tuple[T, asyncio.Future[R]]]:
        boarded: list[tuple[T, asyncio.Future[R]]] = []
        left: list[tuple[T, asyncio.Future[R]]] = []
        apart: set[Hashable] = set()
        for item, future in self._waiting:
            key = self._apart(item)
            if future.cancelled():
                continue
            if len(boarded) >= self._most or (key is not None and key in apart):
                left.append((item, future))
                continue
            if key is not None:
                apart.add(key)
            boarded.append((item, future))
        self._waiting = left
        return boarded
