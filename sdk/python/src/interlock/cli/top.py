"""`interlock tasks top`: types, queues, running tasks and workers on one screen, drawn again and again."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interlock.cli.fleet import type_row, worker_row
from interlock.cli.lists import read_pages
from interlock.cli.output import cell_len, pad
from interlock.cli.plain import show_plainly
from interlock.cli.session import READERS, Session
from interlock.cli.values import bad, read_duration
from interlock.errors import ApiError, Unreachable
from interlock.tasks import write_time

if TYPE_CHECKING:
    from interlock.client import Client

View = Mapping[str, Any]

TYPE_HEAD = ("TYPE", "QUEUED", "RUNNING", "WAITING", "UNKNOWN", "OLDEST DUE", "FREE SLOTS", "HOUR ok/failed", "DAY ok/failed")
WORKER_HEAD = ("WORKER", "STATE", "POOL", "USED", "PROCESSES", "LAST SEEN")


def top(
    session: Session,
    once: Annotated[bool, typer.Option("--once", help="Show it once, and all of it.")] = False,
    every: Annotated[str, typer.Option(metavar="S", help="How often to look (0.2 or more).")] = "2",
) -> None:
    """Show the task types, their queues, what runs, and the workers, until Ctrl-C. The busiest come first.

    With --json, a line for each look: {"at", "types", "workers"}; with --once too, one document.
    """
    pause = read_duration(every, "--every") or 0.0
    if pause < 0.2:
        bad("--every", "0.2 seconds is the shortest")
    out, client = session.out, session.client(*READERS)
    found = look(client)
    if once:
        if out.json:
            out.document(found)
        else:
            out.lines(*draw(found))
        return
    trouble = ""
    while True:
        if out.json:
            if not trouble:
                out.record(found)
        else:
            out.screen(draw(found, trouble))
        time.sleep(pause)
        before = trouble
        try:
            found, trouble = look(client), ""
        except (Unreachable, ApiError) as error:
            if isinstance(error, ApiError) and not error.retryable:
                raise
            trouble = str(error)
        if not out.terminal and bool(trouble) is not bool(before):
            out.notice(f"{trouble}; still trying" if trouble else "the service answers again")


def look(client: Client) -> dict[str, Any]:
    """All there is to show. Raises as Client.request."""
    types = [item for page in read_pages(client, "/v1/task-types", {}, None) for item in page["items"]]
    workers = [item for page in read_pages(client, "/v1/workers", {}, None) for item in page["items"]]
    types.sort(key=lambda item: (-number(item, "running"), -number(item, "queued"), str(item.get("type"))))
    workers.sort(key=lambda item: (item.get("state") == "offline", -number(item, "used"), str(item.get("workerId"))))
    return {"at": write_time(datetime.now(timezone.utc)), "types": types, "workers": workers}


def draw(found: Mapping[str, Any], trouble: str = "") -> list[str]:
    """The screen's lines."""
    types, workers = found["types"], found["workers"]
    online = [item for item in workers if item.get("state") != "offline"]
    totals = ", ".join(
        f"{sum(number(item, name) for item in types)} {words}"
        for name, words in (("queued", "queued"), ("running", "running"), ("waiting", "waiting"), ("outcomeUnknown", "unknown"))
    )
    slots = f"{sum(number(item, 'used') for item in online)} of {sum(number(item, 'slots') for item in online)} slots used"
    lines = [f"{str(found['at'])[:19]}Z  {totals}; {len(online)} of {len(workers)} workers online, {slots}"]
    lines += [f"{trouble}; still trying"] if trouble else []
    type_rows = [[*type_row(item)[:-1], "paused" if item.get("paused") else ""] for item in types]
    lines += ["", *columns((*TYPE_HEAD, ""), type_rows)]
    lines += ["", *columns(WORKER_HEAD, [worker_row(item)[:-1] for item in workers])]
    return lines


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table as lines."""
    table = [[*head], *([show_plainly(cell) for cell in row] for row in rows)]
    widths = [max(cell_len(row[place]) for row in table) for place in range(len(head))]
    return [pad(row, widths) for row in table]


def number(view: View, name: str) -> int:
    """A count in an answer."""
    value = view.get(name)
    return value if isinstance(value, int) else 0
