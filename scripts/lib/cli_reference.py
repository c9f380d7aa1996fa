"""Writes docs/cli.md from the command itself: every command, argument, option and exit status.

usage: cli_reference.py [--check]     --check writes nothing and fails where the page is not what would be written
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from enum import Enum
from typing import Any

from interlock.cli.app import SETTINGS, build
from interlock.cli.exits import MEANINGS
from interlock.cli.options import SHARED
from template import ROOT

PAGE = ROOT / "docs" / "cli.md"
# What every command takes stands once, above; what the parser adds by itself needs no word.
COMMON = {name for name, _, _ in SHARED}
UNTOLD = {"help", "install_completion", "show_completion"}


def write_page() -> str:
    """The page's text."""
    root = build()
    commands = list(find_commands(root, "interlock"))
    example: Any = commands[0][1]
    lines = [
        "# The `interlock` command",
        "",
        "Made from the command by `scripts/check --fix`; `interlock … --help` says the same.",
        "",
        "```text",
        SETTINGS,
        "```",
        "",
        "## Every command takes",
        "",
        *describe_options([option for option in example.params if option.name in COMMON]),
        "",
        "## Commands",
        "",
    ]
    for path, command in commands:
        lines += describe_command(path, command)
    lines += ["## Exit status", "", "| status | meaning |", "| ---: | --- |"]
    lines += [f"| {code.value} | {meaning} |" for code, meaning in MEANINGS.items()]
    return "\n".join(lines) + "\n"


def find_commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command below a group that does something, with the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from find_commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def describe_command(path: str, command: Any) -> list[str]:
    own = [parameter for parameter in command.params if parameter.name not in COMMON | UNTOLD]
    arguments = [parameter for parameter in own if parameter.param_type_name == "argument"]
    words = [name_of(argument) if argument.required else f"[{name_of(argument)}]" for argument in arguments]
    lines = [f"### `{' '.join([path, *words])}`", "", " ".join((command.help or "").split()), ""]
    rows = [f"| `{name_of(argument)}` | {cell(argument.help)} |" for argument in arguments if argument.help]
    options = describe_options([parameter for parameter in own if parameter not in arguments], head=not rows)
    table = ["| | |", "| --- | --- |", *rows, *options] if rows else options
    return [*lines, *table, ""] if table else lines


def describe_options(options: list[Any], head: bool = True) -> list[str]:
    """A table row for each option."""
    rows = []
    for option in options:
        names = ", ".join([*option.opts, *option.secondary_opts])
        rows.append(f"| `{cell(f'{names} {value_of(option)}'.strip())}` | {cell(option.help)} |")
    return [*(["| | |", "| --- | --- |"] if head and rows else []), *rows]


def value_of(option: Any) -> str:
    if option.is_flag:
        return ""
    kind = option.type_descriptor.annotation
    if option.metavar:
        return str(option.metavar)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(choice.value) for choice in kind)
    if kind is int and option.min is not None and option.max is not None:
        return f"{option.min}…{option.max}"
    return "N" if kind is int else str(option.name).upper()


def name_of(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper()).strip("{}[]")


def cell(text: str | None) -> str:
    """Text that does not break out of a table."""
    return " ".join((text or "").split()).replace("|", "\\|")


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    text = write_page()
    found = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    if not arguments:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    difference = list(
        difflib.unified_diff(found.splitlines(), text.splitlines(), "docs/cli.md", "docs/cli.md, made anew", lineterm="", n=1)
    )
    if difference:
        print("\n".join(difference[:40]))
        print("run: scripts/check --fix")
    return int(bool(difference))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
