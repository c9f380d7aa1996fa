"""Tasks and their journals in words."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.cli.show import describe_attempt, event_lines, how_to_resolve, task_row

CHILD = {"name": "kid", "child": "01a2", "type": "a/b", "schemaVersion": 1, "detached": False}
STEP = {"name": "pay", "status": "started", "final": False, "tries": 0, "effectSafety": "non-idempotent", "error": None}


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        ("step", STEP, "pay: started, non-idempotent"),
        ("step", STEP | {"status": "succeeded", "final": True, "tries": 1}, "pay: succeeded, non-idempotent"),
        (
            "step",
            STEP | {"status": "failed", "tries": 2, "effectSafety": "pure", "error": {"code": "Busy", "message": "later"}},
            "pay: failed, pure, try 2, may be tried again, Busy: later",
        ),
        ("step", {"name": "pay", "status": "succeeded", "final": True, "kept": True}, "pay: succeeded, kept from the first task"),
        ("step", CHILD, "kid: a/b@1, child 01a2"),
        ("step", CHILD | {"detached": True}, "kid: a/b@1, child 01a2, detached"),
        (
            "suspended",
            {"wait": {"name": "sleep", "signal": None, "children": None}, "wakeAt": "2026-11-30T00:58:12.5Z"},
            "sleep: until 2026-11-30 00:58:12Z",
        ),
        (
            "suspended",
            {"wait": {"name": "signal:go", "signal": "go", "children": None}, "wakeAt": None},
            "signal:go: for the signal go",
        ),
        ("suspended", {"wait": {"name": "gather", "signal": None, "children": ["a", "b"]}, "wakeAt": None}, "gather: for a, b"),
        ("resumed", {"name": "sleep", "by": "time"}, "sleep: by time"),
        ("resumed", {"name": "signal:go", "by": "signal", "atOnce": True}, "signal:go: by signal, at once"),
        ("resolved", {"as": "succeeded", "note": "seen", "step": None}, "as succeeded: seen"),
        ("resolved", {"as": "succeeded", "note": "seen", "step": "pay"}, "step pay as succeeded: seen"),
        ("to-come", {"name": "x", "nothing": None, "list": [1]}, "name x, list [1]"),
    ],
)
def test_an_event_of_a_run_is_told_in_words(kind: str, data: dict[str, Any], words: str) -> None:
    assert event_lines({"kind": kind, "data": data}) == [words]


def test_advice_for_an_unknown_outcome_names_the_open_step() -> None:
    task = {"id": "01a2", "status": "outcome-unknown", "failure": {"code": "LEASE_EXPIRED", "message": "ended", "details": None}}
    assert how_to_resolve(task) == (
        "find out what happened, then: interlock tasks resolve 01a2 --as succeeded|failed|requeue --note TEXT"
    )
    inside = task | {"failure": {"code": "LEASE_EXPIRED", "message": "ended", "details": {"step": "send it"}}}
    assert how_to_resolve(inside) == (
        "find out what happened in the step send it, then: "
        "interlock tasks resolve 01a2 --step 'send it' --as succeeded|failed|requeue --note TEXT"
    )
    assert how_to_resolve(inside | {"status": "failed"}) == ""


def test_the_number_of_the_latest_attempt_is_told() -> None:
    attempt = {"number": 3, "workerId": "shop", "effectSafety": "pure", "leaseExpiresAt": "2026-11-30T00:58:12.5Z"}
    view = {"attempt": attempt, "retry": {"maxAttempts": 5}}
    leased = "number 3 of at most 5, on shop, pure, lease until 2026-11-30 00:58:12Z"
    assert describe_attempt(view | {"status": "running"}) == leased
    assert describe_attempt(view | {"status": "queued"}) == "number 3 of at most 5, on shop, pure"  # its lease is over
    assert describe_attempt(view | {"attempt": None}) == "none yet, at most 5"
    assert task_row({"attempt": attempt, "attempts": 2})[4] == "3"
    assert task_row({"attempt": None, "attempts": 0})[4] == "0"
