"""Bodies of operator and admin calls (protocol.md §10)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .fields import Identifier, Instant, PathName, Strict

Glob = Identifier


class NewKey(Strict):
    """POST /v1/keys."""

    name: Identifier
    kind: Literal["task-producer", "task-worker", "operator", "metrics", "admin"]
    types: Annotated[list[Glob], Field(min_length=1, max_length=100)] | None = None
    pools: Annotated[list[Identifier], Field(min_length=1, max_length=100)] | None = None
    worker_ids: Annotated[list[PathName], Field(min_length=1, max_length=100)] | None = None
    may_schedule: bool | None = None
    expires_at: Instant | None = None
    project: Identifier | None = None
    idempotency_key: Identifier | None = None


class NewProject(Strict):
    """POST /v1/projects."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    require_worker: Literal["registered", "online"] | None = None
    idempotency_key: Identifier | None = None


class Nothing(Strict):
    """A call whose body, if any, is an empty object."""


class StreamTicket(Strict):
    """POST /v1/stream-tickets."""

    path: Annotated[str, Field(min_length=1, max_length=255)]


class Bulk(Strict):
    """POST /v1/tasks/bulk."""

    filter: dict[str, str | list[str] | int]
    action: Literal["cancel", "rerun"]
    dry_run: bool = False
    idempotency_key: Identifier


class ConcurrencyLimit(Strict):
    """PUT /v1/limits?key=."""

    limit: Annotated[int, Field(ge=0, le=1_000_000)]


class Rate(Strict):
    """PUT /v1/limits/rate: both, or null for no limit."""

    per_second: Annotated[float, Field(ge=0.001, le=1_000_000, allow_inf_nan=False)] | None
    burst: Annotated[int, Field(ge=1, le=1_000_000)] | None


class Rotate(Strict):
    """POST /v1/keys/{id}/rotate."""

    overlap_seconds: Annotated[float, Field(ge=0, le=31_536_000, allow_inf_nan=False)]
    idempotency_key: Identifier | None = None
