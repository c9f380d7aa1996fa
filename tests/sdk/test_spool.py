"""Outcomes on disk: B61 in full, locks, verdicts, what a restart finds."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from interlock import SpoolError, SpoolLocked
from interlock import spool as spool_module
from interlock.outcome import Outcome
from interlock.spool import Spool, default_spool


def make_outcome(number: int, result: Any = None) -> Outcome:
    ids = {"taskId": f"t-{number}", "attemptId": f"a-{number}", "fence": 1, "leaseToken": f"token-{number}"}
    body = json.dumps({**ids, "outcome": "succeeded", "result": result}).encode()
    return Outcome(ids["taskId"], ids["attemptId"], body, "succeeded")


def records(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"))


def test_a_batch_is_one_file_that_goes_with_its_last_outcome(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    outcomes = [make_outcome(number) for number in range(50)]
    spool.save(outcomes)
    spool.save(outcomes)  # saved already: nothing is written twice
    [path] = records(spool.folder)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(spool.folder.stat().st_mode) == 0o700
    for outcome in outcomes[:-1]:
        spool.settle(outcome)
    assert path.exists()
    spool.settle(outcomes[-1])
    assert records(spool.folder) == []
    spool.close()


def test_outcomes_survive_their_process(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.save([make_outcome(1, {"id": 2**53 + 1}), make_outcome(2)])
    spool.save([make_outcome(3)])
    spool.close()
    again = Spool(tmp_path)
    found = again.load()
    assert [outcome.attempt_id for outcome in found] == ["a-1", "a-2", "a-3"]
    assert json.loads(found[0].body)["result"] == {"id": 2**53 + 1}
    for outcome in found:
        again.settle(outcome)
    assert records(tmp_path) == []
    again.close()


def test_b61_bad_records_are_set_aside_and_the_good_ones_go_on(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.save([make_outcome(1)])
    spool.save([make_outcome(2)])
    good = records(tmp_path)
    whole = good[0].read_bytes()
    (tmp_path / "00-empty.json").write_bytes(b"")
    (tmp_path / "01-truncated.json").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "02-not-json.json").write_bytes(b"\xff\x00 hello")
    (tmp_path / "03-version.json").write_text('{"version": 99, "completions": []}')
    (tmp_path / "04-list.json").write_text("[]")
    (tmp_path / "05-item.json").write_text('{"version": 1, "completions": [{"taskId": "t"}]}')
    (tmp_path / "06-folder.json").mkdir()
    (tmp_path / ".writing-abc").write_bytes(whole[:10])
    spool.close()
    again = Spool(tmp_path)
    assert [outcome.attempt_id for outcome in again.load()] == ["a-1", "a-2"]
    quarantine = tmp_path / "quarantine"
    assert len(list(quarantine.glob("*.reason"))) == 8
    assert (quarantine / "00-empty.json.reason").read_text() == "cannot be read: it is empty\n"
    assert records(tmp_path) == good
    again.close()


@pytest.mark.parametrize("fault", ['"\\ud800"', "NaN", "1e999", '{"\\ud800": 1}'])
def test_b61_an_outcome_that_json_cannot_carry_is_set_aside_alone(tmp_path: Path, fault: str) -> None:
    spool = Spool(tmp_path)
    spool.save([make_outcome(1, "MARK"), make_outcome(2)])
    spool.save([make_outcome(3, "MARK")])
    for path in records(tmp_path):
        path.write_text(path.read_text().replace('"MARK"', fault))
    (mixed, alone) = records(tmp_path)
    spool.close()
    again = Spool(tmp_path)
    [good] = again.load()
    assert good.attempt_id == "a-2"
    quarantine = tmp_path / "quarantine"
    assert "is not JSON" in (quarantine / f"{mixed.stem}-0.reason").read_text()
    assert json.loads((quarantine / f"{mixed.stem}-0.json").read_bytes())["completions"][0]["attemptId"] == "a-1"
    assert (quarantine / alone.name).exists()
    again.settle(good)
    assert records(tmp_path) == []
    again.close()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_b61_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("{}")
    spool = Spool(tmp_path / "spool")
    os.mkfifo(spool.folder / "00-pipe.json")
    (spool.folder / "01-link.json").symlink_to(elsewhere)
    (spool.folder / "02-loop.json").symlink_to("02-loop.json")
    spool.save([make_outcome(1)])
    assert [outcome.attempt_id for outcome in spool.load()] == ["a-1"]
    reasons = sorted((spool.folder / "quarantine").glob("*.reason"))
    assert [path.read_text() for path in reasons] == ["cannot be read: it is no regular file\n"] * 3
    assert elsewhere.read_text() == "{}"
    spool.close()


@pytest.mark.parametrize("attempt_id", ["../../escaped", "/tmp/escaped", "..", "", "a\x00b", "x" * 400, ".hidden", "é\ud800"])
def test_no_id_leads_out_of_the_quarantine(tmp_path: Path, attempt_id: str) -> None:
    outer = tmp_path / "outer"
    spool = Spool(outer / "spool")
    outcome = make_outcome(1)
    outcome.attempt_id = attempt_id
    spool.save([outcome])
    spool.quarantine(outcome, "refused")
    assert records(spool.folder) == []
    assert len(list((spool.folder / "quarantine").glob("*.json"))) == 1
    assert [path.name for path in outer.iterdir()] == ["spool"]
    assert sorted(path.name for path in spool.folder.iterdir()) == ["lock", "quarantine"]
    spool.close()


def test_what_is_in_quarantine_is_not_overwritten(tmp_path: Path) -> None:
    for text in ("first", "second"):
        spool = Spool(tmp_path)
        (tmp_path / "record.json").write_text(text)
        assert spool.load() == []
        spool.close()
    kept = [path.read_text() for path in (tmp_path / "quarantine").iterdir() if path.suffix != ".reason"]
    assert sorted(kept) == ["first", "second"]


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_b61_the_file_is_synced_before_its_rename_and_the_folder_after(tmp_path: Path) -> None:
    program = (
        "import sys; from interlock.spool import Spool; from interlock.outcome import Outcome;"
        "Spool(sys.argv[1]).save([Outcome('t', 'a', b'{}', 'succeeded')])"
    )
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-o", str(trace), "-e", "trace=openat,fsync,rename,renameat,renameat2"]
    subprocess.run([*command, sys.executable, "-c", program, str(tmp_path / "spool")], check=True, timeout=60)
    names = [
        line.split("(")[0].split()[-1] for line in trace.read_text().splitlines()
        if "fsync(" in line or ("rename" in line and ".writing-" in line)
    ]  # fmt: skip
    assert names in (["fsync", "rename", "fsync"], ["fsync", "renameat", "fsync"], ["fsync", "renameat2", "fsync"])


def test_b61_the_order_of_syncs_without_a_tracer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path)
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def note_sync(descriptor: int) -> None:
        steps.append("sync folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "sync file")
        fsync(descriptor)

    def note_replace(self: Path, target: Path) -> Path:
        steps.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_replace)
    spool.save([make_outcome(number) for number in range(100)])
    assert steps == ["sync file", "rename", "sync folder"]
    spool.close()


def test_b61_a_full_disk_leaves_no_half_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path)

    def full(path: Path, data: bytes) -> None:
        path.write_bytes(data[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(spool_module, "write_and_sync", full)
    outcome = make_outcome(1)
    with pytest.raises(OSError, match="No space"):
        spool.save([outcome])
    with pytest.raises(OSError, match="No space"):
        spool.check()
    assert outcome.file is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock"]
    monkeypatch.undo()
    spool.check()
    spool.save([outcome])
    assert len(records(tmp_path)) == 1
    spool.close()


def test_b61_a_folder_serves_one_process(tmp_path: Path) -> None:
    held = Spool(tmp_path)
    program = (
        "import sys; from interlock import SpoolLocked; from interlock.spool import Spool\n"
        "try: Spool(sys.argv[1])\n"
        "except SpoolLocked as error: print(error)"
    )
    told = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60, capture_output=True, text=True)
    assert f"is used by another worker (process {os.getpid()})" in told.stdout
    held.close()
    Spool(tmp_path).close()


def test_a_folder_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolError, match="cannot be used"):
        Spool(tmp_path / "file" / "spool")


def test_the_default_spool_is_shared_safely_and_inherits(tmp_path: Path) -> None:
    first, second = default_spool(tmp_path / "w"), default_spool(tmp_path / "w")
    assert [first.folder.name, second.folder.name] == ["w", "w-2"]
    second.save([make_outcome(2)])
    second.close()
    first.close()
    again = default_spool(tmp_path / "w")
    assert again.folder.name == "w"
    assert [outcome.attempt_id for outcome in again.load()] == ["a-2"]
    again.close()
    held = [default_spool(tmp_path / "x") for _ in range(64)]
    with pytest.raises(SpoolLocked):
        default_spool(tmp_path / "x")
    for spool in held:
        spool.close()


def test_refused_outcomes_are_kept_with_the_reason(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    refused, foreign = make_outcome(1), make_outcome(2)
    spool.save([refused, foreign])
    spool.quarantine(refused, "INVALID_REQUEST (400): no \x00 luck")
    spool.set_aside(foreign, "EPOCH_CHANGED (409)")
    assert records(tmp_path) == []
    assert json.loads((tmp_path / "quarantine" / "a-1.json").read_bytes())["completions"][0]["attemptId"] == "a-1"
    assert "INVALID_REQUEST" in (tmp_path / "quarantine" / "a-1.reason").read_text()
    assert (tmp_path / "other-epoch" / "a-2.json").exists()
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in tmp_path.glob("*/*"))
    assert spool.load() == []
    spool.close()


def test_b68_an_outcome_shows_no_token() -> None:
    assert "token-1" not in repr(make_outcome(1))
