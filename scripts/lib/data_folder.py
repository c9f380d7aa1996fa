"""The folder that a local service keeps everything in: used by one process at a time, its secrets readable by its owner only."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO


class FolderUnusable(Exception):
    """This data folder cannot be used; the text says why."""


class FolderInUse(FolderUnusable):
    """Another live process uses this data folder."""


def lock_folder(folder: Path) -> IO[str]:
    """Make `folder` if need be and take it for this process; closing the answer, or our end, frees it. Raises `FolderUnusable`."""
    # Root keeps the folder enterable for the user that the server runs as; everything private in it is 0600.
    try:
        folder.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
        file = (folder / "lock").open("a+")
        give_to_owner(folder / "lock")
    except OSError as error:
        raise FolderUnusable(f"{folder} cannot be used ({error}); choose another folder with --data") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip()
        file.close()
        raise FolderInUse(f"{folder} is in use by process {holder}; stop it, or choose another folder with --data") from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def give_to_owner(path: Path) -> None:
    """What root writes into a user's folder belongs to that user, who may start the service the next time."""
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.chown(path, owner.st_uid, owner.st_gid)


def write_private(path: Path, text: str) -> None:
    """Replace a file whole, readable by its owner only."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    give_to_owner(draft)
    draft.replace(path)
