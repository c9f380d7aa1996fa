"""`interlock login | logout | profiles list`: a service and its keys, kept as a profile.

A key is typed unseen or read from standard input, and never shown again.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from getpass import GetPassWarning, getpass
from typing import Annotated, Any

import typer

from interlock.cli.ask import at_terminal
from interlock.cli.exits import CommandFailed, ExitCode
from interlock.cli.profiles import read_profiles, readable_by_others, remove_profiles, write_profile
from interlock.cli.session import Session
from interlock.errors import ApiError, ConfigurationError, InterlockError
from interlock.settings import KEY_VARIABLES, KeyKind, check_url, find_key, profiles_path

KINDS: tuple[KeyKind, ...] = ("task-producer", "task-worker", "operator", "metrics", "admin")


def login(
    session: Session,
    key_producer: Annotated[bool, typer.Option("--key-producer", help="Ask for the producer key.")] = False,
    key_worker: Annotated[bool, typer.Option("--key-worker", help="Ask for the worker key.")] = False,
    key_operator: Annotated[bool, typer.Option("--key-operator", help="Ask for the operator key.")] = False,
    key_metrics: Annotated[bool, typer.Option("--key-metrics", help="Ask for the metrics key.")] = False,
    key_admin: Annotated[bool, typer.Option("--key-admin", help="Ask for the admin key.")] = False,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Ask the service whether it knows the keys.")] = True,
) -> None:
    """Keep the service's --url and keys as the profile --profile (else: default), in a file for you alone.

    Keys are typed unseen; without --key-… all kinds are asked for, Enter skips one. Where standard input is no terminal,
    it holds a line for each --key-… that is given, in the order above. Other keys of the profile are kept.
    """
    if session.key:
        advice = "Name its kind, such as --key-producer, and type it, or give it on standard input."
        raise CommandFailed("login takes no key as an argument, which others may see", ExitCode.USAGE, next=advice)
    chosen = (key_producer, key_worker, key_operator, key_metrics, key_admin)
    asked = [kind for kind, wanted in zip(KINDS, chosen) if wanted]  # noqa: B905 (one option for each kind)
    name = chosen_profile(session)
    url = find_service(session.url, name)
    keys = type_keys(asked or KINDS, must=bool(asked)) if at_terminal() else read_keys(asked)
    if not keys:
        raise CommandFailed("no key was given; nothing was written", ExitCode.USAGE)
    if check:
        for kind, key in keys.items():
            check_key(session, url, kind, key)
    path = write_profile(name, url, keys)
    if session.out.json:
        session.out.document({"profile": name, "url": url, "kinds": [*keys], "file": str(path)})
    else:
        session.out.lines(f"profile {name}: {url} with {', '.join(keys)} in {path}")
    if name != "default":
        session.out.notice(f"--profile {name} or INTERLOCK_PROFILE={name} takes it")
    if hiding := [name for name in ("INTERLOCK_URL", *(KEY_VARIABLES[kind] for kind in keys)) if os.environ.get(name)]:
        session.out.notice(f"{', '.join(hiding)} of the environment come before any profile")


def logout(session: Session, all: Annotated[bool, typer.Option("--all", help="Every profile.")] = False) -> None:
    """Forget the profile --profile (else: INTERLOCK_PROFILE, else default), its URL and its keys.

    The keys themselves go on working until they are revoked: interlock keys revoke.
    """
    if all and session.profile:
        raise CommandFailed("--all and --profile contradict each other", ExitCode.USAGE)
    names = [*read_profiles()] if all else [chosen_profile(session)]
    removed = remove_profiles(names)
    if session.out.json:
        session.out.document({"removed": removed, "file": str(profiles_path())})
    elif removed:
        session.out.lines(f"forgotten: {', '.join(removed)}")
    if not removed:
        session.out.notice(f"there is no profile{'' if all else f' {names[0]}'}; nothing changed")
    else:
        session.out.notice("The keys still work, for whoever has them: interlock keys revoke ID ends that.")


def list_profiles(session: Session) -> None:
    """List the profiles, what keys they hold, and which one counts now; never the keys."""
    stored, path, chosen = read_profiles(), profiles_path(), chosen_profile(session)
    items = [describe_profile(name, entry, chosen=name == chosen) for name, entry in sorted(stored.items())]
    if session.out.json:
        session.out.document({"items": items, "nextCursor": None, "file": str(path)})
    elif items:
        rows = [
            [item["profile"], item["url"] or "", ", ".join(item["kinds"]), "chosen" if item["chosen"] else ""] for item in items
        ]
        session.out.table(("NAME", "URL", "KEYS", ""), rows)
    else:
        session.out.notice(f"there are none in {path}: interlock login writes one")
    if items and readable_by_others(path):
        session.out.notice(f"other users may read {path}: chmod 600 it, and rotate the keys")


def describe_profile(name: str, entry: Any, *, chosen: bool) -> dict[str, Any]:
    """What a profile holds, without its keys."""
    entry = entry if isinstance(entry, Mapping) else {}
    url, keys = entry.get("url"), entry.get("keys")
    kinds = [str(kind) for kind in keys] if isinstance(keys, Mapping) else []
    return {"profile": name, "url": url if isinstance(url, str) else None, "kinds": kinds, "chosen": chosen}


def chosen_profile(session: Session) -> str:
    """The profile that a command takes now."""
    return session.profile or os.environ.get("INTERLOCK_PROFILE") or "default"


def find_service(given: str | None, profile: str) -> str:
    """The URL: given, of the profile as it was, or typed. Raises ConfigurationError, CommandFailed."""
    entry = read_profiles().get(profile)
    url = given or (entry.get("url") if isinstance(entry, dict) else None) or os.environ.get("INTERLOCK_URL")
    if not url:
        if not at_terminal():
            raise CommandFailed("no service URL", ExitCode.USAGE, next="Give it with --url.")
        sys.stderr.write("URL of the service: ")
        sys.stderr.flush()
        url = sys.stdin.readline().strip()
    return check_url(str(url))


def type_keys(kinds: list[KeyKind] | tuple[KeyKind, ...], *, must: bool) -> dict[KeyKind, str]:
    """Keys that a person types unseen; Enter skips one unless it `must` be given."""
    found: dict[KeyKind, str] = {}
    for kind in kinds:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", GetPassWarning)
                typed = getpass(f"{kind} key{'' if must else ' (Enter: none)'}: ")
        except GetPassWarning:
            advice = "Give it on standard input: interlock login --key-… < file"
            raise CommandFailed("the key would be seen while it is typed", ExitCode.USAGE, next=advice) from None
        except EOFError:
            raise CommandFailed("nothing was written", ExitCode.DECLINED) from None
        if typed.strip() or must:
            found[kind] = read_key(kind, typed)
    return found


def read_keys(kinds: list[KeyKind]) -> dict[KeyKind, str]:
    """Keys of standard input, a line for each kind."""
    if not kinds:
        advice = "Name what it holds, a line each: --key-producer, --key-worker, --key-operator, --key-metrics, --key-admin."
        raise CommandFailed("standard input is no terminal, and no kind of key is named", ExitCode.USAGE, next=advice)
    lines = sys.stdin.buffer.read().decode("utf-8", "replace").split("\n") if sys.stdin is not None else []
    lines = [line for line in lines if line.strip()]
    if len(lines) != len(kinds):
        wanted = f"{len(kinds)} ({', '.join(kinds)})"
        raise CommandFailed(f"standard input holds {len(lines)} lines with a key, not {wanted}", ExitCode.USAGE)
    return {kind: read_key(kind, line) for kind, line in zip(kinds, lines)}  # noqa: B905 (lengths are equal)


def read_key(kind: KeyKind, typed: str) -> str:
    """The key in the form that a client takes. Raises ConfigurationError, which does not quote it."""
    if not typed.strip():
        raise ConfigurationError(f"the {kind} key is empty")
    return find_key(typed, kind).reveal()


def check_key(session: Session, url: str, kind: KeyKind, key: str) -> None:
    """Raise what the service says of a key that it does not take; one that cannot be asked is told, and no hindrance."""
    from interlock.client import Client

    client = Client(url, key, kind=kind, timeout=session.patience)
    try:
        client.request("GET", "/v1/config")
    except ApiError as error:
        if error.status in (401, 403):
            advice = f"Nothing was written to {profiles_path()}; --no-check writes it all the same."
            raise CommandFailed(f"the {kind} key: {error.detail or error.code}", ExitCode.DENIED, next=advice) from None
        session.out.notice(f"the {kind} key could not be checked: {error}")
    except ConfigurationError:
        raise
    except InterlockError as error:
        session.out.notice(f"the {kind} key could not be checked: {error}")
    finally:
        client.close()
