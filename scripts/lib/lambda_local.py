"""The built service on one machine: `sam build`'s artifacts under Lambda's runtime emulator, a gateway in front, the stream.

Started by `scripts/lambda-local`, with the flags and the `dev.json` of `scripts/dev`. Everything it starts ends with it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import guard
from built import Built, WrongPython, build_once
from dev import Job, make_parser, open_pool, run_host, run_jobs, serve_until_told, write_info
from events import make_scheduled_event
from front import Front, read_routes
from interlock_core.background import end
from interlock_core.settings import PREFIX, Settings
from pools import Pools
from postgres import Postgres
from sam_cli import ToolMissing
from template import ROOT, read_functions
from web import Web

#: Execution environments of each function; Lambda's own bound is the account's or the function's reserved concurrency.
ENVIRONMENTS = 4
#: A function holds no wait here, as on Lambda, and has one connection.
FUNCTION_SETTINGS = {"POOL_SIZE": "1", "FUNCTION_WAIT_SECONDS": "0"}

log = logging.getLogger("interlock.lambda")


class BuildFailed(Exception):
    """`sam build` refused the tree; the text is its output."""


class FunctionFailed(Exception):
    """A scheduled function answered with an error; the text says which."""


def main() -> int:
    parser = make_parser("scripts/lambda-local", "Run the built functions under Lambda's runtime emulator on this machine.")
    parser.add_argument(
        "--environments",
        type=read_environments,
        default=ENVIRONMENTS,
        help=f"execution environments of each function (default {ENVIRONMENTS})",
    )
    for name, value in FUNCTION_SETTINGS.items():
        os.environ.setdefault(PREFIX + name, value)
    return run_host("scripts/lambda-local", parser.parse_args(), serve, BuildFailed, ToolMissing, WrongPython)


def read_environments(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:  # with none, every call would wait for ever
        raise argparse.ArgumentTypeError(f"{text!r} is no number of environments: 1 or more")
    return int(text)


async def serve(
    arguments: argparse.Namespace, folder: Path, url: str, server: Postgres | None, listener: socket.socket, service_url: str
) -> int:
    """Serve until a signal says to stop; returns the exit status. Raises `BuildFailed`, `DatabaseEnded`."""
    built = await asyncio.to_thread(make_build)
    stream_port = 0
    stream_url = os.environ[PREFIX + "STREAM_URL"]  # an empty one is a choice: clients poll, and no stream is started
    if stream_url == service_url:  # what `configure` says of a host that is the stream too
        stream_port = free_port()
        stream_url = f"http://127.0.0.1:{stream_port}"
    settings = {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}
    settings |= {PREFIX + "STREAM_URL": stream_url}
    async with open_pool(Settings.from_environment({PREFIX + "DATABASE_URL": url})) as database:
        # First: everything below takes the processor for itself as soon as callers that waited for this host meet it.
        info = await write_info(folder, database, url, service_url, stream_url)
        async with (
            run_stream(stream_port, settings) if stream_port else contextlib.nullcontext(),
            Pools(built, url, settings, arguments.environments) as pools,
        ):
            jobs = {} if arguments.no_schedule else make_jobs(pools)
            front = Front(read_routes(built.template), pools.invoke)
            async with run_jobs(jobs), Web(front, listener) as web:
                return await serve_until_told(web, server, info, folder, arguments.demo)


def make_build() -> Built:
    try:
        return build_once()
    except subprocess.CalledProcessError as failure:
        raise BuildFailed(f"sam build failed:\n{failure.stderr}") from failure


def make_jobs(pools: Pools) -> Mapping[str, tuple[float, Job]]:
    """The template's scheduled functions, each as an event for its built form."""

    def make(logical_id: str) -> Job:
        async def run() -> Any:
            answer = await pools.invoke(logical_id, make_scheduled_event(logical_id))
            if isinstance(answer, dict) and "errorType" in answer:
                raise FunctionFailed(f"{logical_id}: {answer['errorType']}: {answer.get('errorMessage')}")
            return answer

        return run

    return {
        function.name: (function.every_seconds, make(function.logical_id))
        for function in read_functions()
        if function.every_seconds is not None
    }


@contextlib.asynccontextmanager
async def run_stream(port: int, settings: Mapping[str, str]) -> AsyncIterator[None]:
    """The stream's process runs within the block; one that ends is started again."""
    running = asyncio.create_task(_keep_stream(port, settings))
    try:
        yield
    finally:
        await end([running])


async def _keep_stream(port: int, settings: Mapping[str, str]) -> None:
    program = ROOT / "functions" / "stream" / "serve.py"
    # Several connections, as its container has: it reads for many at once.
    environment = {**os.environ, **settings, PREFIX + "POOL_SIZE": "4"}
    while True:
        child = guard.start(
            [sys.executable, str(program), "--host", "127.0.0.1", "--port", str(port)],
            output=sys.stderr.fileno(),
            environment=environment,
        )
        try:
            while child.poll() is None:  # noqa: ASYNC110 (the kernel tells a process's end to threads, and one is worth more)
                await asyncio.sleep(0.2)
        finally:
            await asyncio.to_thread(child.stop)
        log.warning("the stream's process ended (%s) and is started again", child.poll())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port: int = held.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
