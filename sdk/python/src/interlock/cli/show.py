"""Tasks and their events in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from interlock.cli.output import Output
from interlock.cli.plain import shorten, to_json
from interlock.tasks import Failure, read_time

View = Mapping[str, Any]


def moment(value: Any, *, exact: bool = False) -> str:
    """An instant of the protocol as people read it, in UTC; to the millisecond if `exact`."""
    at = read_time(value)
    if at is None:
        return ""
    return f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}" if exact else f"{at:%Y-%m-%d %H:%M:%S}Z"


def type_of(view: View) -> str:
    """`group/name@version`."""
    return f"{view.get('type', '')}@{view.get('schemaVersion', '')}"


def failure_text(failure: Any) -> str:
    """A failure as `CODE: message`, and what the last attempt failed of."""
    found = Failure.read(failure)
    return str(found) if found is not None else ""


def progress_text(progress: Any) -> str:
    """Progress as `50 % working`."""
    if not isinstance(progress, Mapping):
        return ""
    percent = progress.get("percent")
    parts = ["" if percent is None else f"{percent:g} %", str(progress.get("message") or "")]
    return " ".join(part for part in parts if part)


def state_text(view: View) -> str:
    """What there is to say about a task's state beside the state itself: why it waits, how far it is, how it ended."""
    if view.get("failure"):
        return failure_text(view["failure"])
    waiting = view.get("waiting")
    if isinstance(waiting, Mapping):
        return ": ".join(str(waiting[part]) for part in ("reason", "detail") if waiting.get(part))
    if view.get("status") != "running":
        return ""
    attempt = view.get("attempt") or {}
    words = [progress_text(view.get("progress")), f"on {attempt.get('workerId')}" if attempt.get("workerId") else ""]
    words += ["cancel requested"] if view.get("cancelRequested") else []
    return ", ".join(word for word in words if word)


def task_row(view: View) -> list[str]:
    """The cells of a task in a list."""
    return [
        str(view.get("id", "")),
        str(view.get("status", "")),
        type_of(view),
        moment(view.get("createdAt")),
        str(view.get("attempts", "")),
        shorten(state_text(view)),
    ]


def show_task(out: Output, view: View) -> None:
    """Everything about one task."""
    attempt = view.get("attempt") or {}
    waiting = view.get("waiting") or {}
    concurrency = view.get("concurrency") or {}
    out.facts(
        [
            ("id", view.get("id")),
            ("type", type_of(view)),
            ("status", view.get("status")),
            ("failure", failure_text(view.get("failure"))),
            ("details", describe_value((view.get("failure") or {}).get("details"))),
            ("waiting", ": ".join(str(waiting[part]) for part in ("reason", "detail") if waiting.get(part))),
            ("", waiting.get("next")),
            ("to do", how_to_resolve(view)),
            ("progress", progress_text(view.get("progress"))),
            ("cancel", "requested" if view.get("cancelRequested") else None),
            ("attempt", describe_attempt(attempt) if attempt else None),
            ("attempt id", attempt.get("id")),
            ("attempts", f"{view.get('attempts')} of {(view.get('retry') or {}).get('maxAttempts')} used"),
            ("pool", view.get("pool")),
            ("priority", view.get("priority") or None),
            ("concurrency", f"{concurrency.get('key')}, at most {concurrency.get('limit')}" if concurrency else None),
            ("key", view.get("idempotencyKey")),
            ("tags", ", ".join(f"{key}={value}" for key, value in (view.get("tags") or {}).items())),
            ("parent", view.get("parentId")),
            ("rerun of", view.get("rerunOf")),
            ("schedule", " ".join(str(view[name]) for name in ("scheduleOwner", "scheduleName") if view.get(name))),
            ("created", moment(view.get("createdAt"))),
            ("due", moment(view.get("dueAt")) if not view.get("startedAt") else None),
            ("started", moment(view.get("startedAt"))),
            ("finished", moment(view.get("finishedAt"))),
        ]
    )
    for name in ("input", "result"):
        if name in view and not (name == "result" and view.get("status") != "succeeded"):
            out.lines(name)
            out.value(view[name], "  ")


def describe_attempt(attempt: View) -> str:
    """An attempt in one line."""
    words = [f"number {attempt.get('number')}"]
    words += [f"on {attempt['workerId']}"] if attempt.get("workerId") else []
    words += [str(attempt["effectSafety"])] if attempt.get("effectSafety") else []
    words += [f"lease until {moment(attempt['leaseExpiresAt'])}"] if attempt.get("leaseExpiresAt") else []
    return ", ".join(words)


def show_end(out: Output, view: View) -> None:
    """How a task ended, and its result."""
    out.lines(" ".join(part for part in (str(view.get("status")), failure_text(view.get("failure"))) if part))
    if view.get("status") == "succeeded":
        out.value(view.get("result"))
    if advice := how_to_resolve(view):
        out.notice(advice)


def how_to_resolve(view: View) -> str:
    """What a person can do about an unknown outcome; nothing about any other."""
    if view.get("status") != "outcome-unknown":
        return ""
    return f"find out what happened, then: interlock tasks resolve {view.get('id')} --as succeeded|failed|requeue --note TEXT"


def describe_value(value: Any) -> str:
    """A JSON value on one line; nothing for null."""
    return "" if value is None else to_json(value)


def event_lines(event: View) -> list[str]:
    """What happened, in words: one line, or one for each line of a log."""
    kind, data = str(event.get("kind", "")), event.get("data")
    data = data if isinstance(data, Mapping) else {}
    if kind == "claimed":
        return [f"attempt {data.get('number')} on {data.get('workerId')}, {data.get('effectSafety')}"]
    if kind == "progress":
        return [progress_text(data)]
    if kind == "log":
        lines = data.get("lines") if isinstance(data.get("lines"), list) else []
        cut = ["…[truncated]"] if data.get("truncated") else []
        return [log_line(line) for line in lines or [] if isinstance(line, Mapping)] + cut
    if kind in ("failed", "cancelled", "outcome-unknown") and data.get("code"):
        return [failure_text(data)]
    if kind == "retry-scheduled":
        return [f"{failure_text(data.get('error'))}; due {moment(data.get('dueAt'))}"]
    if kind == "resolved":
        return [f"as {data.get('as')}: {data.get('note')}"]
    rest = {name: value for name, value in data.items() if value is not None}
    return [", ".join(f"{name} {value if isinstance(value, str) else to_json(value)}" for name, value in rest.items())]


def log_line(line: View) -> str:
    """A line of a log; its fields follow it."""
    fields = f" {to_json(line['fields'])}" if line.get("fields") else ""
    return f"{line.get('level', 'info')}: {line.get('message', '')}{fields}"
