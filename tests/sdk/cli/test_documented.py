"""Every command, option and exit status stands in docs/cli.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from interlock.cli.app import build
from interlock.cli.exits import MEANINGS

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "sdk" / "python" / "README.md"]
SHOWN = re.compile(r"(?:`|^\$ |; )interlock ([a-z]+)(?: ([a-z]+))?", re.MULTILINE)
BY_ITSELF = {"--help", "-h", "--version", "--install-completion", "--show-completion"}


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something, with its path."""
    below = getattr(command, "commands", None)
    if not below:
        yield path, command
        return
    for name, child in below.items():
        yield from commands(child, (*path, name))


def test_every_command_and_option_is_documented() -> None:
    found = dict(commands(build()))
    assert len(found) >= 16
    for path, command in found.items():
        assert f"### `interlock {' '.join(path)}" in PAGE, path
        options = {name for parameter in command.params for name in parameter.opts if name.startswith("-")}
        assert not [name for name in options - BY_ITSELF if not re.search(rf"`([^`]*, )?{name}\b", PAGE)], path
        assert {"--url", "--key", "--profile", "--json", "--verbose", "--patience"} <= options, path


def test_every_exit_status_is_documented() -> None:
    for code, meaning in MEANINGS.items():
        assert f"| {code.value} | {meaning} |" in PAGE


def test_every_command_that_a_page_shows_is_there() -> None:
    root = build().commands  # type: ignore[attr-defined]
    shown = 0
    for page in PAGES:
        for first, second in SHOWN.findall(page.read_text(encoding="utf-8")):
            assert first in root, (page.name, first)
            below = getattr(root[first], "commands", {})
            assert not below or not second or second in below, (page.name, first, second)
            shown += 1
    assert shown > 100
