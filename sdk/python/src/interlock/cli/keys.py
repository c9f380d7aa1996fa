"""`interlock keys …` and `interlock projects …`: who may call."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interlock.cli.exits import CommandFailed, ExitCode
from interlock.cli.lists import All, Limit, show_list
from interlock.cli.session import Session, has_key
from interlock.cli.show import moment
from interlock.cli.values import read_duration, read_instant, read_list
from interlock.reading import path_of
from interlock.settings import KEY_VARIABLES
from interlock.submission import make_key

if TYPE_CHECKING:
    from interlock.client import Client


class Kind(str, Enum):
    """The kinds of keys."""

    producer = "task-producer"
    worker = "task-worker"
    operator = "operator"
    metrics = "metrics"
    admin = "admin"


def new_key(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the key is for.")],
    kind: Annotated[Kind, typer.Option(help="What it may do.")],
    project: Annotated[str | None, typer.Option(metavar="P", help="Its project. Default: the operator key's own.")] = None,
    types: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Only these types (worker key); may be repeated.")
    ] = None,
    pools: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only these pools; may be repeated.")] = None,
    worker_ids: Annotated[list[str] | None, typer.Option(metavar="ID", help="Only these worker ids; may be repeated.")] = None,
    may_schedule: Annotated[bool, typer.Option("--may-schedule", help="A narrowed worker key may register schedules.")] = False,
    expires_at: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339, or how long it lives (30d).")] = None,
    idempotency_key: Annotated[str | None, typer.Option(metavar="K", help="The same key makes one key.")] = None,
) -> None:
    """Make a key. It is shown here and never again. Needs an operator key, or with --project an admin key."""
    body = {
        "name": name,
        "kind": kind.value,
        "project": project,
        "types": read_list(types),
        "pools": read_list(pools),
        "workerIds": read_list(worker_ids),
        "maySchedule": may_schedule or None,
        "expiresAt": read_instant(expires_at, "--expires-at", past=False),
        # So that a repeat after a lost answer does not make a second key that nobody knows of.
        "idempotencyKey": idempotency_key or make_key(),
    }
    made = minter(session, kind, project).request("POST", "/v1/keys", json=without_absent(body))
    show_secret(session, made)


def show_secret(session: Session, made: Mapping[str, Any]) -> None:
    """The new key, once. Raises CommandFailed where its secret was told before."""
    if not made.get("key"):
        raise CommandFailed(
            f"the key {made.get('id')} was made before, and its secret is told only once",
            ExitCode.CONFLICT,
            next=f"If nobody kept it: interlock keys revoke {made.get('id')}, then make another.",
        )
    advice = f"interlock keys revoke {made.get('id')}"
    with session.out.done(f"the key {made.get('id')} was made, and could not be shown, which is done only once: {advice}"):
        if session.out.json:
            session.out.document(made)
            return
        session.out.lines(str(made["key"]))
    session.out.notice(
        f"{made.get('kind')} key {made.get('id')} of project {made.get('project') or '(all)'}; it is not shown again."
    )
    session.out.notice(f"Keep it as {KEY_VARIABLES.get(str(made.get('kind')), 'its variable')}.")


def minter(session: Session, kind: Kind, project: str | None) -> Client:
    """Who may make that key: an operator its own project's, an admin every project's and admins."""
    needs_admin = kind is Kind.admin or (project is not None and has_key("admin", session.profile))
    if kind is Kind.admin:
        return session.client("admin")
    return session.client("admin", "operator") if needs_admin else session.client("operator", "admin")


def list_keys(session: Session, limit: Limit = 50, all: All = False) -> None:
    """List the keys of the project, newest first; never their secrets. Needs an operator key."""
    head = ("ID", "NAME", "KIND", "STATE", "CREATED", "EXPIRES", "NARROWED TO")
    show_list(session.out, session.client("operator"), "/v1/keys", None if all else limit, head, key_row)


def key_row(key: Mapping[str, Any]) -> list[str]:
    """The cells of a key."""
    narrowed = [f"{name} {', '.join(key[field])}" for name, field in NARROWINGS if key.get(field)]
    state = "revoked" if key.get("revokedAt") else "active"
    return [
        str(key.get("id")), str(key.get("name")), str(key.get("kind")), state, moment(key.get("createdAt")),
        moment(key.get("expiresAt")), "; ".join(narrowed),
    ]  # fmt: skip


NARROWINGS = (("types", "types"), ("pools", "pools"), ("workers", "workerIds"))


def revoke_key(session: Session, key_id: Annotated[str, typer.Argument(metavar="ID", help="The key's id, not the key.")]) -> None:
    """Revoke a key; it is refused everywhere within seconds. Needs an operator key."""
    answer = session.client("operator").request("POST", path_of("keys", key_id, "revoke"), json={})
    if session.out.json:
        session.out.document(answer)
    else:
        session.out.lines(f"{answer.get('id')} {answer.get('name')} revoked {moment(answer.get('revokedAt'))}")
    if answer.get("duplicate"):
        session.out.notice("it had been revoked before")


def rotate_key(
    session: Session,
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The id of the key to replace, not the key.")],
    overlap: Annotated[str, typer.Option(metavar="S", help="How long the old key lives on (0, 90, 15m, 2h, 7d).")],
    idempotency_key: Annotated[str | None, typer.Option(metavar="K", help="The same key rotates once.")] = None,
) -> None:
    """Make a key with the rights of another, which lives on for a while. The new one is shown here and never again.

    Needs an operator key.
    """
    seconds = read_duration(overlap, "--overlap")
    body = {"overlapSeconds": seconds, "idempotencyKey": idempotency_key or make_key()}
    made = session.client("operator").request("POST", path_of("keys", key_id, "rotate"), json=body)
    show_secret(session, made)
    session.out.notice(f"The old key, {key_id}, works for {overlap} more{'' if overlap[-1:].isalpha() else ' seconds'}.")


def new_project(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Small letters, digits and '-'.")],
    require_worker: Annotated[str | None, typer.Option(metavar="registered|online", help="Its default for submits.")] = None,
) -> None:
    """Make a project. Needs an admin key."""
    body = {"name": name, "requireWorker": require_worker}
    made = session.client("admin").request("POST", "/v1/projects", json=without_absent(body))
    if session.out.json:
        session.out.document(made)
    else:
        session.out.lines(f"{made.get('name')} created {moment(made.get('createdAt'))}")
    if made.get("duplicate"):
        session.out.notice("the project was there already")
    session.out.notice(f"Its first key: interlock keys new NAME --kind operator --project {name}")


def list_projects(session: Session, limit: Limit = 50, all: All = False) -> None:
    """List the projects by name. Needs an admin key."""
    head = ("NAME", "CREATED", "REQUIRES WORKER")
    show_list(session.out, session.client("admin"), "/v1/projects", None if all else limit, head, project_row)


def project_row(project: Mapping[str, Any]) -> list[str]:
    """The cells of a project."""
    return [str(project.get("name")), moment(project.get("createdAt")), str(project.get("requireWorker") or "")]


def without_absent(body: dict[str, Any]) -> dict[str, Any]:
    """The fields that were given."""
    return {name: value for name, value in body.items() if value is not None}
