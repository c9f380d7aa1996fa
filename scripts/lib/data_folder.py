"""The folder that a local service keeps everything in: used by one process at a time, its secrets readable by its owner only."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO


class FolderInUse(Exception):
    """Another live process uses this data folder."""


def lock_folder(folder: Path) -> IO[str]:
    """Make `folder` if need be and take it for this process; closing the answer, or our end, frees it. Raises `FolderInUse`."""
    # Root keeps the folder enterable for the user that the server runs as; everything private in it is 0600.
    folder.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
    file = (folder / "lock").open("a+")
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


def write_private(path: Path, text: str) -> None:
    """Replace a file whole, readable by its owner only."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
