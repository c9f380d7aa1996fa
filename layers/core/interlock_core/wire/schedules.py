"""Bodies of schedules: of a producer's call, and in a worker's registration (protocol.md §8)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from .fields import Identifier, PathName, PositiveSeconds, SchemaVersion, Strict, TaskType, Tolerant
from .producer import Concurrency, Options, Retry, Submit, Trace

Overlap = Literal["allow", "skip", "cancel-previous"]
CatchUp = Literal["none", "last", "all"]


class Timetable(Options):
    """When to submit which task."""

    cron: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    time_zone: Annotated[str, Field(max_length=1000)] | None = None
    every_seconds: Annotated[PositiveSeconds, Field(ge=1)] | None = None
    type: TaskType
    schema_version: SchemaVersion
    input: Any
    overlap: Overlap = "allow"
    catch_up: CatchUp = "last"
    require_worker: Literal["registered", "online"] | None = None

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        if (self.cron is None) == (self.every_seconds is None):
            raise PydanticCustomError("one_rule", "needs either cron or everySeconds")
        if self.every_seconds is not None and self.time_zone is not None:
            raise PydanticCustomError("no_zone", "has a timeZone, which goes with cron only")
        return self

    @property
    def zone(self) -> str | None:
        """The time zone in which the cron expression is read; None without one."""
        return None if self.cron is None else "UTC" if self.time_zone is None else self.time_zone

    def template(self) -> dict[str, Any]:
        """What is said of the task that each firing submits, beyond its type and input, as JSON."""
        timing = {"cron", "time_zone", "every_seconds", "overlap", "catch_up"}
        return self.model_dump(by_alias=True, mode="json", exclude={"input", "name", "type", "schema_version", *timing})

    def submit(self) -> Submit:
        """What each firing submits."""
        names = set(Submit.model_fields) & self.model_fields_set
        return Submit.model_construct(names, **{name: getattr(self, name) for name in Submit.model_fields if hasattr(self, name)})


class Schedule(Timetable, Strict):
    """PUT /v1/schedules/{name}. The name may be said again here."""

    name: PathName | None = None


class _Retry(Retry, Tolerant):
    """As `Retry`, from a worker."""


class _Concurrency(Concurrency, Tolerant):
    """As `Concurrency`, from a worker."""


class _Trace(Trace, Tolerant):
    """As `Trace`, from a worker."""


class RegisteredSchedule(Timetable, Tolerant):
    """A schedule that a worker program brings with it."""

    name: PathName
    retry: _Retry | None = None
    concurrency: _Concurrency | None = None
    trace: _Trace | None = None


class Trigger(Strict):
    """POST /v1/schedules/{name}/trigger."""

    idempotency_key: Identifier | None = None
