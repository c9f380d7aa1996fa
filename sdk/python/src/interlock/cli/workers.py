"""`interlock workers list | show | drain | remove`: the machines that run tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from interlock.cli.completion import offer_workers
from interlock.cli.output import Output
from interlock.cli.session import READERS, Session
from interlock.cli.show import moment, type_of
from interlock.reading import path_of

WorkerId = Annotated[str, typer.Argument(metavar="ID", help="The worker's id.", autocompletion=offer_workers)]


def show(session: Session, worker_id: WorkerId) -> None:
    """Show one worker: its processes, what it serves, the attempts that it runs."""
    view = session.client(*READERS).request("GET", path_of("workers", worker_id))
    if session.out.json:
        session.out.document(view)
    else:
        show_worker(session.out, view)


def show_worker(out: Output, view: Mapping[str, Any]) -> None:
    """Everything about one worker."""
    out.facts(
        [
            ("worker", view.get("workerId")),
            ("state", view.get("state")),
            ("pool", view.get("pool")),
            ("slots", f"{view.get('used', 0)} of {view.get('slots', 0)} used"),
            ("build", view.get("build")),
            ("registered", moment(view.get("registeredAt")) or "no"),
            ("last seen", moment(view.get("lastSeen"))),
            ("serves", "\n".join(f"{type_of(item)} ({item.get('effectSafety')})" for item in view.get("handlers") or ())),
        ]
    )
    if instances := view.get("instances") or ():
        out.lines("")
        out.table(("PROCESS", "STATE", "USED", "HOST", "SDK", "STARTED", "LAST SEEN"), map(instance_row, instances))
    if attempts := view.get("attempts") or ():
        out.lines("")
        out.table(("TASK", "TYPE", "ATTEMPT", "STARTED", "LEASE UNTIL"), map(attempt_row, attempts))


def instance_row(item: Mapping[str, Any]) -> list[str]:
    """The cells of a process of a worker."""
    state = "draining" if item.get("drainRequested") and item.get("state") != "offline" else str(item.get("state"))
    return [
        str(item.get("instanceId")), state, f"{item.get('used', 0)}/{item.get('slots', 0)}", str(item.get("host") or ""),
        str(item.get("sdk") or ""), moment(item.get("startedAt")), moment(item.get("lastSeen")),
    ]  # fmt: skip


def attempt_row(item: Mapping[str, Any]) -> list[str]:
    """The cells of an attempt that a worker runs."""
    return [
        str(item.get("taskId")), type_of(item), str(item.get("number", "")), moment(item.get("startedAt")),
        moment(item.get("leaseExpiresAt")),
    ]  # fmt: skip


def drain(session: Session, worker_id: WorkerId) -> None:
    """Ask the worker's processes to claim no more, finish what they hold, and end. Needs an operator key."""
    answer = session.client("operator").request("POST", path_of("workers", worker_id, "drain"), json={})
    if session.out.json:
        session.out.document(answer)
        return
    instances = answer.get("instances") or []
    for instance in instances:
        session.out.lines(f"draining {instance}")
    if not instances:
        session.out.notice("none of its processes is online")
    elif answer.get("duplicate"):
        session.out.notice("they had been asked before")


def remove(session: Session, worker_id: WorkerId) -> None:
    """Take the worker's registration away; processes that run go on. Needs an operator key."""
    answer = session.client("operator").request("DELETE", path_of("workers", worker_id))
    if session.out.json:
        session.out.document(answer)
    elif not answer.get("duplicate"):
        session.out.lines(f"{worker_id} removed")
    if answer.get("duplicate"):
        session.out.notice(f"there was no registration of {worker_id}; nothing changed")
