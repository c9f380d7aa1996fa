"""`interlock schedules …`: what the service submits by itself, and when."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any

import typer

from interlock.cli.completion import offer_types
from interlock.cli.exits import CommandFailed, ExitCode
from interlock.cli.lists import All, Limit, show_list
from interlock.cli.output import Output
from interlock.cli.plain import shorten, to_json
from interlock.cli.session import READERS, Session
from interlock.cli.show import moment, type_of
from interlock.cli.submit import RequireWorker, read_concurrency, tell_submitted
from interlock.cli.values import bad, read_duration, read_json, read_tags, read_type, splice
from interlock.errors import Unreachable
from interlock.reading import path_of
from interlock.retry import Retry
from interlock.schedules import make_schedule
from interlock.submission import make_key

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]
Owner = Annotated[str | None, typer.Option(metavar="ID", help="The worker that brought it. Default: made through the API.")]


class Overlap(str, Enum):
    """What happens while an earlier task has not ended."""

    allow = "allow"
    skip = "skip"
    cancel_previous = "cancel-previous"


class CatchUp(str, Enum):
    """Which of the instants that passed during downtime are made up for."""

    none = "none"
    last = "last"
    all = "all"


def list_schedules(session: Session, owner: Owner = None, limit: Limit = 50, all: All = False) -> None:
    """Show the schedules by owner and name; with --owner, those of one worker."""
    head = ("NAME", "OWNER", "RULE", "TYPE", "NEXT", "LAST", "STATE")
    params = {"owner": owner} if owner else None
    show_list(session.out, session.client(*READERS), "/v1/schedules", None if all else limit, head, schedule_row, params)


def schedule_row(view: Mapping[str, Any]) -> list[str]:
    """The cells of a schedule in a list."""
    last = view.get("lastFiring") or {}
    return [
        str(view.get("name")), str(view.get("owner") or ""), rule_text(view), type_of(view), moment(view.get("nextDueAt")),
        f"{moment(last.get('dueAt'))} {last.get('outcome')}" if last else "", shorten(state_text(view)),
    ]  # fmt: skip


def rule_text(view: Mapping[str, Any]) -> str:
    """When it is due, as it was said."""
    if view.get("cron"):
        return f"{view['cron']} ({view.get('timeZone')})"
    seconds = f"{view.get('everySeconds') or 0:f}".rstrip("0").rstrip(".")
    return f"every {seconds} s"


def state_text(view: Mapping[str, Any]) -> str:
    """Whether it fires, and if not, why."""
    if view.get("error"):
        return f"error: {view['error'].get('message')}"
    return "paused" if view.get("paused") else "active"


def show(session: Session, name: Name, owner: Owner = None) -> None:
    """Show one schedule: its rule, its next five firings, its last one."""
    view = session.client(*READERS).request("GET", path_of("schedules", name), params={"owner": owner})
    tell(session, view)


def tell(session: Session, view: Mapping[str, Any]) -> None:
    """The schedule, and that nothing changed, if so."""
    if session.out.json:
        session.out.document(view)
    else:
        show_schedule(session.out, view)
    if view.get("duplicate"):
        session.out.notice("it was so before; nothing changed")


def show_schedule(out: Output, view: Mapping[str, Any]) -> None:
    """Everything about one schedule."""
    last = view.get("lastFiring") or {}
    concurrency = view.get("concurrency") or {}
    out.facts(
        [
            ("schedule", view.get("name")),
            ("owner", view.get("owner")),
            ("state", state_text(view)),
            ("rule", rule_text(view)),
            ("type", type_of(view)),
            ("pool", view.get("pool")),
            ("priority", view.get("priority") or None),
            ("overlap", view.get("overlap")),
            ("catch-up", view.get("catchUp")),
            ("concurrency", f"{concurrency.get('key')} (at most {concurrency.get('limit')})" if concurrency else None),
            ("tags", ", ".join(f"{key}={value}" for key, value in (view.get("tags") or {}).items())),
            ("if resumed" if view.get("paused") else "next", "\n".join(map(moment, view.get("nextFirings") or ()))),
            ("last", f"{moment(last.get('dueAt'))} {last.get('outcome')} {last.get('taskId') or ''}".strip() if last else None),
            ("fired", f"{view.get('fired', 0)}, {view.get('skipped', 0)} skipped, {view.get('missed', 0)} missed"),
            ("input", shorten(to_json(view.get("input")))),
        ]
    )


def put(
    session: Session,
    name: Name,
    type: Annotated[str, typer.Argument(metavar="TYPE", help="group/name, or group/name@version.", autocompletion=offer_types)],
    cron: Annotated[str | None, typer.Option(metavar="'M H D M W'", help="Five fields: minute hour day month weekday.")] = None,
    time_zone: Annotated[str | None, typer.Option(metavar="ZONE", help="Of --cron, such as Europe/Berlin. Default: UTC.")] = None,
    every: Annotated[str | None, typer.Option(metavar="S", help="Instead of --cron: every so often (90, 15m, 2h).")] = None,
    input: Annotated[
        str, typer.Option("--input", "-i", metavar="JSON|@FILE|-", help="The input: JSON, @file, or - for standard input.")
    ] = "null",
    owner: Owner = None,
    overlap: Annotated[Overlap | None, typer.Option(help="While an earlier task has not ended. Default: allow.")] = None,
    catch_up: Annotated[CatchUp | None, typer.Option(help="What passed during downtime. Default: last.")] = None,
    schema_version: Annotated[
        int | None, typer.Option("--schema-version", metavar="N", help="Version of the type. Default: 1.")
    ] = None,
    pool: Annotated[str | None, typer.Option(metavar="NAME", help="The pool of workers. Default: default.")] = None,
    priority: Annotated[int | None, typer.Option(min=-100, max=100, help="Higher first.")] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A tag; may be repeated.")] = None,
    require_worker: Annotated[RequireWorker | None, typer.Option(help="Leave out a firing if no such worker exists.")] = None,
    attempt_timeout: Annotated[str | None, typer.Option(metavar="S", help="The longest that one attempt may run.")] = None,
    start_deadline: Annotated[str | None, typer.Option(metavar="S", help="Fail a task if it has not started by then.")] = None,
    lease: Annotated[str | None, typer.Option(metavar="S", help="The length of a lease.")] = None,
    max_attempts: Annotated[int | None, typer.Option(metavar="N", min=1, help="How often a task may be tried.")] = None,
    concurrency: Annotated[str | None, typer.Option(metavar="KEY=N", help="At most N tasks hold KEY at once.")] = None,
) -> None:
    """Make or change a schedule; the same again changes nothing. What is due by an old rule is fired first."""
    if (cron is None) == (every is None):
        bad("--cron", "give either --cron or --every")
    kind, version = read_type(type, schema_version)
    body = make_schedule(
        kind,
        1 if version is None else version,
        cron=cron,
        time_zone=time_zone,
        every=read_duration(every, "--every"),
        overlap=overlap.value if overlap else None,
        catch_up=catch_up.value if catch_up else None,
        pool=pool,
        priority=priority,
        tags=read_tags(tag) if tag else None,
        require_worker=require_worker.value if require_worker else None,
        timeout=read_duration(attempt_timeout, "--attempt-timeout"),
        start_deadline=read_duration(start_deadline, "--start-deadline"),
        lease=read_duration(lease, "--lease"),
        retry=Retry(max_attempts=max_attempts) if max_attempts is not None else None,
        concurrency=read_concurrency(concurrency),
    )
    del body["input"]
    content = splice(body, "input", read_json(input, "--input"))
    client = session.client(*READERS)
    tell(session, client.request("PUT", path_of("schedules", name), params={"owner": owner}, content=content))


def delete(session: Session, name: Name, owner: Owner = None) -> None:
    """Take a schedule away; tasks that it made go on."""
    answer = session.client(*READERS).request("DELETE", path_of("schedules", name), params={"owner": owner})
    if session.out.json:
        session.out.document(answer)
    elif not answer.get("duplicate"):
        session.out.lines(f"{name} is gone")
    if answer.get("duplicate"):
        session.out.notice(f"there was no {name}" + ("" if owner else "; one that a worker brought is named with --owner"))


def pause(session: Session, name: Name, owner: Owner = None) -> None:
    """Let it fire no more until it is resumed."""
    tell(session, session.client(*READERS).request("POST", path_of("schedules", name, "pause"), params={"owner": owner}, json={}))


def resume(session: Session, name: Name, owner: Owner = None) -> None:
    """Let it fire again, from its next instant on; what was due meanwhile is not made up for."""
    tell(
        session, session.client(*READERS).request("POST", path_of("schedules", name, "resume"), params={"owner": owner}, json={})
    )


def trigger(
    session: Session,
    name: Name,
    owner: Owner = None,
    idempotency_key: Annotated[str | None, typer.Option(metavar="K", help="The same key makes one task.")] = None,
) -> None:
    """Make a task of it at once, paused or not. Prints its id."""
    key = idempotency_key or make_key()
    path = path_of("schedules", name, "trigger")
    try:
        view = session.client(*READERS).request("POST", path, params={"owner": owner}, json={"idempotencyKey": key})
    except Unreachable as error:
        advice = f"It may be made or not: ask again with --idempotency-key {key}, which makes it once."
        raise CommandFailed(str(error), ExitCode.UNREACHABLE, next=advice) from None
    tell_submitted(session, view, wait=False)
