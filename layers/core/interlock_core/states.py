"""The states of a task and what moves it between them, as data (protocol.md §6). The diagram of the docs is made from this."""

from __future__ import annotations

from typing import Final

QUEUED: Final = "queued"
RUNNING: Final = "running"
WAITING: Final = "waiting"
UNKNOWN: Final = "outcome-unknown"
SUCCEEDED: Final = "succeeded"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"

STATUSES = (QUEUED, RUNNING, WAITING, UNKNOWN, SUCCEEDED, FAILED, CANCELLED)
SETTLED = (SUCCEEDED, FAILED, CANCELLED)
ENDS = (*SETTLED, UNKNOWN)  # what ends a wait: settled, or unsettled and known to be unknown

# (event, from) → every status it may lead to
TRANSITIONS: dict[tuple[str, str], tuple[str, ...]] = {
    ("claim", QUEUED): (RUNNING,),
    ("late report", QUEUED): (RUNNING,),
    ("late report", UNKNOWN): (RUNNING,),
    ("succeeded", RUNNING): (SUCCEEDED, FAILED),
    ("failed", RUNNING): (FAILED,),
    ("retryable", RUNNING): (QUEUED, FAILED, CANCELLED, UNKNOWN),
    ("unknown", RUNNING): (UNKNOWN,),
    ("suspended", RUNNING): (WAITING, QUEUED, FAILED, CANCELLED, UNKNOWN),
    ("cancelled", RUNNING): (CANCELLED, QUEUED, FAILED, UNKNOWN),
    ("release", RUNNING): (QUEUED, CANCELLED, UNKNOWN, FAILED),
    ("lease expiry", RUNNING): (QUEUED, FAILED, CANCELLED, UNKNOWN),
    ("cancel", QUEUED): (CANCELLED,),
    ("cancel", WAITING): (CANCELLED,),
    ("cancel", RUNNING): (RUNNING,),
    ("start deadline", QUEUED): (FAILED,),
    ("worker wait limit", QUEUED): (FAILED, UNKNOWN),
    ("time", WAITING): (QUEUED,),
    ("signal", WAITING): (QUEUED,),
    ("last child", WAITING): (QUEUED,),
    ("resolve", UNKNOWN): (SUCCEEDED, FAILED, QUEUED),
    ("resolve a step", UNKNOWN): (QUEUED, UNKNOWN),
}
