"""A Postgres server of our own in a folder: for `scripts/dev`, the tests and the benchmarks.

    with Postgres(Path(".interlock")) as server:
        server.create_database("interlock")
        connect(server.url("interlock"))

It listens on loopback TCP only (a socket's path would be limited to 107 bytes) with a random password, keeps
its port over restarts while that is free, is stopped by a guard when its owner ends, even by `kill -9`, and
recovers from whatever its last end was. What lies in the folder:

    database.json    port and password, 0600
    postgres/data    the server's own data folder
    postgres.log     its messages
    lock             held while a process uses the folder
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import psycopg
from psycopg import sql

import guard
from data_folder import give_to_owner, lock_folder, write_private
from guard import OsUser
from os_user import can_enter, find_os_user
from postgres_binaries import Binaries, find_binaries, make_runnable

SUPERUSER = "interlock"
#: Fast stop; then immediate stop, which loses nothing (the next start replays the log) but is never kept waiting.
STOP_PLAN = ((signal.SIGINT, 3.0), (signal.SIGQUIT, 1.5), (signal.SIGKILL, 5.0))
LOG_LIMIT = 10_000_000

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    # In the folder and not in /dev/shm, where a server that was killed leaves it behind (and containers have little).
    "dynamic_shared_memory_type": "mmap",
    "log_min_messages": "warning",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
#: For databases that nobody would miss: a crash of the machine may destroy them.
FORGETFUL = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_wal_size": "256MB"}


class PostgresFailed(Exception):
    """The server could not be set up or started; the text says why and what to do."""


class Postgres:
    """A server on `folder`, made there at the first start. Also a context manager that starts and stops it.

    `durable=False` trades safety in a crash of the machine for speed. `binaries` is for tests; by default
    those that fit are found.
    """

    def __init__(self, folder: Path, *, durable: bool = True, binaries: Binaries | None = None) -> None:
        self.folder = folder.resolve()
        self._home = self.folder / "postgres"
        self._cluster = self._home / "data"
        self._durable = durable
        self._wanted = binaries
        self._lock: IO[str] | None = None
        self._process: guard.Guarded | None = None
        self._port = 0
        self._password = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Of the postmaster."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def guard_pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.guard_pid

    def poll(self) -> int | None:
        """None while the server runs, else its exit status."""
        return None if self._process is None else self._process.poll()

    def url(self, database: str) -> str:
        return f"postgresql://{SUPERUSER}:{self._password}@127.0.0.1:{self._port}/{database}"

    def create_database(self, name: str) -> None:
        """Make a database unless it exists."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone()
            if found is None:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))

    def start(self) -> None:
        """Start the server and return when it takes connections. Raises `PostgresFailed`, `NoPostgres`, `NoOsUser`, `FolderUnusable`."""
        self._lock = lock_folder(self.folder)
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server (at most some seconds) and free the folder. May be repeated."""
        if self._process is not None:
            self._process.stop()
            self._process = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _start(self) -> None:
        version = self._cluster / "PG_VERSION"
        made = version.exists()
        binaries = self._wanted or find_binaries(int(version.read_text().split(".")[0]) if made else None)
        user = find_os_user(self._cluster) if os.geteuid() == 0 else None
        binaries = make_runnable(binaries, user)
        self._own_home(user)
        self._read_secrets()
        with self._reachable_home(user) as (home, keep_fds):
            if not made:
                self._make_cluster(binaries, user, home, keep_fds)
            self._clear_predecessor()
            for attempt in range(5):
                self._port = self._port if attempt == 0 and _is_free(self._port) else _free_port()
                if self._run(binaries, user, home, keep_fds):
                    break
            else:
                raise PostgresFailed(f"No port could be taken on 127.0.0.1.\n{self._log_tail()}")
        write_private(self.folder / "database.json", json.dumps({"port": self._port, "password": self._password}))

    def _read_secrets(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            stored = json.loads((self.folder / "database.json").read_text())
            self._port, self._password = stored["port"], stored["password"]
        if not self._password:
            if (self._cluster / "PG_VERSION").exists():
                raise PostgresFailed(f"{self.folder / 'database.json'} is missing: it held the password of the data beside it")
            self._password = secrets.token_urlsafe(24)
            write_private(self.folder / "database.json", json.dumps({"port": 0, "password": self._password}))

    def _own_home(self, user: OsUser | None) -> None:
        """The folder that belongs to the server's user: everything in it, whoever put it there."""
        self._home.mkdir(mode=0o700, exist_ok=True)
        if user is None:
            if self._home.stat().st_uid != os.geteuid():
                raise PostgresFailed(f"{self._home} belongs to uid {self._home.stat().st_uid}: start as that user or as root")
            return
        try:
            for path in (self._home, *(self._home.rglob("*") if self._home.stat().st_uid != user.uid else ())):
                os.chown(path, user.uid, user.gid, follow_symlinks=False)
        except OSError as error:
            raise PostgresFailed(
                f"{self._home} cannot be given to uid {user.uid} ({error}); choose another --data folder"
            ) from error

    @contextlib.contextmanager
    def _reachable_home(self, user: OsUser | None) -> Iterator[tuple[Path, tuple[int, ...]]]:
        """The server's folder by a name that its user can follow, and the descriptors that this needs.

        A folder below a closed one (root's home, say) is reached through a descriptor that root opens and the
        server inherits: Linux follows /proc/self/fd/N without walking the path, so nothing must be opened up.
        """
        if user is None or can_enter(self._home, user):
            yield self._home, ()
            return
        if not Path("/proc/self/fd").is_dir():
            raise PostgresFailed(
                f"uid {user.uid} cannot enter {self._home} (Postgres refuses to run as root); choose another --data folder"
            )
        fd = os.open(self._home, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield Path(f"/proc/self/fd/{fd}"), (fd,)
        finally:
            os.close(fd)

    def _make_cluster(self, binaries: Binaries, user: OsUser | None, home: Path, keep_fds: tuple[int, ...]) -> None:
        """initdb, whole or not at all: a start that was killed in the middle is begun again."""
        for unfinished in self._home.glob("new-*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        draft = f"new-{secrets.token_hex(4)}"
        password_file = self._home / "password"
        write_private(password_file, self._password)
        # Byte order and the same on every machine; builtin needs no locale of the system, but Postgres 17.
        builtin = ("--locale-provider=builtin", "--builtin-locale=C.UTF-8") if binaries.major >= 17 else ()
        command = [
            str(binaries.folder / "initdb"),
            *("-D", str(home / draft), "-U", SUPERUSER, "-E", "UTF8", "--locale=C", *builtin),
            *("-A", "scram-sha-256", f"--pwfile={home / 'password'}", "--no-instructions"),
            *(() if self._durable else ("--no-sync",)),
        ]
        try:
            with tempfile.TemporaryFile() as output:
                code = guard.start(command, output=output, user=user, environment=_environment(user), keep_fds=keep_fds).wait()
                output.seek(0)
                told = output.read().decode(errors="replace")
        finally:
            password_file.unlink()
        if code != 0:
            raise PostgresFailed(f"initdb failed in {self._home}:\n{told}")
        (self._home / draft).rename(self._cluster)

    def _clear_predecessor(self) -> None:
        """Wait for the end of a server that an earlier owner left here, then remove what it left.

        We hold the folder's lock, so its owner is gone and its guard is stopping it; a server whose guard was
        killed too is stopped here. A pid file is believed only if that process works in this folder: after a
        restart of the machine, or in another container, the pid belongs to somebody else.
        """
        gone = _wait_until(lambda: not _processes_in(self._cluster), 8.0)
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            if gone:
                break
            for pid in _processes_in(self._cluster):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            gone = _wait_until(lambda: not _processes_in(self._cluster), 8.0)
        if not gone:
            raise PostgresFailed(f"processes {_processes_in(self._cluster)} of an earlier server in {self._cluster} do not end")
        (self._cluster / "postmaster.pid").unlink(missing_ok=True)

    def _run(self, binaries: Binaries, user: OsUser | None, home: Path, keep_fds: tuple[int, ...]) -> bool:
        """Start the server; False if its port was taken in the meantime."""
        settings = SETTINGS | ({} if self._durable else FORGETFUL) | {"port": str(self._port)}
        log = self.folder / "postgres.log"
        with contextlib.suppress(FileNotFoundError):
            if log.stat().st_size > LOG_LIMIT:
                log.replace(log.with_suffix(".log.1"))
        with log.open("ab") as output:
            log.chmod(0o600)
            give_to_owner(log)
            self._process = guard.start(
                [
                    str(binaries.folder / "postgres"),
                    "-D",
                    str(home / "data"),
                    *(f"--{name}={value}" for name, value in settings.items()),
                ],
                output=output,
                user=user,
                environment=_environment(user),
                keep_fds=keep_fds,
                stop_plan=STOP_PLAN,
            )
        process = self._process
        # Recovery after a crash may take its time, and ends: only the process's own end is a failure.
        _wait_until(lambda: process.poll() is not None or self._is_ready(process.pid), None)
        if process.poll() is None:
            return True
        process.stop()
        self._process = None
        tail = self._log_tail()
        if "could not bind" in tail or "could not create any TCP/IP sockets" in tail:
            return False
        raise PostgresFailed(f"Postgres ended at its start; from {log}:\n{tail}")

    def _is_ready(self, pid: int) -> bool:
        try:
            lines = (self._cluster / "postmaster.pid").read_text().split("\n")
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[0] == str(pid) and lines[7].strip() == "ready"

    def _log_tail(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return "\n".join((self.folder / "postgres.log").read_text(errors="replace").splitlines()[-12:])
        return ""


def _environment(user: OsUser | None) -> dict[str, str]:
    """Nothing of the caller's: a PGDATA or LC_ALL of theirs would change the server."""
    kept = {name: os.environ[name] for name in ("PATH", "TMPDIR", "LD_LIBRARY_PATH") if name in os.environ}
    return kept | {"LC_ALL": "C", "HOME": user.home if user else os.environ.get("HOME", "/")}


def _processes_in(cluster: Path) -> list[int]:
    """The live processes that work in this data folder: a postmaster and its children all have it as their cwd."""
    if sys.platform != "linux":
        return _postmaster_by_pid_file(cluster)
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "cwd").samefile(cluster) and (entry / "comm").read_text().startswith("postgres"):
                    found.append(int(entry.name))
    return found


def _postmaster_by_pid_file(cluster: Path) -> list[int]:
    with contextlib.suppress(OSError, ValueError):
        pid = int((cluster / "postmaster.pid").read_text().split("\n")[0])
        run = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], check=False, capture_output=True, text=True)
        return [pid] if "postgres" in run.stdout and str(cluster) in run.stdout else []
    return []


def _is_free(port: int) -> bool:
    if not port:
        return False
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what Postgres sets too: a port in TIME_WAIT is free
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until(condition: Callable[[], bool], seconds: float | None) -> bool:
    end = None if seconds is None else time.monotonic() + seconds
    while not condition():
        if end is not None and time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
