"""What the doctor found: one thing each, how bad it is, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from interlock.cli.exits import ExitCode

Severity = Literal["ok", "warning", "error"]

PRECEDENCE = (ExitCode.UNREACHABLE, ExitCode.DENIED, ExitCode.USAGE, ExitCode.SPOOL, ExitCode.BROKEN, ExitCode.ATTENTION)
"""Of several findings the first of these is the exit status: the one to repair first."""


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `next` is what to do about it; `code` the exit status if this is the worst."""

    check: str
    severity: Severity
    fact: str
    next: str = ""
    code: ExitCode = ExitCode.OK

    def to_json(self) -> dict[str, Any]:
        """The finding for programs."""
        facts: dict[str, Any] = {"check": self.check, "severity": self.severity, "fact": self.fact}
        if self.next:
            facts["next"] = self.next
        return facts


def well(check: str, fact: str) -> Finding:
    """All is well here."""
    return Finding(check, "ok", fact)


def warn(check: str, fact: str, next: str) -> Finding:
    """Somebody should look."""
    return Finding(check, "warning", fact, next, ExitCode.ATTENTION)


def fault(check: str, fact: str, next: str, code: ExitCode = ExitCode.BROKEN) -> Finding:
    """This does not work."""
    return Finding(check, "error", fact, next, code)


def worst(findings: Iterable[Finding]) -> ExitCode:
    """The exit status for all of them."""
    codes = {finding.code for finding in findings}
    return next((code for code in PRECEDENCE if code in codes), ExitCode.OK)
