"""One task to be submitted, and its form on the wire."""

from __future__ import annotations

import reprlib
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from interlock.errors import NotJson
from interlock.json_text import encode
from interlock.retry import Retry
from interlock.tasks import write_time

if TYPE_CHECKING:
    from interlock.contract import TaskContract

BATCH_TASKS = 1000
BATCH_BYTES = 5 * 1024 * 1024
"""What the service takes in one request."""


class SubmitOptions(TypedDict, total=False):
    """The options of a submission. Durations are seconds or timedeltas.

    `delay` or `run_at` say when it is due; `timeout` is the longest that one attempt may run, `lease` how long a silent
    worker holds it, `start_deadline` the longest it may wait for its first start. `priority` is -100 to 100, higher
    first. `concurrency` is (key, limit). `require_worker` refuses what nobody serves. `trace` is a traceparent or a
    mapping with it.
    """

    idempotency_key: str | None
    tags: Mapping[str, str] | None
    delay: float | timedelta | None
    run_at: datetime | str | None
    priority: int | None
    pool: str | None
    retry: Retry | None
    timeout: float | timedelta | None
    lease: float | timedelta | None
    start_deadline: float | timedelta | None
    concurrency: tuple[str, int] | None
    require_worker: Literal["registered", "online"] | None
    trace: Mapping[str, str] | str | None


@dataclass(frozen=True)
class Submission:
    """A task to be submitted; the fields are those of `TaskProducer.submit`. Durations are seconds or timedeltas."""

    type: str
    schema_version: int = 1
    input: Any = None
    idempotency_key: str | None = None
    tags: Mapping[str, str] | None = None
    delay: float | timedelta | None = None
    run_at: datetime | str | None = None
    priority: int | None = None
    pool: str | None = None
    retry: Retry | None = None
    timeout: float | timedelta | None = None
    lease: float | timedelta | None = None
    start_deadline: float | timedelta | None = None
    concurrency: tuple[str, int] | None = None
    require_worker: Literal["registered", "online"] | None = None
    trace: Mapping[str, str] | str | None = None
    contract: TaskContract[Any, Any] | None = field(default=None, repr=False, compare=False)

    def to_wire(self) -> dict[str, Any]:
        """The request's fields. A submission without a key gets one, so that repeating the request is safe."""
        if type(self.schema_version) is not int:
            given = reprlib.repr(self.schema_version)
            raise TypeError(f"the schema version is a whole number, got {given}: {self.type!r}, 1, input is their order")
        trace = {"traceparent": self.trace} if isinstance(self.trace, str) else self.trace
        fields: dict[str, Any] = {
            "type": self.type,
            "schemaVersion": self.schema_version,
            "input": self.input,
            "idempotencyKey": make_key() if self.idempotency_key is None else self.idempotency_key,
        }
        optional: dict[str, Any] = {
            "tags": dict(self.tags) if self.tags is not None else None,
            "delaySeconds": to_seconds(self.delay),
            "runAt": write_time(self.run_at) if self.run_at is not None else None,
            "priority": self.priority,
            "pool": self.pool,
            "retry": self.retry.to_wire() if self.retry is not None else None,
            "timeoutSeconds": to_seconds(self.timeout),
            "leaseSeconds": to_seconds(self.lease),
            "startDeadlineSeconds": to_seconds(self.start_deadline),
            "concurrency": ({"key": self.concurrency[0], "limit": self.concurrency[1]} if self.concurrency is not None else None),
            "requireWorker": self.require_worker,
            "trace": dict(trace) if trace is not None else None,
        }
        fields.update((name, value) for name, value in optional.items() if value is not None)
        return fields

    def encode(self) -> bytes:
        """The request's body. Raises NotJson, naming the place as the user sees it (`/input/…`)."""
        return encode(self.to_wire(), f"the submission of {self.type}")


class RerunOptions(TypedDict, total=False):
    """The options of a rerun.

    With `from_step` it keeps what was stored before that step began, and does the rest anew. `input` is another input; absent,
    the first task's. `keep_effect_keys` lets its handlers use the effect keys of the first task, so that an effect that has
    happened is not repeated. The same `idempotency_key` makes one rerun.
    """

    from_step: str | None
    input: Any
    keep_effect_keys: bool
    idempotency_key: str | None


def make_rerun(
    *, from_step: str | None = None, input: Any = ..., keep_effect_keys: bool = False, idempotency_key: str | None = None
) -> dict[str, Any]:
    """The request of a rerun; it gets a key, so that repeating it is safe. The options are those of RerunOptions."""
    body: dict[str, Any] = {"idempotencyKey": make_key() if idempotency_key is None else idempotency_key}
    if from_step is not None:
        body["fromStep"] = from_step
    if input is not ...:
        body["input"] = input
    if keep_effect_keys:
        body["keepEffectKeys"] = True
    return body


def to_seconds(value: float | timedelta | None) -> float | None:
    """A duration as seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def make_key() -> str:
    """A key for one call."""
    return f"auto-{uuid.uuid4()}"


def pack(submissions: Iterable[Submission]) -> Iterator[tuple[int, bytes]]:
    """Request bodies of at most 1,000 tasks and 5 MiB, in order, each with its number of tasks. Each task is encoded once."""
    items: list[bytes] = []
    size = 0
    for place, submission in enumerate(submissions):
        try:
            item = submission.encode()
        except NotJson as error:
            raise NotJson(f"task {place}: {error}", f"/tasks/{place}{error.pointer}") from None
        if items and (len(items) == BATCH_TASKS or size + len(item) + 64 > BATCH_BYTES):
            yield len(items), wrap(items)
            items, size = [], 0
        items.append(item)
        size += len(item) + 1
    if items:
        yield len(items), wrap(items)


def wrap(items: list[bytes]) -> bytes:
    """The body of a batch."""
    return b'{"tasks":[' + b",".join(items) + b"]}"
