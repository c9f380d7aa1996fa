"""The calls that a durable run makes while it runs: one small surface, behind which is the service or a test's memory.

`http_port` speaks to the service, `isolated` passes the calls on to the worker's process, `testing` answers from memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from interlock.json_text import encode

StepStatus = Literal["started", "succeeded", "failed"]


@dataclass(frozen=True)
class StoredStep:
    """A step, a wait or a child as the service has it. `output` is a value also where it is None: `status` says so."""

    name: str
    kind: str = "step"
    status: str = "succeeded"
    final: bool = True
    tries: int = 0
    output: Any = None
    error: Mapping[str, Any] | None = None
    duplicate: bool = False

    @property
    def is_open(self) -> bool:
        """Whether it was started and nothing is known of its end."""
        return self.status == "started" and not self.final

    @classmethod
    def read(cls, view: Mapping[str, Any]) -> StoredStep:
        """The step in an answer or a claim."""
        status = str(view.get("status", ""))
        return cls(
            name=str(view.get("name", "")),
            kind=str(view.get("kind") or "step"),
            status=status,
            final=bool(view.get("final", status == "succeeded")),
            tries=int(view.get("tries") or 0),
            output=view.get("output"),
            error=view.get("error"),
            duplicate=bool(view.get("duplicate", False)),
        )


@dataclass(frozen=True)
class StepReport:
    """What is told of a step. `output` and `error` are JSON texts: values are encoded once."""

    name: str
    status: StepStatus
    effect_safety: str
    reconciles: bool = False
    tries: int | None = None
    final: bool | None = None
    output: bytes | None = None
    error: bytes | None = None

    def encode(self) -> bytes:
        """Its fields, to be put behind the ids of the attempt."""
        fields: dict[str, Any] = {"name": self.name, "status": self.status, "effectSafety": self.effect_safety}
        if self.reconciles:
            fields["reconciles"] = True
        if self.tries is not None:
            fields["tries"] = self.tries
        if self.final is not None:
            fields["final"] = self.final
        parts = b"," + encode(fields)[1:-1]
        if self.output is not None:
            parts += b',"output":' + self.output
        if self.error is not None:
            parts += b',"error":' + self.error
        return parts


@dataclass(frozen=True)
class ChildRequest:
    """A child to be submitted: once per name. `task` holds the fields of a submission without its idempotency key."""

    name: str
    task: Mapping[str, Any]
    detached: bool = False

    def encode(self) -> bytes:
        """Its fields, to be put behind the ids of the attempt. Raises NotJson for an input that JSON cannot carry."""
        fields = {"name": self.name, **self.task}
        if self.detached:
            fields["detached"] = True
        return b"," + encode(fields, f"the child {self.name!r}")[1:-1]


@dataclass(frozen=True)
class Page:
    """A part of a list, as the service tells it; `cursor` asks for the next."""

    items: Sequence[Mapping[str, Any]]
    cursor: str | None = None


class Port(Protocol):
    """What a run asks of the service. Every call returns only when it is answered: a short outage loses nothing.

    Each raises PortRefused for what no repetition can change, and Stopped once the attempt is to stop.
    """

    def store_step(self, report: StepReport) -> StoredStep:
        """Store what is told of a step; the step as it stands now, which an earlier report may have decided."""

    def spawn_child(self, request: ChildRequest) -> str:
        """Submit a child; its task id, also where it was submitted before."""

    def read_steps(self, cursor: str | None) -> Page:
        """Stored steps, waits and children, in their order."""

    def read_children(self, cursor: str | None) -> Page:
        """Children, with their results."""


class PortRefused(Exception):
    """The service refuses the call for good."""

    def __init__(self, code: str, status: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.message = message


class Stopped(BaseException):
    """The attempt is to stop, so that the call did not end. No `except Exception` of a handler must take it for an error."""
