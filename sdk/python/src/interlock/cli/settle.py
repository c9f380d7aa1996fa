"""`interlock tasks cancel | rerun | resolve`: a person's word on a task."""

from __future__ import annotations

import shlex
from enum import Enum
from typing import Annotated, Any

import typer

from interlock.cli.exits import CommandFailed, ExitCode
from interlock.cli.session import READERS, Session
from interlock.cli.show import View, failure_text, moment, open_step, state_text, type_of
from interlock.cli.tasks import TaskId
from interlock.cli.values import bad, read_json, splice
from interlock.errors import Unreachable
from interlock.reading import task_path
from interlock.submission import make_key


class Resolution(str, Enum):
    """What a person found out about an unknown outcome."""

    succeeded = "succeeded"
    failed = "failed"
    requeue = "requeue"
    reconcile = "reconcile"


def cancel(
    session: Session,
    task_id: TaskId,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why; it stands in the journal.")] = None,
) -> None:
    """Cancel a task: at once if it is queued; a running one is asked to stop."""
    client = session.client(*READERS)
    view = client.request("POST", f"{task_path(task_id)}/cancel", json={} if reason is None else {"reason": reason})
    show_changed(session, view)
    if view.get("status") == "running":
        session.out.notice(f"its worker is told to stop: interlock tasks watch {task_id}")


def rerun(
    session: Session,
    task_id: TaskId,
    input: Annotated[
        str | None, typer.Option("--input", "-i", metavar="JSON|@FILE|-", help="Another input. Default: that of the first task.")
    ] = None,
    from_step: Annotated[
        str | None, typer.Option(metavar="NAME", help="Keep what was stored before this step, and do the rest anew.")
    ] = None,
    keep_effect_keys: Annotated[
        bool, typer.Option("--keep-effect-keys", help="Its handlers get the first task's effect keys: no effect is repeated.")
    ] = False,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="K", help="The same key makes one rerun. Default: a key of its own.")
    ] = None,
) -> None:
    """Make a new task of a settled one; its id is printed first. Follow it with `tasks watch`."""
    text = None if input is None else read_json(input, "--input")
    client = session.client(*READERS)
    key = idempotency_key or make_key()
    fields: dict[str, Any] = {"idempotencyKey": key}
    if from_step is not None:
        fields["fromStep"] = from_step
    if keep_effect_keys:
        fields["keepEffectKeys"] = True
    try:
        view = client.request("POST", f"{task_path(task_id)}/rerun", content=splice(fields, "input", text))
    except Unreachable as error:
        advice = f"It may be made or not: ask again with --idempotency-key {key}, which makes it once."
        raise CommandFailed(str(error), ExitCode.UNREACHABLE, next=advice) from None
    show_changed(session, view)


def resolve(
    session: Session,
    task_id: TaskId,
    resolution: Annotated[
        Resolution, typer.Option("--as", help="What really happened; requeue runs it again, reconcile asks its hook.")
    ],
    note: Annotated[str, typer.Option(metavar="TEXT", help="How you know; it stands in the journal.")],
    attempt: Annotated[
        str | None, typer.Option(metavar="ID", help="The attempt that is unknown. Default: the current one, which is shown.")
    ] = None,
    step: Annotated[str | None, typer.Option(metavar="NAME", help="Settle this step alone; the task goes on.")] = None,
    result: Annotated[
        str | None, typer.Option(metavar="JSON|@FILE|-", help="With --as succeeded: the result, or the step's output.")
    ] = None,
) -> None:
    """Settle a task whose outcome is unknown, or run it again. Needs an operator key."""
    if result is not None and resolution is not Resolution.succeeded:
        bad("--result", "it is for --as succeeded")
    if step is not None and resolution is Resolution.reconcile:
        bad("--step", "--as reconcile asks the hook of every open step; leave --step out")
    text = None if result is None else read_json(result, "--result")
    client = session.client("operator")
    if attempt is None:
        attempt = find_attempt(session, client.request("GET", task_path(task_id)))
    fields: dict[str, Any] = {"as": resolution.value, "attemptId": attempt, "note": note}
    if step is not None:
        fields["step"] = step
    view = client.request("POST", f"{task_path(task_id)}/resolve", content=splice(fields, "result", text))
    show_changed(session, view)


def find_attempt(session: Session, view: View) -> str:
    """The task's latest attempt, shown before anything is decided about it."""
    attempt = view.get("attempt") or {}
    if not attempt.get("id"):
        raise CommandFailed(
            f"task {view.get('id')} is {view.get('status')} and was never started: there is nothing to resolve", ExitCode.CONFLICT
        )
    notice = session.out.notice
    notice(": ".join(part for part in (f"{type_of(view)} is {view.get('status')}", failure_text(view.get("failure"))) if part))
    where = f"on {attempt.get('workerId')}, {attempt.get('effectSafety')}, started {moment(attempt.get('startedAt'))}"
    notice(f"attempt {attempt['id']} (number {attempt.get('number')}) {where}")
    if step := open_step(view.get("failure")):
        notice(f"the open step is {step}: --step {shlex.quote(step)} settles it alone; without --step the whole task is settled")
    return str(attempt["id"])


def show_changed(session: Session, view: View) -> None:
    """The task after the change."""
    detail = state_text(view)
    line = f"{view.get('id')} {type_of(view)} {view.get('status')}{f' ({detail})' if detail else ''}"
    with session.out.done(line):
        if session.out.json:
            session.out.document(view)
        else:
            session.out.lines(line)
    if view.get("duplicate"):
        session.out.notice("this had been done before; nothing changed")
