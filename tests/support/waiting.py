"""Waiting for a state to be seen, with a bound: the tests never sleep for a guessed time."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout: float = 10.0, every: float = 0.02) -> T:
    """Call `condition` until it gives something true, and return that.

    Raises `TimeoutError`, naming the condition and what it gave last.
    """
    end = time.monotonic() + timeout
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise TimeoutError(f"not seen within {timeout:g} s: {_describe(condition)} (last: {found!r})")
        time.sleep(every)


async def wait_until_async(
    condition: Callable[[], Awaitable[T]] | Callable[[], T], timeout: float = 10.0, every: float = 0.02
) -> T:
    """As `wait_until`, for a condition that may be awaited, without blocking the loop."""
    end = time.monotonic() + timeout
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        if time.monotonic() > end:
            raise TimeoutError(f"not seen within {timeout:g} s: {_describe(condition)} (last: {found!r})")
        await anyio.sleep(every)


def _describe(condition: Callable[..., object]) -> str:
    try:
        return inspect.getsource(condition).strip()
    except (OSError, TypeError):
        return repr(condition)
