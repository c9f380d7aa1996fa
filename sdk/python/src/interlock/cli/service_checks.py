"""The doctor's look at the service: can it be reached, which keys work, what does it say of itself."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from interlock.cli.exits import ExitCode, refusal_code
from interlock.cli.findings import Finding, fault, warn, well
from interlock.cli.health import check_health, seconds_of
from interlock.cli.session import Session, has_key
from interlock.errors import ApiError, ConfigurationError, InterlockError, Unreachable
from interlock.settings import KEY_VARIABLES, KeyKind, find_url, same_security
from interlock.tasks import read_time

if TYPE_CHECKING:
    from interlock.client import Client

PATIENCE = 5.0
"""Seconds for one question: a doctor that hangs is a finding less."""

NO_KEY = "none"
"""Sent where no key is set: /healthz asks for none."""

DRIFT_SECONDS = 5.0
"""Clock differences below this harm nothing: no time of a client decides, except an absolute one that a caller chose."""

KINDS: tuple[KeyKind, ...] = ("task-producer", "task-worker", "operator", "metrics", "admin")


def check_service(session: Session, told: dict[str, Any]) -> Iterator[Finding]:
    """All about the service. Its own account goes into `told`, for programs."""
    from interlock.client import Client

    try:
        url = find_url(session.url, session.profile)
        keys = [(kind, f"key {kind}") for kind in KINDS if has_key(kind, session.profile)]
    except ConfigurationError as error:
        yield fault("settings", str(error), "Set INTERLOCK_URL, or give --url.", ExitCode.USAGE)
        return
    reached = check_reach(Client(url, NO_KEY, timeout=min(session.patience, PATIENCE)))
    yield reached
    if reached.severity == "error":
        return
    clients: list[Client] = []
    if session.key:
        keys = [("task-producer", "--key")]
    for kind, name in keys:
        yield check_key(session, url, kind, name, clients)
    if not keys:
        variables = ", ".join(KEY_VARIABLES[kind] for kind in KINDS[:3])
        yield warn("keys", "no key is set", f"Set one of {variables}: without one the service tells nothing of itself.")
    yield from check_accounts(clients, told)


def check_reach(client: Client) -> Finding:
    """Whether something that is the service answers at the URL, and has its database."""
    try:
        client.request("GET", "/healthz")
        client.request("GET", "/readyz")
    except Unreachable as error:
        return fault("service", f"{client.url}: {error}", advise_reach(str(error)), ExitCode.UNREACHABLE)
    except ApiError as error:
        advice = error.next or "Look at the service's own log; if it has just started, wait a moment."
        code = refusal_code(error)
        return fault(
            "service", f"{client.url}: {error.code} ({error.status}): {error.detail}", advice, max(code, ExitCode.UNREACHABLE)
        )
    except ConfigurationError as error:
        return fault("service", str(error), "Correct the service URL.", ExitCode.USAGE)
    return well("service", f"{client.url} answers and has its database")


def advise_reach(text: str) -> str:
    """What to do about a host that gives no answer, by what the network said."""
    low = text.lower()
    if "certificate" in low or "ssl" in low:
        return "The certificate is not trusted: for a private authority set SSL_CERT_FILE to its file."
    if "name or service" in low or "getaddrinfo" in low or "name resolution" in low or "nodename" in low:
        return "The host's name is not known here: check the URL for a typing error, and the DNS of this machine."
    if "proxy" in low:
        return "Check HTTPS_PROXY and NO_PROXY."
    if "refused" in low:
        return "Nothing listens there: start the service (./scripts/dev prints its URL), or correct the URL."
    return "Check the URL, the network, firewalls, and HTTPS_PROXY if there is a proxy."


def check_key(session: Session, url: str, kind: KeyKind, name: str, clients: list[Client]) -> Finding:
    """Whether the key works, and is of the kind that its place says. Working ones are added to `clients`."""
    from interlock.client import Client

    try:
        client = Client(url, session.key, kind=kind, profile=session.profile, timeout=min(session.patience, PATIENCE))
        client.request("GET", "/v1/config")
        found = find_kind(client)
    except ConfigurationError as error:
        return fault(name, str(error), f"Set {KEY_VARIABLES[kind]} again.", ExitCode.USAGE)
    except ApiError as error:
        code = refusal_code(error)
        advice = (
            error.next
            if code is not ExitCode.DENIED
            else f"{error.next} An operator makes one: interlock keys new NAME --kind {kind}"
        )
        return fault(name, f"{error.code} ({error.status}): {error.detail}", advice, code)
    except Unreachable as error:
        return fault(name, str(error), "Run the doctor again.", ExitCode.UNREACHABLE)
    clients.append(client)
    if session.key:
        return well(name, f"works; it is of the kind {found or 'unknown'}")
    if found not in (None, kind):
        fact = f"{KEY_VARIABLES[kind]} holds a key of the kind {found}; what needs a {kind} key is refused (SCOPE_DENIED)"
        return fault(name, fact, f"Put a {kind} key there, and this one into {KEY_VARIABLES[str(found)]}.", ExitCode.DENIED)
    return well(name, "works")


def find_kind(client: Client) -> str | None:
    """The kind of a working key: asked for what only an admin may, the service names the kind that it was given."""
    try:
        client.request("GET", "/v1/projects", params={"limit": 1})
    except ApiError as error:
        if error.code != "SCOPE_DENIED":
            return None
        needed, _, given = error.detail.rpartition("given")
        return next((kind for kind in KINDS if kind in given), None) if needed else None
    return "admin"


def check_accounts(clients: list[Client], told: dict[str, Any]) -> Iterator[Finding]:
    """What the service says to each key: its clock, its debts, its stream, the keys' projects."""
    accounts: dict[str, dict[str, Any]] = {}
    for client in clients:
        try:
            sent = time.time()
            account = client.request("GET", "/v1/doctor")
            middle = (sent + time.time()) / 2
        except ApiError:  # A metrics or admin key may not ask.
            continue
        except InterlockError as error:
            yield fault("doctor", str(error), "Run the doctor again.", ExitCode.UNREACHABLE)
            return
        if not accounts:
            yield check_clock(account, middle)
        accounts[client.kind] = account
    projects = {kind: str(account.get("project")) for kind, account in accounts.items()}
    if len(set(projects.values())) > 1:
        fact = "the keys are of several projects: " + ", ".join(f"{kind} of {name}" for kind, name in projects.items())
        yield warn("project", fact, "A worker never sees the tasks of another project: use keys of one.")
    elif projects:
        yield well("project", next(iter(projects.values())))
    whole = next((account for account in accounts.values() if "debts" in account), None)
    told["service"] = whole or next(iter(accounts.values()), None)
    if whole is not None:
        yield from check_health(whole)
    if clients:
        yield check_stream(clients[0])


def check_clock(account: Mapping[str, Any], middle: float) -> Finding:
    """This machine's clock against the database's, with the sign."""
    at = read_time(account.get("databaseTime"))
    if at is None:
        return warn("clock", "the service does not tell its time", "Update the service.")
    drift = (datetime.fromtimestamp(middle, timezone.utc) - at).total_seconds()
    side = "ahead of" if drift >= 0 else "behind"
    fact = f"this machine is {seconds_of(abs(drift))} {side} the service ({drift:+.3f} s)"
    if abs(drift) < DRIFT_SECONDS:
        return well("clock", fact)
    return warn(
        "clock", fact, "Set this machine's clock (NTP): leases are safe, but --run-at and times in logs are off by as much."
    )


def check_stream(client: Client) -> Finding:
    """Whether the host of the stream can be reached; without it, workers poll."""
    try:
        config = client.request("GET", "/v1/config")
        url = config.get("streamUrl")
        if not isinstance(url, str):
            return well("stream", f"none; workers poll every {config.get('pollSeconds')} s")
        if not same_security(client.url, url):
            return fault(
                "stream",
                f"{url} is not https, and the service is",
                "The key is not sent there: correct the service's stream URL.",
            )
        client.request("GET", "/healthz", url=url)
    except ApiError as error:
        if not error.code.startswith("HTTP_"):
            return well("stream", "its host answers")
        return warn("stream", f"{error.code}: {error.detail}", "Check what stands at the stream's URL; until then workers poll.")
    except InterlockError as error:
        return warn("stream", str(error), "Workers poll until it answers: work starts later, and none is lost.")
    return well("stream", f"{url} answers")
