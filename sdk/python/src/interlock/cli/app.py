"""The tree of commands, and how a run of one becomes an exit status."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from interlock.cli import nothing
from interlock.cli.exits import CommandFailed, ExitCode, exit_code, exit_table
from interlock.cli.options import HELP, SHARED
from interlock.cli.output import Output
from interlock.cli.plain_values import convert_late
from interlock.cli.session import show_traceback
from interlock.cli.streams import OutputClosed
from interlock.cli.tree import TREE, Commands
from interlock.errors import ApiError, InterlockError, Unreachable
from interlock.version import VERSION

SETTINGS = """\
Environment:
  INTERLOCK_URL           the service
  INTERLOCK_PRODUCER_KEY  submits, reads, cancels (likewise _WORKER_KEY, _OPERATOR_KEY, _METRICS_KEY, _ADMIN_KEY)
  INTERLOCK_PROFILE       a profile of ~/.config/interlock/profiles.json to take both from
  The options --url, --key and --profile of a command win over these. Other users may see arguments: keep keys out of them.

What is typed:
  durations               90, 1.5s, 15m, 2h, 7d; times are RFC 3339, or a duration from now (in filters: ago)
  JSON                    as it stands, @file, or - for standard input; it is sent as written, every digit of it
  TYPE                    group/name, or group/name@2 with its version

With --json standard output holds JSON and nothing else; notices go to standard error:
  most commands           one document: the service's answer
  lists                   {"items", "nextCursor"}
  tasks watch             one event a line, at last {"kind": "end", "status", "settled", "task"}
  tasks top               a line for each look: {"at", "types", "workers"}
  worker run              a line of kind "started", and one of kind "stopped"
  tasks doctor            {"severity", "exitCode", "findings": [{"check", "severity", "fact", "next"}], "service"}
  a failure               {"error": {"exitCode", "exit", "message", "next", "code", "status", "requestId", "errors"}}
Control, ANSI, bidirectional and invisible characters of others are shown as escapes, in words and in JSON."""

EPILOG = "\n\n".join(f"\b\n{part}" for part in (*SETTINGS.split("\n\n"), f"Exit status:\n{exit_table()}"))


def build(ready: Callable[[], None] = nothing) -> Any:
    """The whole command. `ready` is called when a command of it has been chosen and is about to run."""
    app = typer.Typer(
        help="Submit durable tasks, watch them, settle them, run workers.",
        epilog=EPILOG,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=HELP,
    )
    app.callback()(start)
    root = convert_late(typer.main.get_command(app))
    root.commands = Commands(TREE, ready)
    return root


def show_version(asked: bool) -> None:
    """Say the version, if that is the question."""
    if asked:
        sys.stdout.write(f"interlock {VERSION}\n")
        raise typer.Exit


def start(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Submit durable tasks, watch them, settle them, run workers."""


def run(arguments: list[str], ready: Callable[[], None] = nothing) -> int:
    """Run one command line and return its exit status; `ready` as for `build`.

    Raises OutputClosed; OSError where the output cannot be written.
    """
    verbose = "--verbose" in arguments
    # Needed where a command line is so wrong that no option of it was read.
    out = Output(json="--json" in arguments)
    try:
        ended = build(ready).main(args=arguments, prog_name="interlock", standalone_mode=False)
        sys.stdout.flush()
        return int(ended) if isinstance(ended, int) else ExitCode.OK
    except OutputClosed:
        raise
    except (KeyboardInterrupt, typer.Abort):
        return tell(out, CommandFailed("interrupted", ExitCode.INTERRUPTED))
    except SystemExit as error:  # What the argument parser does by itself, completion scripts for one.
        return error.code if isinstance(error.code, int) else ExitCode.UNEXPECTED
    except Exception as error:
        if verbose and exit_code(error) is ExitCode.UNEXPECTED:
            show_traceback()
        return tell(out, usage_error(out, error) or error)


def usage_error(out: Output, error: Exception) -> CommandFailed | None:
    """The complaint of the argument parser in our words; None for any other error."""
    # Not by its class: the parser's library is a part of typer in some versions, and apart from it in others.
    if not (hasattr(error, "format_message") and hasattr(error, "exit_code")):
        return None
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "interlock"
    message = str(error.format_message()).replace(": Value error, ", ": ")  # A word of the parser's library.
    if not message or message.startswith("Usage:"):  # A group without a command: the whole help is no message.
        if context is not None:
            out.notice(context.get_help())
        message = "a command is missing"
    advice = f"`{path} --help` shows what it takes."
    option = getattr(error, "option_name", None)
    if option in {f"--{name}" for name, *_ in SHARED} and hasattr(getattr(context, "command", None), "commands"):
        advice = f"It belongs behind the command: {path} … {option}"
    return CommandFailed(message, ExitCode.USAGE, next=advice)


def tell(out: Output, error: BaseException) -> int:
    """Say what went wrong: in words on standard error, with `--json` as a document on standard output too."""
    code = exit_code(error)
    message = describe(error, code)
    advice = getattr(error, "next", "") or ""
    if isinstance(error, Unreachable):
        from interlock.cli.service_checks import advise_reach  # a command that is answered needs no doctor

        advice = advise_reach(str(error))
    out.notice(f"interlock: {message}")
    if advice:
        out.notice(f"  {advice}")
    if isinstance(error, ApiError) and error.request_id:
        out.notice(f"  request {error.request_id}")
    if out.json:
        with contextlib.suppress(OSError):  # An output that cannot be written may be what went wrong.
            out.record({"error": error_facts(error, code, message, advice)})
    return code


def describe(error: BaseException, code: ExitCode) -> str:
    """The error in one sentence."""
    if isinstance(error, ApiError):
        told = [item for item in error.errors[:5] if str(item.get("message", "")) not in error.detail]
        places = "".join(f" [{item.get('pointer', '')}: {item.get('message', '')}]" for item in told)
        return f"{error.code} ({error.status}): {error.detail or error.title}{places}"
    if isinstance(error, (InterlockError, CommandFailed, TimeoutError)):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.strerror or type(error).__name__}{f': {error.filename}' if error.filename else ''}"
    hint = " (--verbose shows where)" if code is ExitCode.UNEXPECTED else ""
    return f"unexpected {type(error).__name__}: {error}{hint}"


def error_facts(error: BaseException, code: ExitCode, message: str, advice: str) -> dict[str, Any]:
    """The error for programs."""
    facts: dict[str, Any] = {"exitCode": int(code), "exit": code.name.lower().replace("_", "-"), "message": message}
    if advice:
        facts["next"] = advice
    if isinstance(error, ApiError):
        facts |= {"code": error.code, "status": error.status, "detail": error.detail, "retryable": error.retryable}
        facts |= {"requestId": error.request_id, "errors": error.errors}
    return facts
