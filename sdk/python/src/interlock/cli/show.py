"""Tasks and their events in words."""

from __future__ import annotations

import shlex
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
        str((view.get("attempt") or {}).get("number", 0)),
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
            ("attempt", describe_attempt(view)),
            ("attempt id", attempt.get("id")),
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


def describe_attempt(view: View) -> str:
    """The task's latest attempt of at most so many, in one line; its lease while it holds one."""
    attempt, most = view.get("attempt") or {}, (view.get("retry") or {}).get("maxAttempts")
    if not attempt:
        return f"none yet, at most {most}"
    words = [f"number {attempt.get('number')} of at most {most}"]
    words += [f"on {attempt['workerId']}"] if attempt.get("workerId") else []
    words += [str(attempt["effectSafety"])] if attempt.get("effectSafety") else []
    holds = view.get("status") == "running" and attempt.get("leaseExpiresAt")
    words += [f"lease until {moment(attempt['leaseExpiresAt'])}"] if holds else []
    return ", ".join(words)


def show_end(out: Output, view: View) -> None:
    """How a task ended, and its result."""
    out.lines(" ".join(part for part in (str(view.get("status")), failure_text(view.get("failure"))) if part))
    if view.get("status") == "succeeded":
        out.value(view.get("result"))
    if advice := how_to_resolve(view):
        out.notice(advice)


def how_to_resolve(view: View) -> str:
    """What a person can do about an unknown outcome, naming an open step; nothing about any other."""
    if view.get("status") != "outcome-unknown":
        return ""
    step = open_step(view.get("failure"))
    what = "what happened" if step is None else f"what happened in the step {step}"
    named = "" if step is None else f" --step {shlex.quote(step)}"
    return f"find out {what}, then: interlock tasks resolve {view.get('id')}{named} --as succeeded|failed|requeue --note TEXT"


def open_step(failure: Any) -> str | None:
    """The step that nobody knows about, as a failure names it; None where it names none."""
    details = failure.get("details") if isinstance(failure, Mapping) else None
    step = details.get("step") if isinstance(details, Mapping) else None
    return step if isinstance(step, str) else None


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
        return [f"{said('step', data.get('step'))}as {data.get('as')}: {data.get('note')}"]
    if kind == "step" and data.get("name"):
        return [step_text(data)]
    if kind == "suspended" and isinstance(data.get("wait"), Mapping):
        return [wait_text(data["wait"], data.get("wakeAt"))]
    if kind == "resumed" and data.get("by"):
        return [f"{data.get('name')}: by {data['by']}{', at once' if data.get('atOnce') else ''}"]
    rest = {name: value for name, value in data.items() if value is not None}
    return [", ".join(f"{name} {value if isinstance(value, str) else to_json(value)}" for name, value in rest.items())]


def said(word: str, value: Any) -> str:
    """The word and the value before what follows; nothing without a value."""
    return f"{word} {value} " if value else ""


def step_text(data: View) -> str:
    """What became of a step, or which child it is."""
    name = data["name"]
    if data.get("child"):
        return f"{name}: {type_of(data)}, child {data['child']}{', detached' if data.get('detached') else ''}"
    words = [str(data.get("status"))] + (["kept from the first task"] if data.get("kept") else [])
    words += [str(data["effectSafety"])] if data.get("effectSafety") else []
    words += [f"try {data['tries']}"] if (data.get("tries") or 0) > 1 else []
    words += ["may be tried again"] if data.get("status") == "failed" and data.get("final") is False else []
    words += [failure_text(data["error"])] if data.get("error") else []
    return f"{name}: {', '.join(words)}"


def wait_text(wait: View, until: Any) -> str:
    """What a run waits for."""
    words = [f"for the signal {wait['signal']}"] if wait.get("signal") else []
    words += [f"for {', '.join(map(str, wait['children']))}"] if wait.get("children") else []
    words += [f"until {moment(until)}"] if until else []
    return f"{wait.get('name')}: {', '.join(words)}"


def log_line(line: View) -> str:
    """A line of a log; its fields follow it."""
    fields = f" {to_json(line['fields'])}" if line.get("fields") else ""
    return f"{line.get('level', 'info')}: {line.get('message', '')}{fields}"
