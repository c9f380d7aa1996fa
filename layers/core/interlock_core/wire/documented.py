"""Request bodies as the OpenAPI document shows them, where the edge reads them item by item and so declares less."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, field

from .children import ChildSubmit
from .claim import Claim
from .fields import Id as ModelId
from .reports import Beat, Complete, Completion, Giveback, Heartbeat, Release, StepReport
from .structs import Body, Id


class ReportError(Body, kw_only=True):
    """What a handler says of its failure. Text is cleaned and cut, never refused."""

    code: str
    message: str
    details: Any = None


class ReportProgress(Body, kw_only=True):
    """How far the handler is."""

    percent: Annotated[float, Meta(ge=0, le=100)] | None = None
    message: str | None = None


class ReportLine(Body, kw_only=True):
    """One log line; repeated `seq`s are dropped."""

    seq: Annotated[int, Meta(ge=1)]
    level: str = "info"
    message: str
    at: str | None = None
    fields: dict[str, Any] | None = None


class HeartbeatItem(Beat, kw_only=True):
    """One attempt of a heartbeat."""

    progress: ReportProgress | None = None
    logs: list[ReportLine] | None = None


class CompletionItem(Completion, kw_only=True):
    """One outcome."""

    error: ReportError | None = None


class HeartbeatBody(Heartbeat, kw_only=True):
    """POST /v1/attempts/heartbeat."""

    attempts: Annotated[list[HeartbeatItem], Meta(max_length=200)] = field(default_factory=list)


class CompleteBody(Complete, kw_only=True):
    """POST /v1/attempts/complete."""

    completions: Annotated[list[CompletionItem], Meta(max_length=200)]
    claim: Claim | None = None


class ReleaseBody(Release, kw_only=True):
    """POST /v1/attempts/release: `attempts`, or `workerId`, `instanceId` and `claimId` of a claim whose answer never came."""

    attempts: Annotated[list[Giveback], Meta(max_length=200)] | None = None


class HeartbeatOne(HeartbeatItem, kw_only=True):
    """The single form; the ids stand in the path and may be left out."""

    task_id: Id | None = None  # type: ignore[assignment]  # shown wider than it is read
    attempt_id: Id | None = None  # type: ignore[assignment]  # as above


class CompletionOne(CompletionItem, kw_only=True):
    """The single form; the ids stand in the path and may be left out."""

    task_id: Id | None = None  # type: ignore[assignment]  # shown wider than it is read
    attempt_id: Id | None = None  # type: ignore[assignment]  # as above


class StepOne(StepReport, kw_only=True):
    """What became of one step; the ids stand in the path and may be left out."""

    task_id: Id | None = None  # type: ignore[assignment]  # shown wider than it is read
    attempt_id: Id | None = None  # type: ignore[assignment]  # as above
    error: ReportError | None = None


class ChildOne(ChildSubmit):
    """A child; the ids stand in the path and may be left out."""

    task_id: ModelId | None = None  # type: ignore[assignment]  # shown wider than it is read
    attempt_id: ModelId | None = None  # type: ignore[assignment]  # as above


class GivebackOne(Giveback, kw_only=True):
    """The single form; the ids stand in the path and may be left out."""

    task_id: Id | None = None  # type: ignore[assignment]  # shown wider than it is read
    attempt_id: Id | None = None  # type: ignore[assignment]  # as above
