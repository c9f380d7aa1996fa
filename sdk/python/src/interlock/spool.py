"""The outcomes that finished and are not yet known to be accepted, on disk: a crash or an outage loses none.

    open  → lock the folder for this process
    save  → one file and one sync for a batch of outcomes (0600: they hold lease tokens)
    load  → what an earlier process left; what cannot be read goes to `quarantine/`, and never stops the rest
    settle, quarantine, set_aside → the service's verdicts on single outcomes

A file is written under a temporary name, synced, renamed, and its folder synced; it is removed when every outcome in
it is settled. `quarantine/` holds what the service refused, or nobody can read, each with a `.reason` file beside it;
`other-epoch/` holds outcomes whose tokens are from before a restore of the service.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import queue
import re
import stat
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from interlock.errors import NotJson, SpoolError, SpoolLocked
from interlock.forking import leave_to_parent
from interlock.json_text import clean_text, encode
from interlock.outcome import Outcome

log = logging.getLogger("interlock")

RECORD_VERSION = 1
TEMPORARY = ".writing-"
LOCK_NAME = "lock"
IDS = ("taskId", "attemptId", "leaseToken", "outcome")


class SpoolFile:
    """A file of the spool and how many of its outcomes are not settled."""

    __slots__ = ("left", "path")

    def __init__(self, path: Path, left: int) -> None:
        self.path = path
        self.left = left


class Spool:
    """One folder, used by one process. Thread-safe. Raises SpoolLocked or SpoolError when it cannot be opened."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).expanduser()
        self._lock = threading.Lock()
        self._count = 0
        self._done: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._sweeper: threading.Thread | None = None
        try:
            make_private(self.folder)
            self._held = lock_file(self.folder / LOCK_NAME)
        except OSError as error:
            raise SpoolError(f"the spool folder {self.folder} cannot be used: {error}") from error
        leave_to_parent(self)

    def forget_parent(self) -> None:
        """In a forked child: it must not hold the folder when its parent has ended. The parent's lock stays."""
        self._held.close()

    def sweep_in_background(self) -> None:
        """Remove settled files in a thread of its own: on a busy disk that takes longer than sending them."""
        self._sweeper = threading.Thread(target=self._sweep, name="interlock-spool", daemon=True)
        self._sweeper.start()

    def close(self) -> None:
        """Let another process have the folder. Outcomes that are not settled stay."""
        if self._sweeper is not None:
            self._done.put(None)
            self._sweeper.join(10.0)
        self._held.close()

    def save(self, outcomes: Sequence[Outcome]) -> None:
        """Write outcomes that are in no file yet into one, durably. Raises OSError (a full disk, say)."""
        fresh = [outcome for outcome in outcomes if outcome.file is None]
        if not fresh:
            return
        with self._lock:
            self._count += 1
            count = self._count
        # Names sort by age, so that a replay keeps the order.
        path = self.folder / f"{time.time_ns():020d}-{count:06d}-{uuid.uuid4().hex[:8]}.json"
        head = encode({"version": RECORD_VERSION, "savedAt": time.time()})[:-1]
        data = head + b',"completions":[' + b",".join(outcome.body for outcome in fresh) + b"]}"
        write_durably(path, data)
        file = SpoolFile(path, len(fresh))
        for outcome in fresh:
            outcome.file = file

    def settle(self, outcome: Outcome) -> None:
        """The outcome needs no file any more: it was accepted, or is stale."""
        file, outcome.file = outcome.file, None
        if file is None:
            return
        with self._lock:
            file.left -= 1
            done = file.left <= 0
        if done and self._sweeper is not None:
            self._done.put(file.path)
        elif done:
            remove(file.path)

    def quarantine(self, outcome: Outcome, reason: str) -> None:
        """Keep a refused outcome for a person, with the reason, out of the way of the others."""
        self._move_apart(outcome, "quarantine", reason)

    def set_aside(self, outcome: Outcome, reason: str) -> None:
        """Keep an outcome whose token is from another epoch of the service."""
        self._move_apart(outcome, "other-epoch", reason)

    def load(self) -> list[Outcome]:
        """What an earlier process left, oldest first. Unreadable files are moved to `quarantine/`."""
        found: list[Outcome] = []
        for path in record_paths(self.folder):
            try:
                found += self._load_file(path)
            except (OSError, ValueError) as error:
                self._quarantine_file(path, f"cannot be read: {error}")
            except Exception as error:  # Whatever is wrong with one file must not keep the others from being sent.
                self._quarantine_file(path, f"cannot be read: {type(error).__name__}")
        for path in self.folder.glob(f"{TEMPORARY}*"):
            # Never renamed, so never promised to anybody: its outcome ended with its process.
            self._quarantine_file(path, "was being written when its process ended")
        return found

    def _load_file(self, path: Path) -> list[Outcome]:
        """The outcomes of a file that can be sent; others beside them are moved to `quarantine/`. Raises as read_record."""
        items = read_record(path)
        good: list[Outcome] = []
        bad: list[tuple[int, str]] = []
        file = SpoolFile(path, len(items))
        for place, item in enumerate(items):
            try:
                body = encode(item, "the outcome")
            except NotJson as error:
                bad.append((place, str(error)))
            else:
                good.append(Outcome(item["taskId"], item["attemptId"], body, item["outcome"], None, file))
        if not good:
            raise ValueError(bad[0][1])
        file.left = len(good)
        for place, reason in bad:
            log.error("outcome %d of the spool file %s cannot be sent: %s; it is kept in quarantine", place, path, reason)
            record = {"version": RECORD_VERSION, "completions": [items[place]]}
            try:
                # Escaped, since UTF-8 may not carry it. Loading the file again after a crash writes the same one.
                self._keep("quarantine", f"{path.stem}-{place}", json.dumps(record).encode("ascii"), reason)
            except OSError as error:
                log.error("outcome %d of the spool file %s cannot be set aside: %s", place, path, error)
        return good

    def check(self) -> None:
        """Raise OSError if an outcome could not be saved now."""
        path = self.folder / f"{TEMPORARY}check-{os.getpid()}"
        try:
            write_and_sync(path, b" " * 4096)
        finally:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def _sweep(self) -> None:
        while (path := self._done.get()) is not None:
            remove(path)

    def _move_apart(self, outcome: Outcome, name: str, reason: str) -> None:
        data = encode({"version": RECORD_VERSION, "savedAt": time.time()})[:-1]
        data += b',"completions":[' + outcome.body + b"]}"
        try:
            # Named by the attempt: quarantining it again after a crash writes the same file.
            self._keep(name, outcome.attempt_id, data, reason)
        except OSError as error:
            log.error("the refused outcome of attempt %s cannot be set aside: %s", outcome.attempt_id, error)
            return
        self.settle(outcome)

    def _keep(self, folder_name: str, name: str, data: bytes, reason: str) -> None:
        """Write a record for a person, with the reason beside it. Raises OSError."""
        folder = self.folder / folder_name
        make_private(folder)
        name = safe_name(name)
        write_durably(folder / f"{name}.json", data)
        write_durably(folder / f"{name}.reason", clean_text(reason, 4096).encode() + b"\n")

    def _quarantine_file(self, path: Path, reason: str) -> None:
        log.error("the spool file %s %s; it is moved to quarantine", path, reason)
        try:
            folder = self.folder / "quarantine"
            make_private(folder)
            name = safe_name(path.name.lstrip("."))
            if os.path.lexists(folder / name):  # An older one of that name is kept too.
                name = f"{name}-{uuid.uuid4().hex[:8]}"
            path.replace(folder / name)
            write_durably(folder / f"{name}.reason", clean_text(reason, 4096).encode() + b"\n")
        except OSError as error:
            log.error("the spool file %s cannot be moved: %s", path, error)


def default_spool(folder: Path) -> Spool:
    """The first free one of `folder`, `folder-2`, … : several processes of one worker on one machine share safely.

    What dead processes left in the others is taken over.
    """
    for number in range(1, 65):
        place = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        try:
            spool = Spool(place)
        except SpoolLocked:
            continue
        for other in siblings(folder):
            if other != place:
                take_over(other, spool)
        return spool
    raise SpoolLocked(f"64 processes use the spools beside {folder}")


def remove(path: Path) -> None:
    """Remove a settled file. One that stays does no harm: replayed, the service answers that it is a duplicate."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("the spool file %s cannot be removed: %s", path, error)


def take_over(folder: Path, spool: Spool) -> None:
    """Move the records of a folder that no process holds into the spool."""
    if not any(record_paths(folder)):
        return
    try:
        other = Spool(folder)
    except SpoolError:
        return
    try:
        for path in record_paths(folder):
            path.replace(spool.folder / path.name)
        sync_folder(spool.folder)
    except OSError as error:
        log.warning("the spool folder %s cannot be taken over: %s", folder, error)
    finally:
        other.close()


def siblings(folder: Path) -> list[Path]:
    """The spool folders of one worker on this machine."""
    numbered = [path for path in folder.parent.glob(f"{folder.name}-*") if path.name[len(folder.name) + 1 :].isdigit()]
    return [path for path in (folder, *sorted(numbered)) if path.is_dir()]


def record_paths(folder: Path) -> Iterator[Path]:
    """The record files of a spool folder, oldest first."""
    return iter(sorted(path for path in folder.glob("*.json") if not path.name.startswith(".")))


def read_record(path: Path) -> list[dict[str, Any]]:
    """The outcomes of a record file. Raises OSError or ValueError (which quotes nothing of it) if it is none."""
    data = read_regular(path)
    if not data:
        raise ValueError("it is empty")
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(record, dict) or record.get("version") != RECORD_VERSION:
        raise ValueError("it is of another version")
    items = record.get("completions")
    if not isinstance(items, list) or not items:
        raise ValueError("it holds no outcomes")
    for item in items:
        if not isinstance(item, dict) or not all(isinstance(item.get(name), str) for name in IDS):
            raise ValueError("an outcome in it is not whole")
    return items


def read_regular(path: Path) -> bytes:
    """The bytes of a regular file. Raises ValueError for anything else, which is not opened: a pipe could block for ever."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ValueError("it is no regular file")
    # Should it be replaced by a pipe in between, opening and reading still do not block.
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        return file.read() or b""


def safe_name(name: str) -> str:
    """A file name for an id that came from a file or over the network: within its folder, of bounded length, still unique."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".")[:120]
    if plain == name:
        return name
    return f"{plain or 'record'}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def make_private(folder: Path) -> None:
    """Make the folder, for this user only."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_durably(path: Path, data: bytes) -> None:
    """Write a file so that after a power loss there is all of it or nothing."""
    temporary = path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
    try:
        write_and_sync(temporary, data)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_and_sync(path: Path, data: bytes) -> None:
    """Write a new file of ours alone (0600) and wait until the disk has it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the folder's names."""
    if os.name == "nt":  # Windows cannot open a folder, and keeps renames in its own journal.
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock_file(path: Path) -> IO[bytes]:
    """Hold the file until it is closed, or this process ends however it ends. Raises SpoolLocked."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
    file = os.fdopen(descriptor, "r+b", buffering=0)
    try:
        if os.name == "nt":
            import msvcrt  # noqa: PLC0415 (exists on Windows only)

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl  # noqa: PLC0415 (does not exist on Windows)

            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(0)
            file.write(f"{os.getpid()}\n".encode())
    except OSError:
        holder = file.read(20).decode("ascii", "replace").strip() if os.name != "nt" else ""
        file.close()
        by = f" (process {holder})" if holder else ""
        raise SpoolLocked(f"the spool folder {path.parent} is used by another worker{by}; give each its own") from None
    return file
