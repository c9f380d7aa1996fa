"""The doctor's look at spools: what finished here and the service does not have. Nothing is locked, moved or sent.

No lease token is shown: of a record only the task, the attempt and the outcome are.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from interlock.cli.exits import ExitCode
from interlock.cli.findings import Finding, fault, warn, well
from interlock.cli.health import seconds_of
from interlock.settings import state_folder
from interlock.spool import LOCK_NAME, TEMPORARY, read_record, record_paths

OLD_SECONDS = 300.0
SHOWN = 5


def find_spools() -> list[Path]:
    """The spools of this user's workers in their usual place."""
    try:
        return sorted(path for path in state_folder().iterdir() if path.is_dir())
    except OSError:
        return []


def no_spool() -> Finding:
    """There is none, and none was asked for."""
    return well("spool", f"none below {state_folder()}; --spool DIR looks at another")


def check_spool(folder: Path) -> Iterator[Finding]:
    """All about one spool folder."""
    name = f"spool {folder.name}"
    try:
        paths = list(record_paths(folder)) if list_folder(folder) else []
        unfinished = [path.name for path in folder.glob(f"{TEMPORARY}*")]
    except OSError as error:
        advice = "Give the folder that the worker was started with, as a user who may read it."
        yield fault(name, f"{folder} cannot be read: {error.strerror or error}", advice, ExitCode.SPOOL)
        return
    holder = find_holder(folder)
    yield from check_records(name, folder, paths, holder)
    if unfinished and holder is None:
        yield warn(
            name,
            f"{len(unfinished)} records were being written when their process ended",
            "The worker sets them aside when it starts.",
        )
    yield from check_apart(name, folder / "quarantine", refused=True)
    yield from check_apart(name, folder / "other-epoch", refused=False)


def list_folder(folder: Path) -> bool:
    """Whether there is anything in it. Raises OSError where a glob would see an empty folder instead."""
    with os.scandir(folder) as entries:
        return any(True for _ in entries)


def check_records(name: str, folder: Path, paths: list[Path], holder: int | None) -> Iterator[Finding]:
    """The outcomes that wait for the service."""
    outcomes, bad, ages = [], [], []
    for path in paths:
        try:
            outcomes += read_record(path)
            ages.append(time.time() - path.stat().st_mtime)
        except FileNotFoundError:  # Delivered while we looked.
            continue
        except (OSError, ValueError) as error:
            bad.append(f"{path.name} ({getattr(error, 'strerror', None) or error})")
    if bad:
        fact = f"{len(bad)} records in {folder} cannot be read: {listed(bad)}"
        advice = "The worker moves them to quarantine/ when it starts; the outcomes in them may be lost: look at their tasks."
        yield fault(name, fact, advice, ExitCode.SPOOL)
    held = f"process {holder} holds it" if holder is not None else "no process holds it"
    if not outcomes:
        yield well(name, f"{folder} has no outcome that is not delivered; {held}")
        return
    oldest = max(ages, default=0.0)
    told = listed([f"{item['outcome']} of task {item['taskId']}" for item in outcomes])
    fact = f"{len(outcomes)} outcomes in {folder} are not delivered, the oldest for {seconds_of(oldest)}: {told}; {held}"
    if holder is None:
        yield warn(name, fact, "Start the worker again, with this spool: it sends them before anything else.")
    elif oldest > OLD_SECONDS:
        yield warn(name, fact, "Look at that process's log: the service cannot be reached, or refuses its key.")
    else:
        yield well(name, fact)


def check_apart(name: str, folder: Path, *, refused: bool) -> Iterator[Finding]:
    """What was set aside for a person, each with its reason."""
    if not folder.is_dir():
        return
    try:
        kept = sorted(path for path in folder.iterdir() if path.suffix != ".reason" and not path.name.startswith("."))
        told = listed([f"{path.name} ({read_reason(path)})" for path in kept])
    except OSError as error:
        yield fault(name, f"{folder} cannot be read: {error.strerror or error}", "Read it as the worker's user.", ExitCode.SPOOL)
        return
    if not kept:
        return
    if refused:
        advice = "Compare each with its task (interlock tasks get ID), settle the task if it needs it, then remove the file."
        yield fault(name, f"{len(kept)} outcomes in {folder} were refused or cannot be read: {told}", advice)
    else:
        advice = "The service's database was restored since: compare each with its task, then remove the file."
        yield warn(name, f"{len(kept)} outcomes in {folder} are from another epoch of the service: {told}", advice)


def read_reason(path: Path) -> str:
    """Why a record was set aside."""
    for place in (path.with_suffix(".reason"), path.with_name(f"{path.name}.reason")):
        try:
            return place.read_text("utf-8", "replace").strip()[:300]
        except OSError:
            continue
    return "no reason beside it"


def find_holder(folder: Path) -> int | None:
    """The live process that holds the folder, by what it wrote into the lock; the lock itself is not tried."""
    if os.name == "nt":  # There a signal of 0 is no question, and the lock file cannot be read while it is held.
        return None
    try:
        holder = int((folder / LOCK_NAME).read_text("ascii"))
    except (OSError, ValueError):
        return None
    try:
        os.kill(holder, 0)
    except PermissionError:  # It lives, as another user.
        return holder
    except OSError:
        return None
    return holder


def listed(items: list[str]) -> str:
    """The first few, and how many more."""
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return ", ".join(items[:SHOWN]) + more
