"""Loops that a host runs beside its calls, and their end."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

AGAIN_SECONDS = 0.25


async def end(jobs: Collection[asyncio.Task[Any]]) -> None:
    """Cancels the tasks until all have ended; what they raise is left to whoever made them.

    Once is not enough: a cancellation that meets the end of an `asyncio.wait_for` below (psycopg waits by it) is swallowed
    there before Python 3.12, and a loop goes on for ever.
    """
    left = {job for job in jobs if not job.done()}
    while left:
        for job in left:
            job.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN_SECONDS)
    await asyncio.gather(*jobs, return_exceptions=True)
