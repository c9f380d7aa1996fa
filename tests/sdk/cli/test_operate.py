"""What an operator does from the command line: reruns, bulk calls, pauses, workers, keys, limits, the trail."""

from __future__ import annotations

import os
import pty
import uuid

import pytest

from sdk.cli.command import Cli
from sdk.cli.conftest import RunHere
from sdk.conftest import Answer, ScriptedServer
from sdk.live import Live
from support.waiting import wait_until


def test_rerun_with_its_own_or_another_input(cli: Cli, here: RunHere, live: Live) -> None:
    live.start(lambda inp, ctx: {"input": inp, "key": ctx.effect_key("mail")})
    first = live.submit({"n": 2**70})
    live.wait(first)
    key = f"again-{first}"
    again = cli.run("tasks", "rerun", first, "--keep-effect-keys", "--idempotency-key", key, "--json", expect=0).json
    assert again["rerunOf"] == first
    assert live.wait(again["id"]).result == {"input": {"n": 2**70}, "key": f"{first}/mail"}
    assert here("tasks", "rerun", first, "--keep-effect-keys", "--idempotency-key", key, expect=0).out.split()[0] == again["id"]
    other = here("tasks", "rerun", first, "--input", "[1]", expect=0).out.split()[0]
    assert live.wait(other).result == {"input": [1], "key": f"{other}/mail"}
    listed = here("tasks", "list", "--rerun-of", first, "--json", expect=0).json["items"]
    assert {item["id"] for item in listed} == {again["id"], other}
    waiting = live.submit(delay=3600)
    assert here("tasks", "rerun", waiting, "--json", expect=10).json["error"]["code"] == "TASK_NOT_FINISHED"
    assert "not JSON" in here("tasks", "rerun", first, "-i", "{", expect=2).err


def test_a_rerun_without_an_answer_names_its_key(run_here: RunHere, scripted: ScriptedServer) -> None:
    scripted.answer("POST", "/v1/tasks/x/rerun", Answer(drop=True))
    place = ("--url", scripted.url, "--key", "il_p_1_2", "--patience", "0.3")
    done = run_here("tasks", "rerun", "x", *place, expect=3)
    assert f"--idempotency-key {scripted.seen[0].json['idempotencyKey']}" in done.err


def test_bulk_counts_and_acts(cli: Cli, here: RunHere, live: Live) -> None:
    ids = [live.submit(n, delay=3600) for n in range(3)]
    line = ("tasks", "bulk", "cancel", "--type", f"{live.type}@1", "--status", "queued")
    assert here(*line, "--dry-run", expect=0).out == "3 tasks match\n"
    first = ("--idempotency-key", live.producer.get(ids[0]).idempotency_key)
    assert here(*line, *first, "--dry-run", expect=0).out == "1 task matches\n"
    assert live.producer.get(ids[0]).status == "queued"
    refused = cli.run(*line, expect=2)
    assert "--yes" in refused.err
    assert live.producer.get(ids[0]).status == "queued"
    done = cli.run(*line, "--yes", "--json", "--call-key", f"stop-{live.type}", expect=0).json
    assert (done["matched"], done["changed"], done["skipped"], done["more"], done["dryRun"]) == (3, 3, 0, False, False)
    assert "made before" in here(*line, "--yes", "--call-key", f"stop-{live.type}", expect=0).err
    rerun = here("tasks", "bulk", "rerun", "--type", live.type, "--created-after", "1h", "--yes", expect=0)
    assert rerun.out.startswith("3 of 3 tasks rerun")
    assert len(list(live.producer.list(type=live.type))) == 6


def test_bulk_wants_a_filter_or_all(run_here: RunHere) -> None:
    assert "--all" in run_here("tasks", "bulk", "cancel", "--yes", expect=2).err
    assert "contradict" in run_here("tasks", "bulk", "rerun", "--all", "--pool", "x", "--yes", expect=2).err


@pytest.mark.parametrize(("answer", "code", "status"), [(b"y\n", 0, "cancelled"), (b"\n", 14, "queued"), (b"\x04", 14, "queued")])
def test_bulk_asks_at_a_terminal(cli: Cli, live: Live, answer: bytes, code: int, status: str) -> None:
    task = live.submit(delay=3600)
    ours, theirs = pty.openpty()
    try:
        with cli.start("tasks", "bulk", "cancel", "--type", live.type, "--json", stdin=theirs) as process:
            assert process.stderr is not None
            asked = process.stderr.read(len("1 task match; cancel those of them that can be? [y/N] "))
            assert asked.endswith(b"[y/N] ")
            os.write(ours, answer)
            out, err = process.communicate(timeout=30)
    finally:
        os.close(ours)
        os.close(theirs)
    assert process.returncode == code, err
    assert b"Traceback" not in err
    assert live.producer.get(task).status == status
    assert b'"changed": 1' in out if code == 0 else b'"declined"' in out


def test_pause_and_resume_a_type(cli: Cli, here: RunHere, live: Live) -> None:
    live.start(lambda inp, ctx: inp)
    name = f"{live.type}@1"
    paused = cli.run("tasks", "pause", name, expect=0)
    assert (paused.out, "warning" in paused.err) == (f"{name} is paused\n", False)
    assert "nothing changed" in here("tasks", "pause", name, expect=0).err
    task = live.submit("x")
    assert "paused" in here("tasks", "get", task, expect=0).out
    assert here("tasks", "resume", name, "--json", expect=0).json["paused"] is False
    assert live.wait(task).result == "x"
    assert "@1" in here("tasks", "pause", live.type, expect=2).err
    assert "group/name" in here("tasks", "pause", "no-type@1", expect=2).err
    other = here("tasks", "pause", f"{live.type}@7", expect=0)
    assert f"warning: no worker ever registered the type {live.type}@7" in other.err
    here("tasks", "resume", f"{live.type}@7", expect=0)
    here("tasks", "pause", expect=2)
    here("tasks", "pause", name, "--project", expect=2)


def test_pause_and_resume_the_project(here: RunHere, live: Live) -> None:
    live.start(lambda inp, ctx: inp)
    try:
        assert here("tasks", "pause", "--project", "--json", expect=0).json["paused"] is True
        task = live.submit("x")
        assert "paused" in here("tasks", "get", task, expect=0).out
    finally:
        assert here("tasks", "resume", "--project", expect=0).out == "the project runs\n"
    assert live.wait(task).result == "x"


def test_a_worker_is_shown_drained_and_removed(cli: Cli, here: RunHere, live: Live) -> None:
    worker = live.start(lambda inp, ctx: inp, max_concurrent=3)
    name = worker.worker_id
    wait_until(lambda: name in {item["workerId"] for item in here("workers", "list", "--all", "--json", expect=0).json["items"]})
    shown = cli.run("workers", "show", name, expect=0).out
    assert all(part in shown for part in (name, f"{live.type}@1 (idempotent)", "0 of 3 used", worker.instance_id))
    assert here("workers", "show", name, "--json", expect=0).json["instances"][0]["instanceId"] == worker.instance_id
    assert here("workers", "drain", name, expect=0).out == f"draining {worker.instance_id}\n"
    assert worker.join(timeout=20)
    assert "online" in here("workers", "drain", name, expect=0).err
    assert here("workers", "remove", name, expect=0).out == f"{name} removed\n"
    assert "nothing changed" in here("workers", "remove", name, "--json", expect=0).err
    here("workers", "show", f"no-{name}", expect=4)


def test_limits(cli: Cli, here: RunHere, live: Live) -> None:
    key = f"limit-{live.type}"
    assert cli.run("limits", "set", key, "0", expect=0).out == f"{key}: at most 0\n"
    assert "nothing changed" in here("limits", "set", key, "0", expect=0).err
    assert {"key": key, "limit": 0, "held": 0} in here("limits", "list", "--json", expect=0).json["items"]
    assert [line.split() for line in here("limits", "list", expect=0).out.splitlines() if key in line] == [[key, "0", "0"]]
    assert here("limits", "drop", key, "--json", expect=0).json["limit"] is None
    try:
        assert here("limits", "rate", "1000", expect=0).out == "submits of each key: 1000 a second, 1000 at once\n"
        assert here("limits", "list", "--json", expect=0).json["rate"] == {"perSecond": 1000, "burst": 1000}
    finally:
        assert here("limits", "rate", "none", expect=0).out == "submits are not limited\n"
    here("limits", "rate", "fast", expect=2)
    here("limits", "rate", "none", "--burst", "3", expect=2)


def test_a_key_is_rotated_and_the_trail_tells(cli: Cli, here: RunHere) -> None:
    made = here("keys", "new", "ci", "--kind", "task-producer", "--json", expect=0).json
    line = ("keys", "rotate", made["id"], "--overlap", "5m", "--idempotency-key", str(uuid.uuid4()))
    done = cli.run(*line, expect=0)
    new = done.out.strip()
    assert new.startswith("il_")
    assert new not in done.err
    assert "5m" in done.err
    for key in (made["key"], new):
        here("tasks", "list", "--limit", "1", "--key", key, expect=0)
    assert "told only once" in here(*line, expect=10).err
    here("keys", "rotate", made["id"], "--overlap", "soon", expect=2)
    entries = here("audit", "--limit", "200", "--json", expect=0).json["items"]
    assert any(entry["target"] == made["id"] and "rotate" in entry["action"] for entry in entries)
    told = here("audit", "--limit", "20", expect=0).out
    assert told.split()[:5] == ["AT", "KEY", "ACTION", "TARGET", "DETAIL"]
    assert new not in told
    here("audit", "--key", made["key"], expect=5)
