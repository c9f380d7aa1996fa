"""Loops beside the calls end when their host stops, also where a cancellation is swallowed below them."""

from __future__ import annotations

import asyncio

from interlock_core import background


async def test_a_loop_whose_first_cancellation_was_swallowed_ends_as_well() -> None:
    swallowed = asyncio.Event()

    async def loop() -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if swallowed.is_set():
                    raise
                swallowed.set()

    async def wait() -> None:
        await asyncio.Event().wait()

    jobs = [asyncio.create_task(loop()), asyncio.create_task(wait())]
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await background.end(jobs)
    assert swallowed.is_set()
    assert all(job.cancelled() for job in jobs)


async def test_what_a_loop_raised_does_not_keep_the_others() -> None:
    async def fail() -> None:
        raise ValueError

    async def wait() -> None:
        await asyncio.Event().wait()

    jobs = [asyncio.create_task(fail()), asyncio.create_task(wait())]
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await background.end(jobs)
    assert isinstance(jobs[0].exception(), ValueError)
    assert jobs[1].cancelled()
