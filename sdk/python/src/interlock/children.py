"""Children of a run: tasks of their own, submitted once per name, whose results come back to it."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import Any

from interlock.contract import TaskContract
from interlock.errors import ChildFailed, GatherFailed, NotJson
from interlock.port import ChildRequest, PortRefused, StoredStep
from interlock.run import Call, Run
from interlock.submission import Submission
from interlock.waits import wait

SPAWNS = 8
"""Children that a gather submits at the same time."""

WAIT_CHILDREN = 1000
"""Children that the service takes in one wait."""


class Child:
    """A child of this run. In an async handler, `await` it to have it submitted (a gather does that as well).

    `name` is its name within the run, `task_id` its task, once it is submitted.
    """

    def __init__(self, run: Run, call: Call, submission: Submission, detached: bool) -> None:
        self._run = run
        self._call = call
        self._submission = submission
        self._detached = detached
        self._submitting: asyncio.Future[str] | None = None
        self.name = call.name
        self.task_id: str | None = None

    def __repr__(self) -> str:
        return f"Child(name={self.name!r}, task_id={self.task_id!r})"

    def __await__(self) -> Generator[Any, None, Child]:
        return self.submitted().__await__()

    def result(self) -> Any:
        """Its result, awaited in an async handler: the slot is free until it has ended. Raises ChildFailed."""
        call = self._run.allot(f"result:{self.name}")
        return self._run.begin(call, take_result(self._run, call, self))

    async def submitted(self) -> Child:
        """Itself, once the service has it; it is submitted once, however often this is asked."""
        if self.task_id is None:
            if not self._run.is_async:
                self.task_id = await self._submit()
            else:
                if self._submitting is None:
                    self._submitting = asyncio.ensure_future(self._submit())
                self.task_id = await self._submitting
        return self

    def read(self, value: Any) -> Any:
        """A result of it, as its contract says. Raises NotValid."""
        contract: TaskContract[Any, Any] | None = self._submission.contract
        return value if contract is None else contract.read_output(value)

    def belongs_to(self, run: Run) -> bool:
        """Whether it is a child of this run."""
        return self._run is run

    async def _submit(self) -> str:
        run, call = self._run, self._call
        with run.flight(call):
            stored = run.find(call, "child")
            if stored is not None:
                return str(stored.output["taskId"])
            task = self._submission.to_wire()
            del task["idempotencyKey"]  # its name within the run is its key
            request = ChildRequest(self.name, task, self._detached)
            try:
                request.encode()
            except NotJson as error:  # said here, where the program is, and not by a thread that carries the call
                raise NotJson(str(error), error.pointer) from None
            await run.store_marks()
            try:
                task_id = await run.hands.call(partial(run.port.spawn_child, request))
            except PortRefused as refused:
                run.refuse(refused, f"the child {self.name!r} cannot be submitted")
            run.steps[self.name] = StoredStep(self.name, "child", output={"taskId": task_id})
            return task_id


async def take_result(run: Run, call: Call, child: Child) -> Any:
    """The result of one child."""
    call.begun = True
    found = await wait_for(run, call, [child])
    if isinstance(found[0], ChildFailed):
        raise found[0]
    return found[0]


async def gather(run: Run, call: Call, children: Sequence[Child], return_exceptions: bool) -> list[Any]:
    """The results of several, in order. Raises GatherFailed with all that came of them if one has none."""
    call.begun = True
    if not children:
        call.finish()
        return []
    found = await wait_for(run, call, children)
    if not return_exceptions and any(isinstance(item, ChildFailed) for item in found):
        raise GatherFailed(found)
    return found


async def wait_for(run: Run, call: Call, children: Sequence[Child]) -> list[Any]:
    """What came of each child: its result, or its ChildFailed."""
    for child in children:
        if not child.belongs_to(run):
            raise ValueError(f"{child!r} is not a child of this run")
    if run.is_async:
        waiting = asyncio.Semaphore(SPAWNS)

        async def submit(child: Child) -> None:
            async with waiting:
                await child.submitted()

        await asyncio.gather(*map(submit, children))
    names = list(dict.fromkeys(child.name for child in children))
    ends: dict[str, Mapping[str, Any]] = {}
    for place in range(0, len(names), WAIT_CHILDREN):
        part = call if not place else run.allot(f"{call.name}/{place // WAIT_CHILDREN + 1}")
        output = await wait(run, part, {"children": names[place : place + WAIT_CHILDREN]})
        ends.update((str(view.get("name")), view) for view in output.get("children") or ())
    if any("result" not in view for view in ends.values()):
        ends = await read_ends(run)
    return [read_end(child, ends.get(child.name) or {}) for child in children]


async def read_ends(run: Run) -> dict[str, Mapping[str, Any]]:
    """How the children ended, where their results and failures were too large for the wait's own output."""
    ends: dict[str, Mapping[str, Any]] = {}
    cursor: str | None = None
    while True:
        page = await run.hands.call(partial(run.port.read_children, cursor))
        ends.update((str(view.get("name")), view) for view in page.items)
        cursor = page.cursor
        if not cursor:
            return ends


def read_end(child: Child, view: Mapping[str, Any]) -> Any:
    """A child's result, or its ChildFailed."""
    status = str(view.get("status") or "failed")
    if status == "succeeded":
        return child.read(view.get("result"))
    failure = view.get("failure") or {}
    code = str(failure.get("code") or status.upper())
    task_id = str(view.get("taskId") or child.task_id or "")
    return ChildFailed(child.name, task_id, status, code, str(failure.get("message") or ""), failure.get("details"))
