"""The sync calls, awaited: a method of a sync class becomes one of its async twin, its arguments and types written once.

    class AsyncOperator:
        resolve = Awaited(Operator.resolve)      # await operator.resolve(…)
        workers = Streamed(Operator.workers)     # async for worker in operator.workers()

Each call is the sync object's own, made in a thread of the twin (`_threads`), so both decide alike.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from itertools import islice
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from interlock.threads import CallThreads, run_in

Sync = TypeVar("Sync")
Args = ParamSpec("Args")
Result = TypeVar("Result")

PAGE = 50
"""Items that are fetched in one go, unless the call's `page_size` says otherwise."""


class Twin(Protocol[Sync]):
    """What has a sync object, and threads for its calls."""

    _sync: Sync
    _threads: CallThreads


class Awaited(Generic[Sync, Args, Result]):
    """A call of the sync object, to be awaited. One that is cancelled on its way may still be carried out."""

    def __init__(self, method: Callable[Concatenate[Sync, Args], Result]) -> None:
        @functools.wraps(method)
        async def call(twin: Twin[Sync], *given: Args.args, **options: Args.kwargs) -> Result:
            return await run_in(twin._threads, functools.partial(method, twin._sync, *given, **options))  # noqa: SLF001 (its twin is its owner)

        self._call = call

    @overload
    def __get__(self, twin: None, kind: type | None = None) -> Callable[..., Coroutine[Any, Any, Result]]: ...
    @overload
    def __get__(self, twin: Twin[Sync], kind: type | None = None) -> Callable[Args, Coroutine[Any, Any, Result]]: ...
    def __get__(self, twin: Twin[Sync] | None, kind: type | None = None) -> Callable[..., Coroutine[Any, Any, Result]]:
        return self._call if twin is None else MethodType(self._call, twin)


class Streamed(Generic[Sync, Args, Result]):
    """A list of the sync object, for `async for`; pages are fetched as the iterator moves on."""

    def __init__(self, method: Callable[Concatenate[Sync, Args], Iterator[Result]]) -> None:
        @functools.wraps(method)
        def call(twin: Twin[Sync], *given: Args.args, **options: Args.kwargs) -> AsyncIterator[Result]:
            size: Any = options.get("page_size", PAGE)
            return fetch(twin._threads, method(twin._sync, *given, **options), size)  # noqa: SLF001

        self._call = call

    @overload
    def __get__(self, twin: None, kind: type | None = None) -> Callable[..., AsyncIterator[Result]]: ...
    @overload
    def __get__(self, twin: Twin[Sync], kind: type | None = None) -> Callable[Args, AsyncIterator[Result]]: ...
    def __get__(self, twin: Twin[Sync] | None, kind: type | None = None) -> Callable[..., AsyncIterator[Result]]:
        return self._call if twin is None else MethodType(self._call, twin)


async def fetch(threads: CallThreads, items: Iterator[Result], size: int) -> AsyncIterator[Result]:
    """The items of an iterator that blocks, `size` at a time."""
    while chunk := await run_in(threads, lambda: [*islice(items, size)]):
        for item in chunk:
            yield item
        if len(chunk) < size:
            return
