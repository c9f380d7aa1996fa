"""`interlock tasks bulk cancel | rerun`: one action on every task of a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from interlock.cli.ask import confirm
from interlock.cli.exits import CommandFailed, ExitCode
from interlock.cli.filters import filtered
from interlock.cli.session import Session
from interlock.errors import Unreachable
from interlock.submission import make_key

if TYPE_CHECKING:
    from interlock.fleet import BulkDone
    from interlock.reading import TaskFilter

LATER = ("interlock.operator",)

LONGEST = 300.0
"""Seconds that ten thousand tasks may take."""

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count them.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Everything = Annotated[bool, typer.Option("--all", help="Without any filter: every task of the project.")]
CallKey = Annotated[
    str | None, typer.Option("--call-key", metavar="K", help="The call's own idempotency key: repeated with it, it acts once.")
]


@filtered
def bulk_cancel(
    session: Session,
    *,
    filter: dict[str, Any],
    dry_run: DryRun = False,
    yes: Yes = False,
    all: Everything = False,
    call_key: CallKey = None,
) -> None:
    """Cancel the tasks of a filter, newest first, at most 10,000. Asks first, unless --yes. Needs an operator key."""
    act(session, "cancel", filter, dry_run=dry_run, yes=yes, all=all, call_key=call_key)


@filtered
def bulk_rerun(
    session: Session,
    *,
    filter: dict[str, Any],
    dry_run: DryRun = False,
    yes: Yes = False,
    all: Everything = False,
    call_key: CallKey = None,
) -> None:
    """Rerun the settled tasks of a filter, newest first, at most 10,000. Asks first, unless --yes. Needs an operator key."""
    act(session, "rerun", filter, dry_run=dry_run, yes=yes, all=all, call_key=call_key)


def act(
    session: Session,
    action: Literal["cancel", "rerun"],
    filter: dict[str, Any],
    *,
    dry_run: bool,
    yes: bool,
    all: bool,
    call_key: str | None,
) -> None:
    """Count, ask, do, and tell."""
    if bool(filter) is all:
        reason = "--all and a filter contradict each other" if all else "no filter is given"
        raise CommandFailed(reason, ExitCode.USAGE, next="Name the tasks with filters, or --all of them.")
    from interlock.operator import Operator

    wanted = cast("TaskFilter", filter)
    count = Operator(client=session.client("operator")).bulk(action, wanted, dry_run=True)
    if dry_run:
        show_done(session, action, count, dry_run=True)
        return
    if not yes:
        confirm(session.out, f"{amount(count)} match; {action} those of them that can be?")
    session.patience = max(session.patience, LONGEST)
    key = call_key or make_key()
    try:
        done = Operator(client=session.client("operator")).bulk(action, wanted, idempotency_key=key)
    except Unreachable as error:
        advice = f"Ask again with the same filter and --call-key {key}; what was done is not done again."
        raise CommandFailed(f"{error}; some of it may be done", ExitCode.UNREACHABLE, next=advice) from None
    show_done(session, action, done, dry_run=False)


def show_done(session: Session, action: str, done: BulkDone, *, dry_run: bool) -> None:
    """What was done, or would be."""
    out = session.out
    if out.json:
        facts = {"action": action, "dryRun": dry_run, "matched": done.matched, "changed": done.changed, "skipped": done.skipped}
        out.document({**facts, "more": done.more, "duplicate": done.duplicate})
    elif dry_run:
        out.lines(f"{amount(done)} match{'es' if done.matched == 1 and not done.more else ''}")
    else:
        word = {"cancel": "cancelled or asked to stop", "rerun": "rerun"}[action]
        out.lines(f"{done.changed} of {amount(done)} {word}, {done.skipped} left as they are")
    if done.duplicate:
        out.notice("this call had been made before; nothing changed")
    if done.more and not dry_run:
        out.notice("there are more: ask again with --created-before, so that none is taken twice")


def amount(done: BulkDone) -> str:
    """How many tasks, in words."""
    return f"{done.matched}{' or more' if done.more else ''} task{'' if done.matched == 1 else 's'}"
