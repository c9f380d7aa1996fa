"""Request bodies as the OpenAPI document shows them, where the edge reads them item by item and so declares less."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from .children import ChildSubmit
from .claim import Claim
from .fields import Id, Tolerant
from .reports import Beat, Complete, Completion, Giveback, Heartbeat, Release, StepReport


class ReportError(Tolerant):
    """What a handler says of its failure. Text is cleaned and cut, never refused."""

    code: str
    message: str
    details: Any = None


class ReportProgress(Tolerant):
    """How far the handler is."""

    percent: Annotated[float, Field(ge=0, le=100)] | None = None
    message: str | None = None


class ReportLine(Tolerant):
    """One log line; repeated `seq`s are dropped."""

    seq: Annotated[int, Field(ge=1)]
    level: str = "info"
    message: str
    at: str | None = None
    fields: dict[str, Any] | None = None


class HeartbeatItem(Beat):
    """One attempt of a heartbeat."""

    progress: ReportProgress | None = None
    logs: list[ReportLine] | None = None


class CompletionItem(Completion):
    """One outcome."""

    error: ReportError | None = None


class HeartbeatBody(Heartbeat):
    """POST /v1/attempts/heartbeat."""

    attempts: list[HeartbeatItem] = Field(default_factory=list, max_length=200)


class CompleteBody(Complete):
    """POST /v1/attempts/complete."""

    completions: Annotated[list[CompletionItem], Field(max_length=200)]
    claim: Claim | None = None


class ReleaseBody(Release):
    """POST /v1/attempts/release: `attempts`, or `workerId`, `instanceId` and `claimId` of a claim whose answer never came."""

    attempts: Annotated[list[Giveback], Field(max_length=200)] | None = None


class HeartbeatOne(HeartbeatItem):
    """The single form; the ids stand in the path and may be left out."""

    task_id: Id | None = None  # type: ignore[assignment]  # shown wider than it is read
    attempt_id: Id | None = None  # type: ignore[assignment]  # as above


class CompletionOne(CompletionItem):
    """The single form; the ids stand in the path and may be left out."""

    task_id: Id | None = None  # type: ignore[assignment]  # shown wider than it is read
    attempt_id: Id | None = None  # type: ignore[assignment]  # as above


class StepOne(StepReport):
    """What became of one step; the ids stand in the path and may be left out."""

    task_id: Id | None = None  # type: ignore[assignment]  # shown wider than it is read
    attempt_id: Id | None = None  # type: ignore[assignment]  # as above
    error: ReportError | None = None


class ChildOne(ChildSubmit):
    """A child; the ids stand in the path and may be left out."""

    task_id: Id | None = None  # type: ignore[assignment]  # shown wider than it is read
    attempt_id: Id | None = None  # type: ignore[assignment]  # as above


class GivebackOne(Giveback):
    """The single form; the ids stand in the path and may be left out."""

    task_id: Id | None = None  # type: ignore[assignment]  # shown wider than it is read
    attempt_id: Id | None = None  # type: ignore[assignment]  # as above
