"""What a command prints: tables and lines for people, or JSON for programs, and notices on standard error."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

from interlock.cli.plain import show_lines, show_plainly, to_json
from interlock.cli.streams import OutputClosed, speaks_utf8

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

STYLES = {
    "succeeded": "green",
    "failed": "red",
    "cancelled": "yellow",
    "outcome-unknown": "bold magenta",
    "running": "cyan",
    "ready": "green",
    "full": "cyan",
    "draining": "yellow",
    "offline": "red",
    "ok": "green",
    "warning": "yellow",
    "error": "bold red",
}
"""Colours of single words, on a terminal only."""


class Output:
    """One command's output. With `json`, standard output holds JSON and nothing else."""

    def __init__(self, *, json: bool = False) -> None:
        self.json = json
        self.terminal = sys.stdout.isatty()
        self._console = make_console(sys.stdout) if self.terminal else None
        self._live: Live | None = None

    def document(self, value: Any) -> None:
        """One JSON document: the whole answer."""
        sys.stdout.write(to_json(value, indent=2, ascii_only=not speaks_utf8(sys.stdout)) + "\n")
        sys.stdout.flush()

    def record(self, value: Any) -> None:
        """One line of JSON, out at once: a stream of them is the answer."""
        sys.stdout.write(to_json(value, ascii_only=not speaks_utf8(sys.stdout)) + "\n")
        sys.stdout.flush()

    def lines(self, *lines: str) -> None:
        """Lines for people; the first word is coloured if it is a state. What they hold of others is shown plainly."""
        for line in lines:
            word, space, rest = show_plainly(line).partition(" ")
            self._print([(word, STYLES.get(word, "")), (space + rest, "")])
        sys.stdout.flush()

    def value(self, value: Any, indent: str = "") -> None:
        """A JSON value for people, on as many lines as it needs."""
        for line in to_json(value, indent=2).split("\n"):
            self._print([(indent + line, "")])
        sys.stdout.flush()

    def table(self, head: Sequence[str], rows: Iterable[Sequence[str]], *, widths: list[int] | None = None) -> list[int]:
        """A table whose cells are never cut. Without `widths` (of a page before) the head is printed; returns the widths."""
        plain = [[show_plainly(cell) for cell in row] for row in rows]
        first = widths is None
        if widths is None:
            widths = [max([cell_len(name), *(cell_len(row[place]) for row in plain)]) for place, name in enumerate(head)]
        if first and head:
            self._print([(pad(head, widths), "bold")])
        for row in plain:
            self._print(style_cells(row, widths))
        sys.stdout.flush()
        return widths

    def screen(self, lines: Sequence[str]) -> None:
        """Lines in the place of those drawn before, as many and as much of each as the terminal shows; else below them."""
        console = self._console
        if console is None or console.is_dumb_terminal or console.legacy_windows:
            self.lines(*lines, "")
            return
        width, height = console.size
        from rich.cells import set_cell_size

        shown = [set_cell_size(line, width - 1) for line in map(show_plainly, lines[: height - 1])]
        # Home, each line to its end, and nothing left below: drawn over, so that it does not flicker.
        sys.stdout.write("\x1b[H" + "".join(f"{line.rstrip()}\x1b[K\n" for line in shown) + "\x1b[J")
        sys.stdout.flush()

    def facts(self, pairs: Iterable[tuple[str, Any]]) -> None:
        """Names and values, one pair a line; those that are None or empty are left out. A long text keeps its lines."""
        shown = [(name, str(value)) for name, value in pairs if value not in (None, "")]
        width = max((cell_len(name) for name, _ in shown), default=0)
        for name, value in shown:
            first, *more = show_lines(value)
            self._print([(name.ljust(width) + "  ", "bold"), (first, STYLES.get(first, ""))])
            for line in more:
                self._print([(" " * (width + 2) + line, "")])
        sys.stdout.flush()

    def notice(self, text: str) -> None:
        """A line on standard error."""
        for line in show_lines(text):
            if self._live is not None and sys.stderr.isatty():  # Above the moving line, not through it.
                self._live.console.print(line)
            else:
                sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    @contextlib.contextmanager
    def done(self, what: str) -> Iterator[None]:
        """Around printing the answer of a call that changed something: where it cannot be printed, standard error says `what`."""
        try:
            yield
        except (OSError, OutputClosed):
            self.notice(what)
            raise

    @contextlib.contextmanager
    def status(self, text: str) -> Iterator[Callable[[str], None]]:
        """A line that moves while something is waited for, on a terminal only; gives a function that changes its text."""
        console = self._console if not self.json else None
        if console is None and sys.stderr.isatty():
            console = make_console(sys.stderr)
        if console is None or console.is_dumb_terminal:
            yield lambda _: None
            return
        from rich.live import Live
        from rich.spinner import Spinner
        from rich.text import Text

        spinner = Spinner("dots" if speaks_utf8(console.file) else "line", Text(show_plainly(text)))
        # Redirecting would put the JSON of standard output on the terminal's line.
        with Live(spinner, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as live:
            self._live = live
            try:
                yield lambda words: spinner.update(text=Text(show_plainly(words)))
            finally:
                self._live = None

    def _print(self, parts: Sequence[tuple[str, str]]) -> None:
        if self._console is None:
            sys.stdout.write("".join(text for text, _ in parts).rstrip(" ") + "\n")
            return
        from rich.text import Text

        line = Text.assemble(*parts)
        line.rstrip()
        self._console.print(line)


def make_console(stream: IO[str]) -> Console:
    """A terminal that shows text as it is, on as many of its lines as it needs."""
    from rich.console import Console

    return Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True)


def cell_len(text: str) -> int:
    """The places that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def pad(cells: Sequence[str], widths: Sequence[int]) -> str:
    """The cells of a row at their columns; a wide character takes two places."""
    return "  ".join(cell + " " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True)).rstrip()


def style_cells(cells: Sequence[str], widths: Sequence[int]) -> list[tuple[str, str]]:
    """The parts of a row, states coloured."""
    parts = []
    for cell, width in zip(cells, widths, strict=True):
        parts += [(cell, STYLES.get(cell, "")), (" " * (width - cell_len(cell) + 2), "")]
    return parts
