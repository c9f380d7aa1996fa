"""`interlock tasks pause | resume`, `interlock limits …`, `interlock audit`: what an operator sets, and what was done."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from interlock.cli.completion import offer_versions
from interlock.cli.lists import All, Limit, show_list
from interlock.cli.output import Output
from interlock.cli.session import Session
from interlock.cli.show import describe_value, moment
from interlock.cli.values import bad, read_type
from interlock.client import Client
from interlock.errors import InterlockError
from interlock.reading import type_path

Type = Annotated[
    str,
    typer.Argument(
        metavar="[TYPE@VERSION]", help="The type, with its version.", show_default=False, autocompletion=offer_versions
    ),
]
Project = Annotated[bool, typer.Option("--project", help="The whole project instead of one type.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The concurrency key.")]


def pause(session: Session, type: Type = "", project: Project = False) -> None:
    """Let nobody claim a type, or anything; submits are stored, running attempts go on. Needs an operator key."""
    change(session, type, project, "pause")


def resume(session: Session, type: Type = "", project: Project = False) -> None:
    """Let a paused type, or the paused project, be claimed again. Needs an operator key."""
    change(session, type, project, "resume")


def change(session: Session, given: str, project: bool, action: str) -> None:
    """Pause or resume what was named."""
    if bool(given) is project:
        bad("TYPE@VERSION", f"name the type to {action}, or --project for all of them")
    if project:
        path, name = "/v1/project", "the project"
    else:
        kind, version = read_type(given, None)
        if version is None:
            bad("TYPE@VERSION", f"name the version too: {given}@1")
        path, name = type_path_of(kind, version), f"{kind}@{version}"
    client = session.client("operator")
    answer = client.request("POST", f"{path}/{action}", json={})
    if session.out.json:
        session.out.document(answer)
    else:
        session.out.lines(f"{name} {'is paused' if answer.get('paused') else 'runs'}")
    told_before(session, answer)
    if answer.get("paused") and not project:
        tell_unknown(session.out, client, path, name)


def tell_unknown(out: Output, client: Client, path: str, name: str) -> None:
    """Say so where a type was paused that no worker ever registered: its name may be misspelled, and what was meant runs on."""
    with contextlib.suppress(InterlockError):  # The pause is stored, whatever becomes of this question.
        if not client.request("GET", path).get("firstRegisteredAt"):
            out.notice(
                f"warning: no worker ever registered the type {name} in this project; `interlock tasks types` shows those there are"
            )


def type_path_of(kind: str, version: int) -> str:
    """The type's path; what is no type is a wrong argument."""
    try:
        return type_path(kind, version)
    except ValueError as error:
        bad("TYPE@VERSION", str(error))


def list_limits(session: Session) -> None:
    """Show the limits, how many tasks hold each key now, and the rate of submits. Needs an operator key."""
    client = session.client("operator")
    answer = client.request("GET", "/v1/limits", params={"limit": 200})
    while cursor := answer.pop("nextCursor", None):
        further = client.request("GET", "/v1/limits", params={"limit": 200, "cursor": cursor})
        answer = {**further, "items": [*answer["items"], *further["items"]]}
    out = session.out
    if out.json:
        out.document(answer)
        return
    items = answer.get("items") or []
    if items:
        rows = [[str(item.get("key")), str(item.get("limit")), str(item.get("held", 0))] for item in items]
        out.table(("KEY", "LIMIT", "HELD"), rows)
    else:
        out.notice("no concurrency key is limited")
    out.lines(rate_text(answer.get("rate")))


def set_limit(
    session: Session, name: Key, limit: Annotated[int, typer.Argument(metavar="N", min=0, help="So many; 0: none starts.")]
) -> None:
    """Let at most N tasks hold a concurrency key; a task's own smaller limit counts too. Needs an operator key."""
    answer = session.client("operator").request("PUT", "/v1/limits", params={"key": name}, json={"limit": limit})
    if session.out.json:
        session.out.document(answer)
    else:
        session.out.lines(f"{name}: at most {limit}")
    told_before(session, answer)


def drop_limit(session: Session, name: Key) -> None:
    """Let only the tasks' own limits count for a concurrency key. Needs an operator key."""
    answer = session.client("operator").request("DELETE", "/v1/limits", params={"key": name})
    if session.out.json:
        session.out.document(answer)
    else:
        session.out.lines(f"{name}: no limit but the tasks' own")
    told_before(session, answer)


def set_rate(
    session: Session,
    per_second: Annotated[str, typer.Argument(metavar="PER_SECOND|none", help="Tasks a second of each producer key.")],
    burst: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="So many at once. Default: what one second allows.")
    ] = None,
) -> None:
    """Limit the submits of each producer key, or lift the limit (none). Needs an operator key."""
    rate = read_number(per_second)
    if rate is None and burst is not None:
        bad("--burst", "there is no burst without a rate")
    if rate is not None and burst is None:
        burst = max(1, round(rate))
    answer = session.client("operator").request("PUT", "/v1/limits/rate", json={"perSecond": rate, "burst": burst})
    if session.out.json:
        session.out.document(answer)
    else:
        session.out.lines(rate_text(answer))
    told_before(session, answer)


def read_number(given: str) -> float | None:
    """The rate; None for none."""
    if given == "none":
        return None
    try:
        rate = float(given)
    except ValueError:
        rate = 0.0
    if not 0.001 <= rate <= 1_000_000:
        bad("PER_SECOND", f"{given!r} is no rate: a number from 0.001 to 1000000, or none")
    return rate


def rate_text(rate: Any) -> str:
    """The rate in words."""
    if not isinstance(rate, Mapping) or rate.get("perSecond") is None:
        return "submits are not limited"
    return f"submits of each key: {rate['perSecond']:g} a second, {rate.get('burst')} at once"


def audit(session: Session, limit: Limit = 50, all: All = False) -> None:
    """Show who did what, when, to what: newest first. Needs an operator key."""
    head = ("AT", "KEY", "ACTION", "TARGET", "DETAIL")
    show_list(session.out, session.client("operator"), "/v1/audit", None if all else limit, head, audit_row)


def audit_row(entry: Mapping[str, Any]) -> list[str]:
    """The cells of an entry of the trail."""
    return [
        moment(entry.get("at")), str(entry.get("keyId") or ""), str(entry.get("action")), str(entry.get("target") or ""),
        describe_value(entry.get("detail")),
    ]  # fmt: skip


def told_before(session: Session, answer: Mapping[str, Any]) -> None:
    """Say that nothing changed, if so."""
    if answer.get("duplicate"):
        session.out.notice("it was so before; nothing changed")
