"""The service's own account of its health, judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from interlock.cli.findings import Finding, fault, warn, well
from interlock.tasks import read_time

SWEEP_SECONDS = 300.0
RETENTION_SECONDS = 3 * 3600.0
TRANSACTION_SECONDS = 60.0
LAG_SECONDS = 5.0


def check_health(account: Mapping[str, Any]) -> Iterator[Finding]:
    """What runs there; the queue, the debts and the scheduled work of the service."""
    if account.get("version"):
        release = f"{account['version']}, schema {account.get('schemaVersion')}, epoch {account.get('epoch')}"
        yield well("release", release)
    debts = account.get("debts") or {}
    outbox = debts.get("outbox") or {}
    depth, online = account.get("queueDepth") or 0, account.get("onlineWorkers") or 0
    oldest = account.get("oldestDueAgeSeconds") or 0.0
    if depth and not online:
        fact = f"{depth} tasks are due, the oldest for {seconds_of(oldest)}, and no worker is online"
        yield warn(
            "queue", fact, "Start a worker: interlock worker run MODULE:WORKER; `interlock tasks types` shows who serves what."
        )
    else:
        yield well("queue", f"{count_of(depth, 'task')} due, {count_of(online, 'worker')} online")
    if count := account.get("outcomeUnknown") or 0:
        advice = (
            "Find out what happened, then settle each: interlock tasks list --status outcome-unknown; interlock tasks resolve ID"
        )
        yield warn(
            "unknown",
            f"{count_of(count, 'task')} with an unknown outcome: a person has to settle {'it' if count == 1 else 'them'}",
            advice,
        )
    yield from check_debts(debts, outbox)
    for broken in account.get("brokenSchedules") or ():
        owner = broken.get("owner")
        place = f"the schedule {broken.get('name')} of {owner}" if owner else f"the schedule {broken.get('name')}"
        advice = "Put it again with a rule and a time zone that the service knows: interlock schedules put."
        yield fault("schedules", f"{place} does not fire: {broken.get('message')}", advice)
    yield from check_schedules(account)


def check_debts(debts: Mapping[str, Any], outbox: Mapping[str, Any]) -> Iterator[Finding]:
    """What the service should have done by now."""
    owed = []
    if count := debts.get("expiredLeases") or 0:
        fact = f"{count} leases have expired and are not settled yet"
        owed.append(warn("debts", fact, "The next claim or sweep settles them; if the number stays, look at the sweep below."))
    if count := outbox.get("dueWithFreeSlot") or 0:
        fact = f"{count} tasks are due for {seconds_of(outbox.get('oldestSeconds') or 0)} although a slot for them is free"
        owed.append(
            fault("debts", fact, "Look at the workers' logs: do they claim? `interlock tasks workers` shows when each was seen.")
        )
    if count := outbox.get("noticesNotDelivered") or 0:
        fact = f"{count} children have ended and their parents were not told"
        owed.append(warn("debts", fact, "The next sweep tells them; if the number stays, look at the sweep below."))
    if count := debts.get("retentionBacklog") or 0:
        owed.append(
            warn("debts", f"{count} settled tasks are past their time and not removed", "Look at the retention function's log.")
        )
    yield from owed or [well("debts", "none")]


def check_schedules(account: Mapping[str, Any]) -> Iterator[Finding]:
    """The scheduled functions, transactions that block, the stream's lag."""
    now = read_time(account.get("databaseTime"))
    for check, name, longest in (("sweep", "lastSweepAt", SWEEP_SECONDS), ("retention", "lastRetentionAt", RETENTION_SECONDS)):
        at = read_time(account.get(name))
        advice = f"Look at the schedule and the log of the {check} function."
        if at is None:
            yield warn(check, "has not run yet", f"{advice} On a service that has just started, wait a few minutes.")
        elif now is not None and (age := (now - at).total_seconds()) > longest:
            yield fault(check, f"last ran {seconds_of(age)} ago", advice)
        else:
            yield well(check, f"last ran {account.get(name)}")
    transaction = account.get("oldestTransactionSeconds") or 0.0
    if transaction > TRANSACTION_SECONDS:
        fact = f"a transaction of the database is open for {seconds_of(transaction)}"
        yield warn("database", fact, "Find its owner in pg_stat_activity: it holds locks and keeps old rows.")
    if (lag := account.get("streamLagSeconds") or 0.0) > LAG_SECONDS:
        yield warn("stream lag", seconds_of(lag), "Hints come late; look at the stream's load. Polling still finds the work.")


def count_of(count: int, what: str) -> str:
    """So many of it, in words that fit."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def seconds_of(seconds: float) -> str:
    """A duration in its largest sensible unit."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.3g} s" if abs(seconds) < 100 else f"{seconds:.0f} s"
