"""Shell completion: the script that a shell reads, and the names that it offers.

Names come from the file of profiles, and from the service if it answers within a second; whatever goes wrong, there is
nothing to offer and nothing is said.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Annotated, Any

import typer

from interlock.cli.profiles import read_profiles
from interlock.cli.session import READERS, Session, find_client
from interlock.settings import KeyKind

LATER: tuple[str, ...] = ()

PATIENCE = 1.0
"""Seconds: who has pressed Tab waits no longer."""

MOST = 200
"""Names asked of the service."""

PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/@-]*")
"""A name that means nothing else to any shell: zsh evaluates what it is offered."""


class Shell(str, Enum):
    """The shells that can complete."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def completion(session: Session, shell: Annotated[Shell, typer.Argument(help="The shell that reads it.")]) -> None:
    """Print the script that makes a shell complete commands, options, task types, worker ids and profiles.

    bash: source <(interlock completion bash), in ~/.bashrc; zsh: the same with zsh, in ~/.zshrc after compinit; fish:
    interlock completion fish > ~/.config/fish/completions/interlock.fish
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # shown in its documentation, not in its types

    script = get_completion_script(prog_name="interlock", complete_var="_INTERLOCK_COMPLETE", shell=shell.value)
    if session.out.json:
        session.out.document({"shell": shell.value, "script": script})
    else:
        sys.stdout.write(f"{script}\n")  # as it is, tabs and all


def offer_profiles(incomplete: str) -> list[str]:
    """The names of profiles."""
    try:
        return matching(read_profiles(), incomplete)
    except Exception:  # A file that cannot be read is told by the command itself.
        return []


def offer_types(ctx: typer.Context, incomplete: str) -> list[str]:
    """Task types; the first version of one by its name alone."""
    found = ask(ctx, "/v1/task-types", READERS)
    return matching((name if version == 1 else f"{name}@{version}" for name, version in type_names(found)), incomplete)


def offer_versions(ctx: typer.Context, incomplete: str) -> list[str]:
    """Task types, each with its version."""
    return matching((f"{name}@{version}" for name, version in type_names(ask(ctx, "/v1/task-types", READERS))), incomplete)


def offer_workers(ctx: typer.Context, incomplete: str) -> list[str]:
    """The ids of workers."""
    return matching((str(item.get("workerId")) for item in ask(ctx, "/v1/workers", READERS)), incomplete)


def type_names(items: list[Mapping[str, Any]]) -> Iterator[tuple[str, int]]:
    """Types and versions of the service's answer."""
    return ((str(item.get("type")), int(item.get("schemaVersion", 1))) for item in items)


def ask(ctx: typer.Context, path: str, kinds: tuple[KeyKind, ...]) -> list[Mapping[str, Any]]:
    """Some items of a list; none where the service does not answer."""
    given = {name: ctx.params.get(name) or None for name in ("url", "key", "profile")}
    try:
        with find_client(kinds, timeout=PATIENCE, **given) as client:
            items = client.request("GET", path, params={"limit": MOST})["items"]
            return [item for item in items if isinstance(item, Mapping)]
    except Exception:
        return []


def matching(names: Any, incomplete: str) -> list[str]:
    """The names that begin so, those that no shell takes for anything else."""
    return sorted({name for name in names if name.startswith(incomplete) and PLAIN.fullmatch(name)})
