"""The launcher of the embedded Postgres: whom it runs as, where, and that its data outlives every kind of end."""

from __future__ import annotations

import json
import os
import pwd
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

import postgres_binaries
from data_folder import FolderInUse
from guard import OsUser
from postgres import Postgres, PostgresFailed
from postgres_binaries import Binaries, NoPostgres, find_binaries, make_runnable, read_version
from support.owner import LIB, Owner, is_alive
from support.waiting import wait_until

StartOwner = Callable[[Path], Owner]
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")


def ask(url: str, query: str) -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(query)  # type: ignore[call-overload]
        row = cursor.fetchone() if cursor.description else None
        return row and row[0]


def uid_of(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


@pytest.mark.slow
def test_it_serves_utf8_with_a_locale_of_no_system_and_asks_for_a_password(tmp_path: Path) -> None:
    with Postgres(tmp_path) as server:
        url = server.url("postgres")
        assert ask(url, "SELECT current_setting('server_encoding') || ' ' || current_setting('fsync')") == "UTF8 on"
        assert ask(url, "SELECT array_agg(x ORDER BY x)::text FROM unnest('{a,B,é,z}'::text[]) x") == "{B,a,z,é}"
        assert ask(url, "SELECT upper('é')") == "É"
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(url.replace(":" + url.split(":")[2].partition("@")[0] + "@", ":wrong@"))
    assert json.loads((tmp_path / "database.json").read_text())["password"] in url
    assert (tmp_path / "database.json").stat().st_mode & 0o777 == 0o600


@root_only
def test_root_gives_the_server_to_an_unprivileged_user(tmp_path: Path) -> None:
    with Postgres(tmp_path, durable=False) as server:
        assert uid_of(server.pid) != 0
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        assert children
        assert all(uid_of(int(pid)) == uid_of(server.pid) for pid in children)
        groups = Path(f"/proc/{server.pid}/status").read_text().split("Groups:")[1].splitlines()[0].split()
        assert "0" not in groups


@root_only
@pytest.mark.slow
def test_root_can_keep_data_below_a_folder_that_is_closed_to_others(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for _ in range(2):
        with Postgres(closed / "data", durable=False) as server:
            server.create_database("kept")
            assert ask(server.url("kept"), "SELECT 1") == 1
    assert (closed / "data" / "postgres" / "data" / "PG_VERSION").exists()
    assert closed.stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_a_normal_user_runs_the_server_as_itself(open_folder: Path) -> None:
    if os.geteuid() != 0:
        with Postgres(open_folder / "data", durable=False) as server:
            assert uid_of(server.pid) == os.geteuid()
        return
    # As root: by another user, with the system's Python, since ours may live in root's home.
    python = "/usr/bin/python3"
    code = f"import sys; sys.exit(sys.version_info[:2] != {tuple(__import__('sys').version_info[:2])})"
    if not Path(python).exists() or subprocess.run([python, "-c", code], check=False).returncode:
        pytest.skip("this system has no Python like ours that another user can run")
    nobody = pwd.getpwnam("nobody")
    os.chown(open_folder, nobody.pw_uid, nobody.pw_gid)
    binaries = make_runnable(find_binaries(), OsUser(nobody.pw_uid, nobody.pw_gid, "/"))
    program = (
        "import os, sys; from pathlib import Path; from postgres import Postgres; from postgres_binaries import read_version\n"
        f"with Postgres(Path({str(open_folder / 'with a space')!r}), binaries=read_version(Path({str(binaries.folder)!r}))) as s:\n"
        "    s.create_database('x'); print(os.stat(f'/proc/{s.pid}').st_uid)"
    )
    run = subprocess.run(
        [python, "-c", program],
        check=False,
        capture_output=True,
        text=True,
        user=nobody.pw_uid,
        group=nobody.pw_gid,
        extra_groups=[],
        cwd="/",
        env={"PYTHONPATH": f"{LIB}:{Path(psycopg.__file__).parents[1]}", "PATH": os.environ["PATH"], "HOME": "/nonexistent"},
    )
    assert run.stdout.strip() == str(nobody.pw_uid), run.stderr


def test_a_long_path_with_spaces_will_do(tmp_path: Path) -> None:
    folder = tmp_path / ("a path with spaces " * 6) / "'quoted' $HOME"
    with Postgres(folder, durable=False) as server:
        assert ask(server.url("postgres"), "SELECT 1") == 1


@pytest.mark.slow
def test_two_run_side_by_side_and_one_folder_has_one_owner(tmp_path: Path) -> None:
    with Postgres(tmp_path / "a", durable=False) as first, Postgres(tmp_path / "b", durable=False) as second:
        assert first.url("postgres") != second.url("postgres")
        assert ask(first.url("postgres"), "SELECT 1") == ask(second.url("postgres"), "SELECT 1") == 1
        with pytest.raises(FolderInUse, match=f"process {os.getpid()}"):
            Postgres(tmp_path / "a").start()
        assert ask(first.url("postgres"), "SELECT 1") == 1


@pytest.mark.slow
def test_it_keeps_its_port_while_that_is_free(tmp_path: Path) -> None:
    with Postgres(tmp_path, durable=False) as server:
        first = server.url("postgres")
    with Postgres(tmp_path, durable=False) as server:
        assert server.url("postgres") == first
    port = int(first.rpartition("/")[0].rpartition(":")[2])
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        with Postgres(tmp_path, durable=False) as server:
            assert server.url("postgres") != first
            assert ask(server.url("postgres"), "SELECT 1") == 1


@pytest.mark.parametrize(
    "pid", [pytest.param("ours", marks=pytest.mark.slow), "1", pytest.param("nobody's", marks=pytest.mark.slow)]
)
def test_a_stale_pid_file_is_no_obstacle(tmp_path: Path, pid: str) -> None:
    with Postgres(tmp_path, durable=False):
        lines = (tmp_path / "postgres" / "data" / "postmaster.pid").read_text().split("\n")
    lines[0] = {"ours": str(os.getpid()), "1": "1", "nobody's": "4194000"}[pid]
    (tmp_path / "postgres" / "data" / "postmaster.pid").write_text("\n".join(lines))
    with Postgres(tmp_path, durable=False) as server:
        assert ask(server.url("postgres"), "SELECT 1") == 1


@pytest.mark.slow
def test_an_interrupted_initdb_is_begun_again(tmp_path: Path) -> None:
    half = tmp_path / "postgres" / "new-0123"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    with Postgres(tmp_path, durable=False) as server:
        assert ask(server.url("postgres"), "SELECT 1") == 1
    assert not half.exists()


@pytest.mark.parametrize(
    "victims", ["owner", *(pytest.param(v, marks=pytest.mark.slow) for v in ("all", "guard", "owner and guard", "server"))]
)
def test_kill_9_of_anyone_ends_the_server_and_keeps_what_was_committed(
    tmp_path: Path, start_owner: StartOwner, victims: str
) -> None:
    owner = start_owner(tmp_path)
    ask(owner.url, "CREATE TABLE kept (n int)")
    ask(owner.url, "INSERT INTO kept SELECT generate_series(1, 1000)")
    if victims in ("server", "all"):
        os.kill(owner.server, signal.SIGKILL)
    if "guard" in victims or victims == "all":
        os.kill(owner.guard, signal.SIGKILL)
    if "owner" in victims or victims == "all":
        owner.kill()
    wait_until(lambda: not is_alive(owner.server), timeout=10)
    wait_until(lambda: not is_alive(owner.guard), timeout=10)
    if owner.process.returncode is None:
        owner.close()

    again = start_owner(tmp_path)
    assert again.url == owner.url
    assert ask(again.url, "SELECT count(*) FROM kept") == 1000


@pytest.mark.slow
def test_a_start_right_after_a_kill_9_waits_for_the_old_server_to_go(tmp_path: Path, start_owner: StartOwner) -> None:
    owner = start_owner(tmp_path)
    with psycopg.connect(owner.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (n int)")
        owner.kill()
        again = start_owner(tmp_path)
        assert again.server != owner.server
        assert ask(again.url, "SELECT count(*) FROM kept") == 0
        assert not is_alive(owner.server)


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with Postgres(tmp_path, durable=False):
        pass
    (tmp_path / "postgres" / "data" / "postgresql.conf").write_text("no_such_setting = 1\n")
    with pytest.raises(PostgresFailed, match="no_such_setting"):
        Postgres(tmp_path, durable=False).start()


@root_only
@pytest.mark.slow
def test_binaries_that_the_user_cannot_reach_are_copied_once_by_many_at_once(open_folder: Path, start_owner: StartOwner) -> None:
    closed = open_folder / "closed"
    closed.mkdir(mode=0o700)
    source = find_binaries()
    subprocess.run(["cp", "-r", source.folder.parent, closed / "pg"], check=True)
    hidden = Binaries(closed / "pg" / "bin", source.version)
    user = OsUser(pwd.getpwnam("nobody").pw_uid, pwd.getpwnam("nobody").pw_gid, "/")
    program = (
        "import sys; from pathlib import Path; from guard import OsUser; from postgres_binaries import Binaries, make_runnable\n"
        f"hidden, user = Binaries(Path({str(hidden.folder)!r}), {source.version!r}), OsUser({user.uid}, {user.gid}, '/')\n"
        f"b = make_runnable(hidden, user, Path({str(open_folder)!r}))\n"
        "print(b.folder)"
    )
    runs = [
        subprocess.Popen(
            [__import__("sys").executable, "-c", program],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(LIB)},
        )
        for _ in range(3)
    ]
    folders = {run.communicate(timeout=60)[0].strip() for run in runs}
    target = open_folder / f"interlock-postgres-{source.version}-0"
    assert folders == {str(target / "bin")}
    assert sorted(p.name for p in open_folder.iterdir()) == ["closed", target.name]

    # A stranger's folder under that name is not trusted, and a copy with holes is made anew.
    os.chown(target, user.uid, user.gid)
    (target / "bin" / "initdb").write_text("#!/bin/sh\nexit 1\n")
    assert make_runnable(hidden, user, open_folder).folder == target / "bin"
    assert target.stat().st_uid == 0
    assert read_version(target / "bin") is not None
    assert (target / "bin" / "initdb").stat().st_size == (source.folder / "initdb").stat().st_size


def test_without_a_wheel_a_system_postgres_is_used_and_else_a_message_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_binaries.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(postgres_binaries.shutil, "which", lambda name: None)
    monkeypatch.setattr(postgres_binaries, "SYSTEM_FOLDERS", (f"{tmp_path}/*/bin",))
    with pytest.raises(NoPostgres, match="--database-url"):
        find_binaries()

    for major in ("14.3", "16.1", "15.18"):
        folder = tmp_path / major / "bin"
        folder.mkdir(parents=True)
        (folder / "initdb").touch()
        (folder / "postgres").write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {major} (Debian)'\n")
        (folder / "postgres").chmod(0o755)
    assert find_binaries().version == "16.1"
    assert find_binaries(15).version == "15.18"
    with pytest.raises(NoPostgres, match="version 17, which made"):
        find_binaries(17)


@pytest.mark.slow
def test_an_older_system_postgres_serves_too(tmp_path: Path) -> None:
    found = [b for path in sorted(Path("/usr/lib/postgresql").glob("1[5-7]/bin")) if (b := read_version(path))]
    if not found:
        pytest.skip("this system has no Postgres 15 to 17")
    with Postgres(tmp_path, durable=False, binaries=found[0]) as server:
        assert str(ask(server.url("postgres"), "SHOW server_version")).startswith(str(found[0].major))
    # Without being told, the programs that made the data are found again.
    with Postgres(tmp_path, durable=False) as server:
        assert str(ask(server.url("postgres"), "SHOW server_version")).startswith(str(found[0].major))
