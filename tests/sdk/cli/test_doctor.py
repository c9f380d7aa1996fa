"""`interlock tasks doctor`: what is wrong, what to do, and a status by the worst of it."""

from __future__ import annotations

import json
import os
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sdk.cli.command import Cli, Done
from sdk.conftest import Answer, ScriptedServer, Seen

TOKEN = "1.lease-token-SECRET"


def findings(done: Done) -> dict[str, dict[str, Any]]:
    """The findings by their check; the worst of each."""
    order = ["ok", "warning", "error"]
    found: dict[str, dict[str, Any]] = {}
    for finding in done.json["findings"]:
        known = found.get(finding["check"])
        if known is None or order.index(finding["severity"]) > order.index(known["severity"]):
            found[finding["check"]] = finding
    assert done.json["severity"] == max((finding["severity"] for finding in found.values()), key=order.index)
    assert done.json["exitCode"] == done.code
    assert all(finding.get("next") for finding in found.values() if finding["severity"] != "ok")
    return found


def record(folder: Path, name: str = "1.json", **changed: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    item = {
        "taskId": "task-1",
        "attemptId": "attempt-1",
        "fence": 1,
        "leaseToken": TOKEN,
        "outcome": "succeeded",
        "result": 1,
        **changed,
    }
    path = folder / name
    path.write_text(json.dumps({"version": 1, "savedAt": 0, "completions": [item]}))
    return path


def test_a_working_service_and_its_keys(cli: Cli) -> None:
    done = cli.run("tasks", "doctor", "--json")
    found = findings(done)
    names = [
        "service",
        *(f"key {kind}" for kind in ("task-producer", "task-worker", "operator", "admin")),
        "clock",
        "project",
        "release",
        "sweep",
        "stream",
    ]
    assert {name: found[name]["severity"] for name in names} == dict.fromkeys(names, "ok")
    assert "the service (" in found["clock"]["fact"]
    service = done.json["service"]
    assert found["release"]["fact"] == f"{service['version']}, schema {service['schemaVersion']}, epoch {service['epoch']}"
    assert service["epoch"] >= 1
    for value in cli.environment.values():
        assert value.startswith("http") or value not in done.out + done.err


def test_b80_a_dead_host_a_wrong_key_and_an_unreadable_spool_differ(cli: Cli, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        dead = cli.run("tasks", "doctor", "--json", "--url", url, "--patience", "0.3")
    assert dead.code == 3
    assert "scripts/dev" in findings(dead)["service"]["next"]

    worker, unknown = cli.environment["INTERLOCK_WORKER_KEY"], "il_o_nothing"
    wrong = cli.run("tasks", "doctor", "--json", env={"INTERLOCK_PRODUCER_KEY": worker, "INTERLOCK_OPERATOR_KEY": unknown})
    assert wrong.code == 5
    found = findings(wrong)
    assert "holds a key of the kind task-worker" in found["key task-producer"]["fact"]
    assert "UNAUTHENTICATED" in found["key operator"]["fact"]
    assert found["key task-worker"]["severity"] == "ok"

    record(tmp_path / "spool").write_text("{")
    spoilt = cli.run("tasks", "doctor", "--json", "--spool", str(tmp_path / "spool"))
    assert spoilt.code == 13
    assert "1.json (it is not JSON)" in findings(spoilt)["spool spool"]["fact"]
    assert cli.run("tasks", "doctor", "--json", "--spool", str(tmp_path / "absent")).code == 13
    people = cli.run("tasks", "doctor", "--spool", str(tmp_path / "spool"), expect=13)
    assert "to do: " in people.out


def test_spools_are_told_and_left_as_they_are(offline: Cli, tmp_path: Path) -> None:
    home = Path(os.environ["XDG_STATE_HOME"]) / "interlock"
    record(home / "transcriber")
    (home / "transcriber" / "lock").write_text(f"{os.getpid()}\n")
    record(home / "charger", outcome="unknown")
    (home / "charger" / ".writing-1").write_text("")
    record(home / "charger" / "quarantine", "attempt-2.json")
    (home / "charger" / "quarantine" / "attempt-2.reason").write_text("INVALID_REQUEST: \x1b[31mno\n")
    record(home / "charger" / "other-epoch", "attempt-3.json")
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}

    done = offline.run("tasks", "doctor", "--json")
    told = [finding for finding in done.json["findings"] if finding["check"].startswith("spool")]
    text = json.dumps(told)
    assert f"process {os.getpid()} holds it" in text
    assert "unknown of task task-1" in text
    assert "INVALID_REQUEST" in text
    assert "another epoch" in text
    assert [finding["severity"] for finding in told] == ["warning", "warning", "error", "warning", "ok"]
    assert "SECRET" not in done.out + done.err
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before
    assert done.code == 2  # There is no URL; the worst comes first.


def scripted_service(scripted: ScriptedServer, drift: float, **changed: Any) -> dict[str, str]:
    def account(seen: Seen) -> Answer:
        now = datetime.now(UTC)
        body = {
            "databaseTime": (now - timedelta(seconds=drift)).isoformat(), "project": "acme", "queueDepth": 0, "onlineWorkers": 1,
            "debts": {"expiredLeases": 0, "outbox": {"dueWithFreeSlot": 0, "noticesNotDelivered": 0}, "retentionBacklog": 0},
            "lastSweepAt": (now - timedelta(seconds=drift)).isoformat(), "lastRetentionAt": (now - timedelta(seconds=drift)).isoformat(),
        }  # fmt: skip
        return Answer(200, {**body, **changed})

    detail = "this call needs a key of the kind admin; the key given is of the kind task-producer"
    denied = {"code": "SCOPE_DENIED", "status": 403, "detail": detail, "retryable": False}
    scripted.answer("GET", "/healthz", Answer(200, {"status": "ok"}))
    scripted.answer("GET", "/readyz", Answer(200, {"status": "ready"}))
    scripted.answer("GET", "/v1/config", Answer(200, {"streamUrl": None, "pollSeconds": 5}))
    scripted.answer("GET", "/v1/projects", Answer(403, denied))
    scripted.answer("GET", "/v1/doctor", account)
    return {"INTERLOCK_URL": scripted.url, "INTERLOCK_PRODUCER_KEY": "il_p_1_2"}


@pytest.mark.parametrize(("drift", "words"), [(90.0, "ahead of the service (+9"), (-90.0, "behind the service (-")])
def test_clock_drift_has_a_sign(offline: Cli, scripted: ScriptedServer, drift: float, words: str) -> None:
    done = offline.run("tasks", "doctor", "--json", env=scripted_service(scripted, drift))
    assert done.code == 11
    clock = findings(done)["clock"]
    assert words in clock["fact"]
    assert "NTP" in clock["next"]


def test_debts_are_told(offline: Cli, scripted: ScriptedServer) -> None:
    debts = {
        "expiredLeases": 3,
        "outbox": {"dueWithFreeSlot": 2, "oldestSeconds": 40.0, "noticesNotDelivered": 6},
        "retentionBacklog": 5,
    }
    settings = scripted_service(
        scripted, 0.0, debts=debts, queueDepth=7, onlineWorkers=0, outcomeUnknown=4, lastSweepAt="2026-01-01T00:00:00Z",
        lastRetentionAt=None, oldestTransactionSeconds=900, streamLagSeconds=30,
        brokenSchedules=[{"owner": "reporter", "name": "nightly", "message": "the time zone 'Mars/Base' is not known", "at": None}],
    )  # fmt: skip
    done = offline.run("tasks", "doctor", "--json", env=settings)
    assert done.code == 12
    found = findings(done)
    severe = {name: finding["severity"] for name, finding in found.items() if finding["severity"] != "ok"}
    assert severe == {
        "queue": "warning", "unknown": "warning", "debts": "error", "sweep": "error", "retention": "warning", "database": "warning",
        "stream lag": "warning", "schedules": "error",
    }  # fmt: skip
    assert "nightly of reporter does not fire: the time zone 'Mars/Base'" in found["schedules"]["fact"]
    assert "7 tasks are due" in found["queue"]["fact"]
    assert "interlock tasks resolve" in found["unknown"]["next"]


def test_all_is_well(offline: Cli, scripted: ScriptedServer) -> None:
    done = offline.run("tasks", "doctor", env=scripted_service(scripted, 0.0), expect=0)
    assert done.out.splitlines()[-1] == "All is well."
