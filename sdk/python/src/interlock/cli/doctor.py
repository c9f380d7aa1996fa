"""`interlock tasks doctor`: what is wrong, and what to do about it.

service_checks   the URL, the host, each key, the clock, the service's own account of its health
spool_checks     what finished here and is not delivered
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from interlock.cli.findings import Finding, worst
from interlock.cli.service_checks import check_service
from interlock.cli.session import Session
from interlock.cli.spool_checks import check_spool, find_spools, no_spool
from interlock.cli.values import read_path


def doctor(
    session: Session,
    spool: Annotated[
        list[str] | None, typer.Option(metavar="DIR", help="A worker's spool; may be repeated. Default: those of this user.")
    ] = None,
) -> int:
    """Look at the service, the keys and the spools; say what is wrong and what to do. The exit status tells the worst."""
    findings: list[Finding] = []
    told: dict[str, Any] = {}
    with session.out.status("looking at the service"):
        findings += check_service(session, told)
    found = [read_path(given) for given in spool] if spool else find_spools()
    findings += [finding for folder in found for finding in check_spool(folder)] or [no_spool()]
    code = worst(findings)
    if session.out.json:
        order = ("ok", "warning", "error")
        severity = max((finding.severity for finding in findings), key=order.index)
        answer = {"severity": severity, "exitCode": int(code), "findings": [finding.to_json() for finding in findings], **told}
        session.out.document(answer)
    else:
        show(session, findings)
    return code


def show(session: Session, findings: list[Finding]) -> None:
    """The findings as a table; what to do stands below each."""
    rows: list[list[str]] = []
    for finding in findings:
        rows.append([finding.severity, finding.check, finding.fact])
        if finding.next:
            rows.append(["", "", f"to do: {finding.next}"])
    width = max(len(finding.check) for finding in findings)
    session.out.table((), rows, widths=[7, width, 0])
    bad = [finding for finding in findings if finding.severity != "ok"]
    session.out.lines("", f"{len(bad)} of {len(findings)} need attention." if bad else "All is well.")
