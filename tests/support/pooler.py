"""PgBouncer in transaction mode in front of the tests' Postgres: for `--pooler`, and for what a pooler alone shows."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

import guard
from os_user import find_os_user
from postgres import Postgres
from support.waiting import wait_until

CONFIG = """
[databases]
* = host=127.0.0.1 port={port} user={user} password={password}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 1000
server_lifetime = 3600
logfile = {folder}/pgbouncer.log
"""


def find_pgbouncer() -> str | None:
    """Debian installs it where only root's PATH leads."""
    return shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))


class Pooler:
    """A running PgBouncer. Any user may come in; it goes on as the owner of the tests' server."""

    def __init__(self, program: str, postgres: Postgres, size: int = 10) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="interlock-pooler-"))
        self._folder.chmod(0o755)
        target = conninfo_to_dict(postgres.url("postgres"))
        with socket.create_server(("127.0.0.1", 0)) as held:
            self.port = held.getsockname()[1]
        config = self._folder / "pgbouncer.ini"
        names = {"port": target["port"], "user": target["user"], "password": target["password"]}
        config.write_text(CONFIG.format(**names, own=self.port, size=size, folder=self._folder))
        user = None
        if os.getuid() == 0:  # which it refuses to run as
            user = find_os_user(self._folder)
            for path in (self._folder, config):
                os.chown(path, user.uid, user.gid)
        with (self._folder / "output").open("wb") as output:
            self._process = guard.start([program, str(config)], output=output, user=user)
        wait_until(self._listens)

    def url(self, database_url: str) -> str:
        """The same database, by way of the pooler."""
        name = conninfo_to_dict(database_url)["dbname"]
        return f"postgresql://pooled:any@127.0.0.1:{self.port}/{name}"

    def stop(self) -> None:
        self._process.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture(scope="session")
def pooler(postgres: Postgres) -> Iterator[Pooler]:
    """One PgBouncer for the run; a test that needs it is skipped where there is none."""
    program = find_pgbouncer()
    if program is None:
        pytest.skip("PgBouncer is not installed (Debian: apt-get install pgbouncer)")
    found = Pooler(program, postgres)
    yield found
    found.stop()
