"""`interlock tasks list | get | journal`: reading tasks."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from interlock.cli.filters import filtered
from interlock.cli.lists import All, Limit, read_pages, show_list
from interlock.cli.session import READERS, Session
from interlock.cli.show import event_lines, moment, show_task, task_row
from interlock.reading import TaskFilter, filter_to_wire, task_path

TaskId = Annotated[str, typer.Argument(metavar="ID", help="The task's id.")]

HEAD = ("ID", "STATUS", "TYPE", "CREATED", "ATTEMPTS", "DETAIL")


@filtered
def list_tasks(
    session: Session,
    *,
    filter: dict[str, Any],
    limit: Limit = 50,
    all: All = False,
    cursor: Annotated[str | None, typer.Option(metavar="C", help="Go on where a list ended.")] = None,
) -> None:
    """List tasks, newest first."""
    params = {**filter_to_wire(cast("TaskFilter", filter)), "cursor": cursor}
    show_list(session.out, session.client(*READERS), "/v1/tasks", None if all else limit, HEAD, task_row, params)


def get(session: Session, task_id: TaskId) -> None:
    """Show one task: its state, why it is in it, its input and its result."""
    view = session.client(*READERS).request("GET", task_path(task_id))
    if session.out.json:
        session.out.document(view)
    else:
        show_task(session.out, view)


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
