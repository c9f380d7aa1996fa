"""The calls of a run whose handler is in a process of its own: the child asks through its pipe, the worker makes the call.

RelayPort → ("call", number, name, argument) → answer_call → Answer
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, cast

from interlock.port import ChildRequest, Page, Port, PortRefused, StepReport, Stopped, StoredStep


@dataclass(frozen=True)
class Answer:
    """What came of a call."""

    number: int
    kind: Literal["done", "refused", "stopped"]
    value: Any


class RelayPort:
    """The port of a child process. `send` takes a call to the worker; `take` is given its answer, by another thread."""

    def __init__(self, send: Callable[[tuple[Any, ...]], None]) -> None:
        self._send = send
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Answer]] = {}

    def store_step(self, report: StepReport) -> StoredStep:
        """As Port.store_step."""
        return cast("StoredStep", self._ask("store_step", report))

    def spawn_child(self, request: ChildRequest) -> str:
        """As Port.spawn_child."""
        return cast("str", self._ask("spawn_child", request))

    def read_steps(self, cursor: str | None) -> Page:
        """As Port.read_steps."""
        return cast("Page", self._ask("read_steps", cursor))

    def read_children(self, cursor: str | None) -> Page:
        """As Port.read_children."""
        return cast("Page", self._ask("read_children", cursor))

    def take(self, answer: Answer) -> None:
        """Hand an answer to the thread that waits for it."""
        waiting = self._waiting.pop(answer.number, None)
        if waiting is not None:
            waiting.set_result(answer)

    def _ask(self, name: str, argument: Any) -> Any:
        number = next(self._numbers)
        waiting: Future[Answer] = Future()
        self._waiting[number] = waiting
        self._send(("call", number, name, argument))
        answer = waiting.result()  # the worker gives one in any case; when it is gone, so is this process
        if answer.kind == "refused":
            raise PortRefused(*answer.value)
        if answer.kind == "stopped":
            raise Stopped(answer.value)
        return answer.value


def answer_call(port: Port, number: int, name: str, argument: Any) -> Answer:
    """Make a child's call."""
    calls: dict[str, Callable[[Any], Any]] = {
        "store_step": port.store_step,
        "spawn_child": port.spawn_child,
        "read_steps": port.read_steps,
        "read_children": port.read_children,
    }
    try:
        return Answer(number, "done", calls[name](argument))
    except PortRefused as refused:
        return Answer(number, "refused", (refused.code, refused.status, refused.message))
    except Stopped as stopped:
        return Answer(number, "stopped", str(stopped))
    except Exception as error:  # a fault of ours: the run must not wait for ever
        return Answer(number, "refused", ("INTERNAL", 500, f"{type(error).__name__}: {error}"))
