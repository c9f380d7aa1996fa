"""Whom Postgres runs as when we are root, which it refuses to be, and what that user can reach."""

from __future__ import annotations

import contextlib
import pwd
import subprocess
from pathlib import Path

from guard import OsUser


class NoOsUser(Exception):
    """This system has no unprivileged user to run the server as."""


def find_os_user(cluster: Path) -> OsUser:
    """Whom the server runs as when we are root: the owner of its data, else an unprivileged user of every system.

    initdb looks its user up, so a number without a name does not do.
    """
    with contextlib.suppress(FileNotFoundError, KeyError):
        if (uid := cluster.stat().st_uid) != 0:
            entry = pwd.getpwuid(uid)
            return OsUser(entry.pw_uid, entry.pw_gid, "/")
    for name in ("interlock", "postgres", "nobody", "daemon"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return OsUser(entry.pw_uid, entry.pw_gid, "/")
    raise NoOsUser("Postgres refuses to run as root, and this system has no user postgres or nobody to run it as")


def can_enter(folder: Path, user: OsUser) -> bool:
    """Tried rather than worked out from permission bits: access lists and mounts have a say."""
    command = ["/bin/sh", "-c", 'cd "$1"', "sh", str(folder)]
    run = subprocess.run(command, check=False, user=user.uid, group=user.gid, extra_groups=[], cwd="/", capture_output=True)
    return run.returncode == 0


def runs_as(program: Path, user: OsUser) -> bool:
    """Whether `user` can run `program --version`."""
    try:
        subprocess.run(
            [program, "--version"], check=True, capture_output=True, user=user.uid, group=user.gid, extra_groups=[], cwd="/"
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return True
