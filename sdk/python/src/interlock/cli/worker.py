"""`interlock worker run`: start the worker that a module holds."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import logging
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interlock.cli.exits import CommandFailed, ExitCode
from interlock.cli.plain import show_plainly
from interlock.cli.session import Session
from interlock.cli.values import read_path
from interlock.settings import KEY_VARIABLES

if TYPE_CHECKING:
    from interlock.worker import TaskWorker


LATER = ("interlock.worker",)


def run_worker(
    session: Session,
    target: Annotated[
        str, typer.Argument(metavar="MODULE:WORKER", help="A module (or a .py file) and the name of its TaskWorker.")
    ],
) -> None:
    """Run a worker until SIGTERM or Ctrl-C, which drain it; a second one is quicker.

    --url, --key and --profile stand for INTERLOCK_URL, INTERLOCK_WORKER_KEY and INTERLOCK_PROFILE: a worker that was
    made with others keeps its own.
    """
    given = (("INTERLOCK_URL", session.url), (KEY_VARIABLES["task-worker"], session.key), ("INTERLOCK_PROFILE", session.profile))
    os.environ.update((name, value) for name, value in given if value)
    logging.getLogger("interlock").setLevel(logging.DEBUG if session.verbose else logging.INFO)
    worker = load_worker(target)
    told = {"workerId": worker.worker_id, "instanceId": worker.instance_id, "pool": worker.pool, "process": os.getpid()}

    gc.collect()
    gc.freeze()  # What was imported stays: going through all of it again and again would hold up handlers and renewals.

    def begun() -> None:
        session.out.notice(f"worker {worker.worker_id} runs as process {os.getpid()}; Ctrl-C drains it")
        if session.out.json:
            session.out.record({"kind": "started", **told})

    worker._serve(begun)  # noqa: SLF001 (run(), which tells nobody that it has begun)
    session.out.notice(f"worker {worker.worker_id} has ended; everything is reported or given back")
    if session.out.json:
        session.out.record({"kind": "stopped", **told})


def load_worker(target: str) -> TaskWorker:
    """The worker that `module:name` or `file.py:name` names. Raises CommandFailed, saying what is wrong with it."""
    from interlock.worker import TaskWorker

    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise CommandFailed(
            f"{target!r} is not MODULE:WORKER", ExitCode.USAGE, next="For worker = TaskWorker(…) in app.py: app:worker"
        )
    module = import_module(place)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, TaskWorker):
        return found
    known = sorted(key for key, value in vars(module).items() if isinstance(value, TaskWorker))
    what = "is not there" if found is None else f"is a {type(found).__name__}, not a TaskWorker"
    advice = f"It holds {', '.join(f'{place}:{key}' for key in known)}." if known else "It holds no TaskWorker by any name."
    raise CommandFailed(f"{name} of {place} {what}", ExitCode.USAGE, next=advice)


def import_module(place: str) -> ModuleType:
    """The module; the working folder is searched first, as `python -m` does. A fault in it is shown with its lines."""
    try:
        if place.endswith(".py"):
            return import_file(read_path(place))
        sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name and (place == error.name or place.startswith(f"{error.name}.")):
            advice = "Run it in the folder where the module is, or name its file: path/app.py:worker"
            raise CommandFailed(f"there is no module {place}", ExitCode.USAGE, next=advice) from None
        raise broken_module(place, error) from None
    except (CommandFailed, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit too: an import ends no worker silently.
        if isinstance(error, SystemExit) and error.code is ExitCode.TERMINATED:  # Ours: a signal came meanwhile.
            raise
        raise broken_module(place, error) from None


def import_file(path: Path) -> ModuleType:
    """The module of a file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise CommandFailed(f"there is no file {path}", ExitCode.USAGE)
    sys.path.insert(0, str(path.resolve().parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def broken_module(place: str, error: BaseException) -> CommandFailed:
    """The user's own fault, with the lines of the user's own code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename != __file__ and "importlib" not in frame.filename]
    lines = [f"{place} cannot be imported: {type(error).__name__}: {error}"]
    lines += [f'  File "{frame.filename}", line {frame.lineno}: {frame.line or ""}' for frame in own]
    return CommandFailed("\n".join(show_plainly(line) for line in lines), ExitCode.USAGE)
