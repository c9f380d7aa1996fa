"""`interlock tasks submit`: store a task, and wait for its end if asked to."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interlock.cli.completion import offer_types
from interlock.cli.exits import OF_STATUS, CommandFailed, ExitCode
from interlock.cli.session import Session
from interlock.cli.show import View, show_end, state_text, type_of
from interlock.cli.values import bad, read_duration, read_instant, read_json, read_tags, read_type, splice
from interlock.errors import Unreachable
from interlock.retry import Retry
from interlock.submission import Submission

if TYPE_CHECKING:
    from interlock.client import Client

LATER = ("interlock.client", "interlock.producer")


class RequireWorker(str, Enum):
    """What must exist for the task to be taken."""

    registered = "registered"
    online = "online"


def submit(
    session: Session,
    type: Annotated[str, typer.Argument(metavar="TYPE", help="group/name, or group/name@version.", autocompletion=offer_types)],
    input: Annotated[
        str, typer.Option("--input", "-i", metavar="JSON|@FILE|-", help="The input: JSON, @file, or - for standard input.")
    ] = "null",
    schema_version: Annotated[
        int | None, typer.Option("--schema-version", metavar="N", help="Version of the type. Default: 1.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="K", help="The same key with the same request makes one task.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait for the end; the exit status tells it.")] = False,
    timeout: Annotated[str | None, typer.Option(metavar="S", help="With --wait: no longer than this (90, 15m, 2h).")] = None,
    delay: Annotated[str | None, typer.Option(metavar="S", help="Not before this time has passed.")] = None,
    run_at: Annotated[str | None, typer.Option(metavar="TIME", help="Not before this instant (RFC 3339).")] = None,
    pool: Annotated[str | None, typer.Option(metavar="NAME", help="The pool of workers. Default: default.")] = None,
    priority: Annotated[int | None, typer.Option(min=-100, max=100, help="Higher first.")] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A tag; may be repeated.")] = None,
    require_worker: Annotated[RequireWorker | None, typer.Option(help="Refuse the task if no such worker exists.")] = None,
    attempt_timeout: Annotated[str | None, typer.Option(metavar="S", help="The longest that one attempt may run.")] = None,
    start_deadline: Annotated[str | None, typer.Option(metavar="S", help="Fail the task if it has not started by then.")] = None,
    lease: Annotated[str | None, typer.Option(metavar="S", help="The length of a lease.")] = None,
    max_attempts: Annotated[int | None, typer.Option(metavar="N", min=1, help="How often it may be tried.")] = None,
    concurrency: Annotated[str | None, typer.Option(metavar="KEY=N", help="At most N tasks hold KEY at once.")] = None,
    traceparent: Annotated[str | None, typer.Option(metavar="TP", help="W3C trace context.")] = None,
) -> int:
    """Submit a task. Prints its id first; with --wait, its end and its result."""
    name, version = read_type(type, schema_version)
    submission = Submission(
        type=name,
        schema_version=1 if version is None else version,
        idempotency_key=idempotency_key,
        tags=read_tags(tag) if tag else None,
        delay=read_duration(delay, "--delay"),
        run_at=read_instant(run_at, "--run-at", past=False),
        priority=priority,
        pool=pool,
        retry=Retry(max_attempts=max_attempts) if max_attempts is not None else None,
        timeout=read_duration(attempt_timeout, "--attempt-timeout"),
        lease=read_duration(lease, "--lease"),
        start_deadline=read_duration(start_deadline, "--start-deadline"),
        concurrency=read_concurrency(concurrency),
        require_worker=require_worker.value if require_worker else None,
        trace=traceparent,
    )
    fields = submission.to_wire()
    del fields["input"]
    seconds = read_duration(timeout, "--timeout")
    if seconds is not None and not wait:
        bad("--timeout", "it is for --wait; --attempt-timeout bounds an attempt")
    client = session.client("task-producer")
    view = send(client, fields, splice(fields, "input", read_json(input, "--input")))
    try:
        tell_submitted(session, view, wait=wait)
        return wait_for(session, client, view, seconds) if wait else ExitCode.OK
    except KeyboardInterrupt:
        return stop_waiting(session, view, "interrupted", ExitCode.INTERRUPTED)


def read_concurrency(given: str | None) -> tuple[str, int] | None:
    """The key and the limit of `KEY=N`."""
    if given is None:
        return None
    key, sign, limit = given.rpartition("=")
    if not sign or not key or not limit.isdecimal():
        bad("--concurrency", f"{given!r} is not KEY=N")
    return key, int(limit)


def send(client: Client, fields: dict[str, Any], body: bytes) -> dict[str, Any]:
    """The stored task. Without an answer nobody knows whether there is one: say how to ask again safely."""
    try:
        return client.request("POST", "/v1/tasks", content=body)
    except (Unreachable, KeyboardInterrupt) as error:
        said, code = (
            (str(error), ExitCode.UNREACHABLE) if isinstance(error, Unreachable) else ("interrupted", ExitCode.INTERRUPTED)
        )
        advice = f"Submit again with --idempotency-key {fields['idempotencyKey']}: it is stored once, however often you ask."
        raise CommandFailed(f"{said}; the task may have been stored", code, next=advice) from None


def tell_submitted(session: Session, view: View, *, wait: bool) -> None:
    """The id, before anything else can go wrong."""
    out = session.out
    with out.done(f"submitted {view['id']}"):
        if not out.json:
            out.lines(f"{view['id']} {type_of(view)} {view['status']}")
        elif wait:
            out.notice(f"submitted {view['id']}")
        else:
            out.document(view)
    if view.get("deduplicated"):
        out.notice("the idempotency key named this task already; nothing new was stored")
    for warning in view.get("warnings") or ():
        out.notice(f"warning: {warning.get('message') or warning.get('detail') or warning.get('code')}")


def wait_for(session: Session, client: Client, view: View, seconds: float | None) -> int:
    """Wait for the end of the task; its exit status."""
    from interlock.producer import TaskProducer

    out, task_id = session.out, str(view["id"])
    try:
        with out.status(f"waiting for {task_id}"):
            view = TaskProducer(client=client).wait(task_id, seconds).raw
    except TimeoutError:
        return stop_waiting(session, look_again(client, view), "the time is over", ExitCode.TIMEOUT)
    if out.json:
        out.document(view)
    else:
        show_end(out, view)
    return OF_STATUS.get(str(view.get("status")), ExitCode.UNEXPECTED)


def stop_waiting(session: Session, view: View, reason: str, code: ExitCode) -> int:
    """The task goes on without us: say so, and give what is known of it."""
    told = " ".join(part for part in (str(view.get("status")), state_text(view)) if part)
    session.out.notice(f"{reason}; the task goes on ({told}): interlock tasks watch {view['id']}")
    if session.out.json:
        session.out.document(view)
    return code


def look_again(client: Client, view: View) -> View:
    """The task as it is now, or as last seen if it cannot be asked quickly."""
    try:
        return client.request("GET", f"/v1/tasks/{view['id']}", timeout=2)
    except Exception:  # The time was over already: this is for better words only.
        return view
