"""The worker's side: what a user declares, and how the worker is started and stopped. `life` is what happens between.

TaskWorker.handle → run (or start … drain)
"""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from interlock.client import Client
from interlock.contract import TaskContract
from interlock.errors import ConfigurationError
from interlock.forking import leave_to_parent
from interlock.handler import WORKER_ID_FORM, EffectSafety, Handler, Isolation, LeaseDoubt, declare
from interlock.isolated import is_child
from interlock.isolation import check_isolated
from interlock.life import Life, Plan
from interlock.retry import Retry
from interlock.schedules import ScheduleOptions, make_schedule
from interlock.settings import state_folder
from interlock.signals import Signals
from interlock.spool import Spool, default_spool
from interlock.submission import to_seconds

if TYPE_CHECKING:
    from typing_extensions import Unpack

Function = TypeVar("Function", bound=Callable[..., Any])


class TaskWorker:
    """Runs the tasks of the types that it has handlers for, over connections that it opens itself.

    `worker_id` names the program; several processes may run under it. `max_concurrent` is the number of handlers that
    run at once, `spool` the folder in which finished outcomes are kept until the service has them (a path of its own
    for each process; absent: a free one below `~/.local/state/interlock`). `drain_timeout` is the time, in seconds,
    that running handlers have when the worker stops. URL and key come from the arguments, else from `INTERLOCK_URL` and
    `INTERLOCK_WORKER_KEY`, else from the profile; `ca` as of Client.
    """

    def __init__(
        self,
        *,
        worker_id: str,
        max_concurrent: int = 10,
        pool: str = "default",
        spool: str | os.PathLike[str] | None = None,
        drain_timeout: float = 30.0,
        url: str | None = None,
        key: str | None = None,
        profile: str | None = None,
        build: str | None = None,
        ca: str | os.PathLike[str] | None = None,
    ) -> None:
        if not WORKER_ID_FORM.fullmatch(worker_id):
            raise ValueError(f"worker_id is letters, digits, '.', '_' and '-', at most 128, got {worker_id!r}")
        if max_concurrent < 1:
            raise ValueError("max_concurrent is at least 1")
        self.worker_id = worker_id
        self.instance_id = str(uuid.uuid4())
        self.max_concurrent = max_concurrent
        self.pool = pool
        self.drain_timeout = drain_timeout
        self.build = build
        self._spool_folder = spool
        self._connection = (url, key, profile, ca)
        self._handlers: dict[tuple[str, int], Handler] = {}
        self._schedules: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._life: Life | None = None
        leave_to_parent(self)

    def forget_parent(self) -> None:
        """In a forked child: the worker runs in the parent. Here it is as new, another process of the same worker."""
        self.instance_id = str(uuid.uuid4())
        self._lock = threading.Lock()
        self._life = None

    def __repr__(self) -> str:
        return f"TaskWorker(worker_id={self.worker_id!r}, pool={self.pool!r}, handlers={len(self._handlers)})"

    def handle(
        self,
        type: str | TaskContract[Any, Any],
        schema_version: int = 1,
        *,
        effect_safety: EffectSafety,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
        max_concurrent: int | None = None,
        lease: float | timedelta | None = None,
        start_deadline: float | timedelta | None = None,
        description: str | None = None,
        on_lease_doubt: LeaseDoubt | None = None,
        isolation: Isolation = "thread",
        reconcile: Callable[..., Any] | None = None,
    ) -> Callable[[Function], Function]:
        """Decorate the function that runs the tasks of one type and version: `fn(input, ctx)`, sync or async.

        `type` may be a contract made by `interlock.task`: the function gets its input type, and a task whose input does
        not fit fails with `INPUT_NOT_VALID`. What the function returns is the task's result. It may raise `Retryable`,
        `UnknownOutcome` or `Cancelled`; anything else fails the task, unless `retry.on` names it. `effect_safety` says
        what a second run would do: nothing outside (`pure`), the same again under effect keys (`idempotent`), harm
        (`non-idempotent`). `timeout` is the longest one attempt may run, `max_concurrent` a limit of this handler's own.
        `isolation="process"` runs a sync function in a child process, which is killed where it does not stop when asked
        to, and whose crash costs one attempt; the function must be importable.
        `reconcile(input, ctx)` of a non-idempotent handler finds out whether an attempt that vanished did its work, before
        another one runs: Happened(result), DidNotHappen() or CannotTell(). Raises ValueError for what cannot be served.
        """
        contract = type if isinstance(type, TaskContract) else None
        name, version = (type.type, type.schema_version) if isinstance(type, TaskContract) else (type, schema_version)

        def register(fn: Function) -> Function:
            handler = Handler(
                name, version, fn, effect_safety, retry, to_seconds(timeout), max_concurrent, to_seconds(lease),
                to_seconds(start_deadline), description, on_lease_doubt, contract, isolation,
                reconcile,
            )  # fmt: skip
            if handler.key in self._handlers:
                raise ValueError(f"{name}@{version} has a handler already")
            if self._life is not None:
                raise ValueError("handlers are declared before the worker starts")
            self._handlers[handler.key] = handler
            declare(handler)
            return fn

        return register

    def schedule(
        self,
        name: str,
        type: str | TaskContract[Any, Any],
        *given: Any,
        **options: Unpack[ScheduleOptions],
    ) -> None:
        """Have the service submit a task again and again: `schedule(name, type, schema_version, input, cron=…)`.

        Or `schedule(name, contract, input, …)`; the options are those of ScheduleOptions: `cron` and `time_zone`, or `every`,
        and those of the task. The schedules belong to this worker ID: its registration replaces them, so that one which the
        program no longer declares is gone with its next start. Raises ValueError for a name that is no name, or taken.
        """
        if not WORKER_ID_FORM.fullmatch(name):
            raise ValueError(f"a schedule's name is letters, digits, '.', '_' and '-', at most 128, got {name!r}")
        if name in self._schedules:
            raise ValueError(f"there is a schedule {name} already")
        if self._life is not None:
            raise ValueError("schedules are declared before the worker starts")
        self._schedules[name] = {"name": name, **make_schedule(type, *given, **options)}

    def run(self) -> None:
        """Serve until SIGTERM, Ctrl-C or `drain()`; a second signal makes the drain quicker.

        Returns when everything is reported or given back. Raises ApiError where the service refuses the worker at its
        start (a wrong key, say), SpoolLocked or SpoolError for the spool, ConfigurationError for URL or key.
        """
        self._serve()

    def _serve(self, begun: Callable[[], None] | None = None) -> None:
        """`run`. `begun` is called when nothing on this machine (handlers, URL, key, spool) forbids the worker to start."""
        if is_child():
            return
        with Signals() as signals:
            life = self._begin(begun)
            while not life.ended.is_set():
                try:
                    while not life.ended.is_set():
                        if signals.wait(0.2):
                            life.begin_drain(hurry=life.drain_begun.is_set())
                except KeyboardInterrupt:  # Ctrl-C where it cannot be caught as a signal: it may come at any line
                    life.begin_drain(hurry=life.drain_begun.is_set())
        life.check()

    def start(self) -> None:
        """Start serving in threads of its own; `drain` ends it.

        Raises what `run` raises at its start. A service that cannot be reached is no error: it is asked again for ever.
        """
        if is_child():
            return
        life = self._begin()
        life.settled.wait()
        life.check()

    def drain(self, timeout: float | None = None) -> None:
        """Claim no more, let running handlers end (at most `drain_timeout` or `timeout` seconds), report, give back."""
        life = self._life
        if life is not None:
            life.begin_drain(timeout=timeout)
            life.ended.wait()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the worker has ended; False if the time was over first. Raises what ended it, if it was a fault."""
        life = self._life
        if life is None:
            return True
        if not life.ended.wait(timeout):
            return False
        life.check()
        return True

    def __enter__(self) -> TaskWorker:  # noqa: PYI034 (typing.Self is newer than Python 3.10)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.drain()

    async def __aenter__(self) -> TaskWorker:  # noqa: PYI034 (typing.Self is newer than Python 3.10)
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.drain)

    def _begin(self, begun: Callable[[], None] | None = None) -> Life:
        if not self._handlers:
            raise ConfigurationError("the worker has no handler: declare one with @worker.handle(…)")
        for handler in self._handlers.values():
            if handler.isolation == "process":
                check_isolated(handler)
        with self._lock:
            if self._life is not None and not self._life.ended.is_set():
                raise RuntimeError("the worker runs already")
            url, key, profile, ca = self._connection
            client = Client(url, key, kind="task-worker", profile=profile, ca=ca)
            given = self._spool_folder
            spool = Spool(given) if given is not None else default_spool(state_folder() / self.worker_id)
            plan = Plan(
                self.worker_id, self.instance_id, self.pool, self.max_concurrent, self.drain_timeout, self.build,
                tuple(self._handlers.values()), tuple(self._schedules.values()),
            )  # fmt: skip
            self._life = life = Life(plan, client, spool)
        if begun is not None:
            begun()
        life.start()
        return life
