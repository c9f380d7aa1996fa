"""What every command takes: where the service is, which key, and how to answer. Declared once, given to all."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any, get_type_hints

import typer

from interlock.cli.completion import offer_profiles
from interlock.cli.exits import CommandFailed, ExitCode
from interlock.cli.plain_values import convert_late
from interlock.cli.session import Session
from interlock.cli.values import read_duration

SHARED: tuple[tuple[str, Any, Any], ...] = (
    (
        "url",
        Annotated[str, typer.Option("--url", metavar="URL", help="The service. Default: INTERLOCK_URL, then the profile.")],
        "",
    ),
    (
        "key",
        Annotated[
            str,
            typer.Option(
                "--key",
                metavar="KEY",
                help="The key. Other users may see arguments: better set INTERLOCK_PRODUCER_KEY or the like.",
            ),
        ],
        "",
    ),
    (
        "profile",
        Annotated[
            str,
            typer.Option(
                "--profile", metavar="NAME", help="The profile. Default: INTERLOCK_PROFILE.", autocompletion=offer_profiles
            ),
        ],
        "",
    ),
    (
        "patience",
        Annotated[
            str,
            typer.Option("--patience", metavar="S", help="How long to ask again while the service gives no answer. Default: 10."),
        ],
        "",
    ),
    (
        "json",
        Annotated[bool, typer.Option("--json", help="Answer in JSON on standard output; notices go to standard error.")],
        False,
    ),
    ("verbose", Annotated[bool, typer.Option("--verbose", help="Say on standard error what is asked of the service.")], False),
)


HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"]}


def make_command(name: str, function: Callable[..., Any], ready: Callable[[], None]) -> Any:
    """The command of a function: its first argument is the Session, the others are its own options.

    Before it runs, what its module names as `LATER` is imported (absent: the HTTP client), and `ready` is called. Ctrl-C
    anywhere in it ends it as exit status 130.
    """
    hints = get_type_hints(function, include_extras=True)
    _session, *own = inspect.signature(function).parameters.values()
    parameters = [parameter.replace(annotation=hints[parameter.name]) for parameter in own]
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters += [inspect.Parameter(given, keyword, default=default, annotation=kind) for given, kind, default in SHARED]

    def run(*arguments: Any, **options: Any) -> Any:
        place = {given: options.pop(given) or None for given in ("url", "key", "profile")}
        patience = read_duration(options.pop("patience") or None, "--patience")
        for later in getattr(sys.modules[function.__module__], "LATER", ("interlock.client",)):
            import_module(later)
        ready()
        try:
            made = Session(**place, patience=patience, json=options.pop("json"), verbose=options.pop("verbose"))
            return function(made, *arguments, **options)
        except KeyboardInterrupt:
            raise CommandFailed("interrupted", ExitCode.INTERRUPTED) from None

    run.__name__, run.__doc__, run.__module__ = function.__name__, function.__doc__, function.__module__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=HELP)
    app.command(name)(run)
    return convert_late(typer.main.get_command(app))
