"""`interlock tasks list | get | journal`: reading tasks."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from interlock.cli.lists import All, Limit, read_pages, show_list
from interlock.cli.options import command, make_group
from interlock.cli.session import READERS, Session
from interlock.cli.show import event_lines, moment, show_task, task_row
from interlock.cli.values import read_instant, read_tags, read_type
from interlock.producer import task_path

group = make_group("Submit tasks, look at them, settle them.")

TaskId = Annotated[str, typer.Argument(metavar="ID", help="The task's id.")]

HEAD = ("ID", "STATUS", "TYPE", "CREATED", "ATTEMPTS", "DETAIL")


@command(group, "list")
def list_tasks(
    session: Session,
    status: Annotated[list[str] | None, typer.Option(metavar="STATUS", help="Only this status; may be repeated.")] = None,
    type: Annotated[str | None, typer.Option(metavar="TYPE", help="Only this type (group/name or group/name@version).")] = None,
    schema_version: Annotated[int | None, typer.Option(metavar="N", help="Only this version.")] = None,
    pool: Annotated[str | None, typer.Option(metavar="NAME", help="Only this pool.")] = None,
    tag: Annotated[str | None, typer.Option(metavar="K=V", help="Only with this tag.")] = None,
    idempotency_key: Annotated[str | None, typer.Option(metavar="K", help="Only with this key.")] = None,
    failure_code: Annotated[str | None, typer.Option(metavar="CODE", help="Only with this failure.")] = None,
    parent: Annotated[str | None, typer.Option(metavar="ID", help="Only children of this task.")] = None,
    rerun_of: Annotated[str | None, typer.Option(metavar="ID", help="Only reruns of this task.")] = None,
    schedule: Annotated[str | None, typer.Option(metavar="NAME", help="Only firings of this schedule.")] = None,
    schedule_owner: Annotated[str | None, typer.Option(metavar="ID", help="Only firings of this owner's schedules.")] = None,
    created_after: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339, or how long ago (2h).")] = None,
    created_before: Annotated[str | None, typer.Option(metavar="TIME", help="Likewise.")] = None,
    finished_after: Annotated[str | None, typer.Option(metavar="TIME", help="Likewise.")] = None,
    finished_before: Annotated[str | None, typer.Option(metavar="TIME", help="Likewise.")] = None,
    limit: Limit = 50,
    all: All = False,
    cursor: Annotated[str | None, typer.Option(metavar="C", help="Go on where a list ended.")] = None,
) -> None:
    """List tasks, newest first."""
    name, version = read_type(type, schema_version) if type is not None else (None, schema_version)
    tags = read_tags([tag]) if tag is not None else {}
    params: dict[str, Any] = {
        "status": status or None,
        "type": name,
        "schemaVersion": version,
        "pool": pool,
        "tag": next((f"{key}:{value}" for key, value in tags.items()), None),
        "idempotencyKey": idempotency_key,
        "failureCode": failure_code,
        "parentId": parent,
        "rerunOf": rerun_of,
        "scheduleName": schedule,
        "scheduleOwner": schedule_owner,
        "createdAfter": read_instant(created_after, "--created-after", past=True),
        "createdBefore": read_instant(created_before, "--created-before", past=True),
        "finishedAfter": read_instant(finished_after, "--finished-after", past=True),
        "finishedBefore": read_instant(finished_before, "--finished-before", past=True),
        "cursor": cursor,
    }
    show_list(session.out, session.client(*READERS), "/v1/tasks", None if all else limit, HEAD, task_row, params)


@command(group, "get")
def get(session: Session, task_id: TaskId) -> None:
    """Show one task: its state, why it is in it, its input and its result."""
    view = session.client(*READERS).request("GET", task_path(task_id))
    if session.out.json:
        session.out.document(view)
    else:
        show_task(session.out, view)


@command(group, "journal")
def journal(
    session: Session,
    task_id: TaskId,
    after: Annotated[int, typer.Option(metavar="SEQ", min=0, help="Only events behind this one.")] = 0,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Show at most so many. Default: all.")] = None,
) -> None:
    """Show what happened to a task, in order."""
    client, out = session.client(*READERS), session.out
    items: list[Any] = []
    for page in read_pages(client, f"{task_path(task_id)}/journal", {"after": after}, limit):
        if out.json:
            items += page["items"]
        else:
            for event in page["items"]:
                show_event(session, event)
    if out.json:
        out.document({"items": items})


def show_event(session: Session, event: Any, *, exact: bool = False) -> None:
    """One event, on one line or, for a log, several."""
    head = [str(event.get("seq", "")), moment(event.get("at"), exact=exact), str(event.get("kind", ""))]
    widths = [4, 12 if exact else 20, 16]
    first, *more = event_lines(event) or [""]
    session.out.table((), [[*head, first], *(["", "", "", line] for line in more)], widths=[*widths, 0])
