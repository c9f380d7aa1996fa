"""`interlock tasks signal | steps | children`: durable runs from outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from interlock.cli.exits import CommandFailed, ExitCode
from interlock.cli.lists import All, Limit, show_list
from interlock.cli.plain import shorten, to_json
from interlock.cli.session import READERS, Session
from interlock.cli.show import failure_text, type_of
from interlock.cli.tasks import TaskId
from interlock.cli.values import read_json, splice
from interlock.errors import Unreachable
from interlock.reading import task_path
from interlock.submission import make_key

View = Mapping[str, Any]

STEPS = ("SEQ", "NAME", "KIND", "STATUS", "TRIES", "EFFECTS", "OUTPUT OR ERROR")
CHILDREN = ("NAME", "STATUS", "TYPE", "TASK", "RESULT OR FAILURE")


def signal(
    session: Session,
    task_id: TaskId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The signal's name, as the handler waits for it.")],
    payload: Annotated[
        str, typer.Option("--payload", metavar="JSON|@FILE|-", help="What the wait gives. Default: null.", show_default=False)
    ] = "null",
    signal_key: Annotated[
        str | None, typer.Option(metavar="K", help="The same key is one signal. Default: a key of its own.")
    ] = None,
) -> None:
    """Send a task a signal: the wait for it goes on, now or when the handler comes to it. Needs a producer key."""
    text = read_json(payload, "--payload")
    client = session.client("task-producer")
    key = signal_key or make_key()
    try:
        content = splice({"name": name, "signalKey": key}, "payload", text)
        view = client.request("POST", f"{task_path(task_id)}/signals", content=content)
    except Unreachable as error:
        advice = f"It may be stored or not: ask again with --signal-key {key}, which sends it once."
        raise CommandFailed(str(error), ExitCode.UNREACHABLE, next=advice) from None
    if session.out.json:
        session.out.document(view)
    else:
        session.out.lines(f"{name} is stored (event {view.get('seq')}); the task is {view.get('taskStatus')}")
    if view.get("duplicate"):
        session.out.notice("this had been sent before; nothing changed")


def steps(session: Session, task_id: TaskId, limit: Limit = 50, all: All = False) -> None:
    """Show the steps that a task has stored, its finished waits and its children, in order."""
    client = session.client(*READERS)
    show_list(session.out, client, f"{task_path(task_id)}/steps", None if all else limit, STEPS, step_row)


def children(session: Session, task_id: TaskId, limit: Limit = 50, all: All = False) -> None:
    """Show the tasks that a task has submitted, and what became of them."""
    client = session.client(*READERS)
    show_list(session.out, client, f"{task_path(task_id)}/children", None if all else limit, CHILDREN, child_row)


def step_row(view: View) -> list[str]:
    """The cells of a step."""
    status = str(view.get("status", "")) + ("" if view.get("final") else ", not final")
    safety = str(view.get("effectSafety") or "") + (", reconciles" if view.get("reconciles") else "")
    # A null output is a value: only the status says whether there is one.
    told = output_text(view) if view.get("status") == "succeeded" else failure_text(view.get("error"))
    cells = [view.get("seq"), view.get("name"), view.get("kind"), status, view.get("tries") or "", safety]
    return [*(str(cell if cell is not None else "") for cell in cells), shorten(told)]


def output_text(view: View) -> str:
    """What a step gave. A wait that time ended has no output, and nothing went wrong: a sleep ends so."""
    output = view.get("output")
    return "by time" if view.get("kind") == "wait" and output == {"timedOut": True} else to_json(output)


def child_row(view: View) -> list[str]:
    """The cells of a child."""
    told = to_json(view.get("result")) if view.get("status") == "succeeded" else failure_text(view.get("failure"))
    status = str(view.get("status", "")) + (", detached" if view.get("detached") else "")
    return [str(view.get("name", "")), status, type_of(view), str(view.get("taskId", "")), shorten(told)]
