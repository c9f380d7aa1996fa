"""`interlock login`: keys reach the profile's file and nothing else."""

from __future__ import annotations

import json
import os
import pty
import socket
import stat
from pathlib import Path

import pytest

from sdk.cli.command import Cli
from sdk.live import Live
from support.dev_service import DevService
from support.waiting import wait_until


@pytest.fixture
def fresh(offline: Cli, tmp_path: Path) -> Cli:
    """The command of a user who never logged in."""
    offline.environment["XDG_CONFIG_HOME"] = str(tmp_path / "config")
    return offline


def profiles(cli: Cli) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = json.loads(profile_file(cli).read_text("utf-8"))
    return found


def profile_file(cli: Cli) -> Path:
    return Path(cli.environment["XDG_CONFIG_HOME"]) / "interlock" / "profiles.json"


def test_a_profile_is_written_and_used(fresh: Cli, live: Live, live_service: DevService) -> None:
    producer, operator = live_service.key("task-producer"), live_service.key("operator")
    given = f"{producer}\r\n{operator}\n".encode()
    done = fresh.run("login", "--url", live.url, "--key-producer", "--key-operator", input=given, expect=0)
    assert producer not in done.out + done.err
    assert operator not in done.out + done.err
    assert stat.S_IMODE(profile_file(fresh).stat().st_mode) == 0o600
    assert stat.S_IMODE(profile_file(fresh).parent.stat().st_mode) == 0o700
    fresh.run("tasks", "list", "--limit", "1", expect=0)
    fresh.run("limits", "list", expect=0)

    worker = live_service.key("task-worker")
    other = fresh.run("login", "--profile", "box", "--url", live.url, "--key-worker", "--json", input=worker.encode(), expect=0)
    assert other.json == {"profile": "box", "url": live.url, "kinds": ["task-worker"], "file": str(profile_file(fresh))}
    assert "--profile box" in other.err
    # The URL and the other keys of a profile stay.
    fresh.run("login", "--key-producer", "--profile", "box", input=producer.encode(), expect=0)
    assert profiles(fresh)["box"] == {"url": live.url, "keys": {"task-worker": worker, "task-producer": producer}}
    assert profiles(fresh)["default"] == {"url": live.url, "keys": {"task-producer": producer, "operator": operator}}
    fresh.run("tasks", "list", "--limit", "1", "--profile", "box", expect=0)
    assert sorted(path.name for path in profile_file(fresh).parent.iterdir()) == ["profiles.json"]


def test_what_is_refused_writes_nothing(fresh: Cli, live: Live) -> None:
    wrong = b"il_p_1_0123456789abcdefSECRET\n"
    line = ("login", "--url", live.url, "--key-producer")
    runs = [
        (fresh.run(*line, input=wrong, expect=5), "--no-check"),
        (fresh.run(*line, "--json", input=b"", expect=2), "0 lines"),
        (fresh.run(*line, input=b"il_p_1_2 SECRET\n", expect=2), "copy it again"),
        (fresh.run("login", "--url", live.url, input=wrong, expect=2), "--key-producer"),
        (fresh.run("login", "--url", live.url, "--key", "il_SECRET", input=wrong, expect=2), "others may see"),
        (fresh.run("login", "--key-producer", input=wrong, expect=2), "--url"),
        (fresh.run("login", "--key-producer", "--url", "nowhere", input=wrong, expect=2), "https://"),
    ]
    for done, words in runs:
        assert words in done.err
        assert "SECRET" not in done.out + done.err
    assert not profile_file(fresh).exists()
    fresh.run(*line, "--no-check", input=wrong, expect=0)
    assert profile_file(fresh).exists()
    profile_file(fresh).write_text("{", "utf-8")
    assert "correct or remove it" in fresh.run(*line, "--no-check", input=wrong, expect=2).err


def test_a_service_that_is_away_is_no_hindrance(fresh: Cli) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # Bound and not listening: refused.
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        done = fresh.run("login", "--url", url, "--patience", "0.2", "--key-metrics", input=b"il_m_1_2\n", expect=0)
    assert "could not be checked" in done.err
    assert profiles(fresh)["default"] == {"url": url, "keys": {"metrics": "il_m_1_2"}}


def test_a_key_is_typed_unseen(fresh: Cli, live: Live, live_service: DevService) -> None:
    key = live_service.key("operator")
    ours, theirs = pty.openpty()
    seen = b""

    def shows(words: bytes) -> bool:
        nonlocal seen
        seen += os.read(ours, 65536)
        return words in seen

    try:
        terminal = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "start_new_session": True}
        with fresh.start("login", "--url", live.url, **terminal) as process:
            for kind in ("task-producer", "task-worker", "operator", "metrics", "admin"):
                wait_until(lambda kind=kind: shows(f"{kind} key (Enter: none): ".encode()), 20)
                os.write(ours, key.encode() + b"\n" if kind == "operator" else b"\n")
            wait_until(lambda: shows(b"profile default"), 20)
            assert process.wait(20) == 0
    finally:
        os.close(ours)
        os.close(theirs)
    assert key.encode() not in seen
    assert profiles(fresh)["default"] == {"url": live.url, "keys": {"operator": key}}


def test_profiles_are_listed_without_keys_and_forgotten(fresh: Cli) -> None:
    done = fresh.run("profiles", "list", "--json", expect=0)
    assert (done.json["items"], done.json["file"]) == ([], str(profile_file(fresh)))
    assert "interlock login" in fresh.run("profiles", "list", expect=0).err
    given = b"il_p_1_SECRET\nil_o_1_SECRET\n"
    for name in ("default", "box", "other"):
        line = ("login", "--no-check", "--url", f"http://{name}.example", "--profile", name, "--key-producer", "--key-operator")
        fresh.run(*line, input=given, expect=0)
    listed = fresh.run("profiles", "list", "--json", env={"INTERLOCK_PROFILE": "box"}, expect=0)
    kinds = ["task-producer", "operator"]
    assert listed.json["items"] == [
        {"profile": name, "url": f"http://{name}.example", "kinds": kinds, "chosen": name == "box"}
        for name in ("box", "default", "other")
    ]
    words = fresh.run("profiles", "list", expect=0)
    assert [line.split()[0] for line in words.out.splitlines()] == ["NAME", "box", "default", "other"]
    assert [line.split()[0] for line in words.out.splitlines() if "chosen" in line] == ["default"]
    assert "SECRET" not in listed.out + words.out + words.err
    assert words.err == ""
    profile_file(fresh).chmod(0o644)
    assert "other users may read" in fresh.run("profiles", "list", expect=0).err

    assert fresh.run("logout", "--profile", "box", "--json", expect=0).json["removed"] == ["box"]
    assert sorted(profiles(fresh)) == ["default", "other"]
    assert stat.S_IMODE(profile_file(fresh).stat().st_mode) == 0o600
    assert "nothing changed" in fresh.run("logout", "--profile", "box", expect=0).err
    gone = fresh.run("logout", expect=0)
    assert gone.out == "forgotten: default\n"
    assert "keys revoke" in gone.err
    assert [*profiles(fresh)] == ["other"]
    fresh.run("logout", "--all", "--profile", "other", expect=2)
    fresh.run("logout", "--all", expect=0)
    assert profiles(fresh) == {}
    assert "SECRET" not in profile_file(fresh).read_text("utf-8")
    fresh.run("tasks", "list", expect=2)
