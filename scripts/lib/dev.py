"""The whole service on one machine: database, every function, the stream and the scheduled work, on one port.

Started by `scripts/dev`. Everything it starts ends with it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import uvloop
from psycopg.conninfo import conninfo_to_dict

import guard
from data_folder import FolderUnusable, lock_folder, write_private
from interlock_core.background import end
from interlock_core.db import Database
from interlock_core.errors import Unavailable
from interlock_core.keys import bootstrap
from interlock_core.migrate import MigrationError, migrate
from interlock_core.settings import Settings, SettingsError
from os_user import NoOsUser
from postgres import Postgres, PostgresFailed
from postgres_binaries import OLDEST, NoPostgres
from service import RouteMissing, Scheduled, build_app, close_streams, load_scheduled, stream_lifespan
from template import ROOT
from web import DatabaseEnded, PortTaken, Web, listen

PROJECT = "dev"
DEFAULT_PORT = 7420
#: What a local host sets unless the environment does: it may hold long waits, being the stream host too.
LOCAL_SETTINGS = {"POOL_SIZE": "10", "FUNCTION_WAIT_SECONDS": "20", "SWEEP_SECONDS": "1"}
#: The gateway's schedules cannot be finer than a minute; here what runs every minute runs every second.
FINEST_SCHEDULE, LOCAL_SCHEDULE = 60.0, 1.0

log = logging.getLogger("interlock.dev")


class DatabaseUnusable(Exception):
    """The given database is of a Postgres that we do not support, or its address is none."""


REFUSALS = (
    *(PostgresFailed, NoPostgres, NoOsUser, FolderUnusable, PortTaken),
    *(DatabaseEnded, DatabaseUnusable, MigrationError, SettingsError, psycopg.OperationalError, Unavailable, RouteMissing),
)


#: Serves until a signal says to stop, given: arguments, folder, database, our own server of it, socket, the host's address.
Serve = Callable[[argparse.Namespace, Path, str, Postgres | None, socket.socket, str], Coroutine[Any, Any, int]]


def main() -> int:
    return run_host("scripts/dev", make_parser("scripts/dev", "Run the whole service on this machine.").parse_args(), serve)


def run_host(program: str, arguments: argparse.Namespace, serve: Serve, *refusals: type[Exception]) -> int:
    """Runs `serve` on a migrated database, a bound port and a folder of this process alone; returns the exit status."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    folder: Path = arguments.data.resolve()
    try:
        with open_database(folder, arguments.database_url) as (url, server), listen(arguments.port) as listener:
            prepare_database(url)
            port = listener.getsockname()[1]
            service_url = f"http://127.0.0.1:{port}"
            configure(url, service_url)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(serve(arguments, folder, url, server, listener, service_url))
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if not isinstance(error, (*REFUSALS, *refusals)):
            raise
        print(f"{program}: {str(error).strip()}", file=sys.stderr)
        return 1


def make_parser(program: str, description: str) -> argparse.ArgumentParser:
    """The flags of a local host."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument(
        "--port", type=read_port, default=DEFAULT_PORT, help=f"port on 127.0.0.1 (default {DEFAULT_PORT}); 0 takes any free one"
    )
    parser.add_argument(
        "--data", type=Path, default=ROOT / ".interlock", help="folder for the database, keys and dev.json (default .interlock)"
    )
    parser.add_argument(
        "--database-url", help="use this Postgres (15 or newer) and start none: yours, or another node's databaseUrl"
    )
    parser.add_argument(
        "--demo", action="store_true", help="start a worker, run two tasks on it and show what happened; then go on serving"
    )
    parser.add_argument(
        "--no-schedule", action="store_true", help="run nothing by the clock: for tests that move the clock and sweep themselves"
    )
    return parser


def read_port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 0 to 65535")
    return int(text)


@contextlib.contextmanager
def open_database(folder: Path, database_url: str | None) -> Iterator[tuple[str, Postgres | None]]:
    """The address of the database to use, and the server if it is ours. Holds the data folder meanwhile."""
    if database_url is not None:
        with lock_folder(folder):
            yield database_url, None
        return
    with Postgres(folder) as server:
        server.create_database("interlock")
        yield server.url("interlock"), server


def prepare_database(url: str) -> None:
    """Bring the schema up to date. Raises `DatabaseUnusable`, `MigrationError`, `psycopg.OperationalError`."""
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError:  # its message may quote the password
        raise DatabaseUnusable("--database-url cannot be read: it looks like postgresql://user:password@host:port/name") from None
    with psycopg.connect(url, connect_timeout=10) as connection:
        version = connection.info.server_version
        if version < OLDEST * 10_000:
            raise DatabaseUnusable(f"the database is Postgres {version // 10_000}; Interlock needs {OLDEST} or newer")
    applied = migrate(url, ROOT / "migrations")
    if applied:
        print(f"Database brought up to date: {', '.join(applied)}", flush=True)


def configure(database_url: str, service_url: str) -> None:
    """Tell the core, which reads its settings from the environment, what this host is."""
    for name, value in LOCAL_SETTINGS.items():
        os.environ.setdefault(f"INTERLOCK_SERVER_{name}", value)
    os.environ["INTERLOCK_SERVER_DATABASE_URL"] = database_url
    os.environ.setdefault("INTERLOCK_SERVER_STREAM_URL", service_url)


async def serve(
    arguments: argparse.Namespace, folder: Path, url: str, server: Postgres | None, listener: socket.socket, service_url: str
) -> int:
    """Serve until a signal says to stop; returns the exit status. Raises `DatabaseEnded`."""
    settings = Settings.from_environment()
    app = build_app(settings)
    async with open_pool(settings) as database:
        app.state.database = database
        info = await write_info(folder, database, url, service_url, settings.stream_url)
        scheduled = [] if arguments.no_schedule else load_scheduled()
        jobs = {job.name: (job.every_seconds, start_job(job, database, settings)) for job in scheduled}
        async with stream_lifespan(app), run_jobs(jobs), Web(app, listener, partial(close_streams, app)) as web:
            return await serve_until_told(web, server, info, folder, arguments.demo)


async def write_info(folder: Path, database: Database, url: str, service_url: str, stream_url: str) -> dict[str, Any]:
    """Make the project and its keys, unless they are there, and tell programs of them and of this host's addresses."""
    keys = await bootstrap(database, PROJECT, read_keys(folder / "dev.json"))
    info = {"serviceUrl": service_url, "streamUrl": stream_url, "databaseUrl": url, "project": PROJECT, "keys": keys}
    write_private(folder / "dev.json", json.dumps(info, indent=2) + "\n")
    return info


async def serve_until_told(web: Web, server: Postgres | None, info: dict[str, Any], folder: Path, with_demo: bool) -> int:
    """Returns when a signal came, with the exit status. Raises `DatabaseEnded`."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, web.stop)
    print_info(info, folder)
    gc.collect()
    gc.freeze()  # as an execution environment does it, and the stream's host
    demo = start_demo(folder) if with_demo else None
    status = 0
    try:
        await web.wait(server)
    finally:
        # The demo's worker first: it drains through the service.
        if demo is not None:
            status = min(1, await asyncio.to_thread(demo.stop))
    return status


#: One run of a scheduled function.
Job = Callable[[], Awaitable[Any]]


def start_job(job: Scheduled, database: Database, settings: Settings) -> Job:
    return lambda: job.run(database, settings)


@contextlib.asynccontextmanager
async def run_jobs(jobs: Mapping[str, tuple[float, Job]]) -> AsyncIterator[None]:
    """The scheduled functions run within the block: `{name: (seconds from one run to the next, run)}`."""
    running = [asyncio.create_task(run_on_schedule(name, every, run)) for name, (every, run) in jobs.items()]
    try:
        yield
    finally:
        await end(running)


@contextlib.asynccontextmanager
async def open_pool(settings: Settings) -> AsyncIterator[Database]:
    database = Database(settings.database_url, settings.pool_size, settings.prepare_statements)
    try:
        yield database
    finally:
        await database.close()


async def run_on_schedule(name: str, every_seconds: float, run: Job) -> None:
    """Run a scheduled function for ever; a failing run is told and followed by the next."""
    every = LOCAL_SCHEDULE if every_seconds <= FINEST_SCHEDULE else every_seconds
    while True:
        try:
            await run()
        except Unavailable as error:
            log.warning("%s could not run: %s", name, error)
        except Exception:
            log.exception("%s failed; it runs again in %g s", name, every)
        await asyncio.sleep(every)


def read_keys(path: Path) -> dict[str, str]:
    """The keys of the last run on this folder: those that still work stay the same."""
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError):
        keys: dict[str, str] = json.loads(path.read_text())["keys"]
        return keys
    return {}


def print_info(info: dict[str, Any], folder: Path) -> None:
    lines = [
        f"Interlock serves on {info['serviceUrl']}",
        f"  stream         {info['streamUrl']}/v1/stream",
        f"  database       {info['databaseUrl']}",
        *(f"  {kind:<14} {key}" for kind, key in info["keys"].items()),
        f"  for programs   {folder / 'dev.json'}",
        "Ctrl-C stops everything.",
    ]
    print("\n".join(lines), flush=True)


def start_demo(folder: Path) -> guard.Guarded:
    """The demo in a process of its own, with its worker below it; its exit status says whether it worked."""
    return guard.start(
        [sys.executable, str(ROOT / "scripts" / "lib" / "demo.py"), str(folder / "dev.json")],
        output=sys.stdout.fileno(),
        cwd=ROOT,
        stop_plan=((signal.SIGTERM, 4.0), (signal.SIGKILL, 2.0)),
    )


if __name__ == "__main__":
    sys.exit(main())
