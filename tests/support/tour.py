"""A page's tour, followed to the letter: its files are written, its commands are typed into one shell, what it shows is compared.

In a page, a block ```python that begins with a comment `# worker.py` is that file (`# worker.py, and more` adds to it). In a block
```console a line `$ …` is typed, and what follows is what it prints. Some things differ from run to run: instants, request ids,
processes, ports, and UUIDs (one of the page stands for one of the run, in later commands too). `…` stands for anything, alone on a line
for any lines.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w.]+\.py)(,.*)?\n")
VARIES = re.compile(
    r"(?P<uuid>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
    r"|(?P<day>\d{4}-\d\d-\d\d[ T])?(?P<time>\d\d:\d\d:\d\d(\.\d+)?Z?)"
    r"|(?P<hex>\b[0-9a-f]{32}\b)"
    r"|(?P<number>(?<=process )\d+|(?<=passed in )\d+\.\d+)"
    r"|(?P<port>http://127\.0\.0\.1:\d+)"
    r"|(?P<lines>^…\n|\n…\Z)"
    r"|(?P<any>…)",
    re.MULTILINE,
)
SECONDS = 40.0


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    text: str

    @property
    def file(self) -> tuple[str, bool] | None:
        """The name of the file that it is, and whether it adds to it."""
        found = FILE.match(self.text) if self.language == "python" else None
        return (found[1], found[2] is not None) if found else None

    def typed(self) -> Iterator[tuple[str, str]]:
        """Its commands, each with what it prints."""
        for piece in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            command, _, shown = piece.partition("\n")
            yield command, shown.rstrip("\n")


def read_blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return [Block(language, text) for language, text in FENCE.findall(page.read_text(encoding="utf-8"))]


@dataclass
class Names:
    """The UUIDs of a page, each with the one of this run."""

    known: dict[str, str] = field(default_factory=dict)

    def put(self, command: str) -> str:
        """A command of the page with the UUIDs of this run."""
        for page, real in self.known.items():
            command = command.replace(page, real)
        return command

    def meets(self, shown: str, printed: str) -> bool:
        """Whether a run printed what the page shows; learns the UUIDs that it printed first."""
        new: list[str] = []

        def vary(found: re.Match[str]) -> str:
            if one := found["uuid"]:
                if one in self.known:
                    return re.escape(self.known[one])
                if one in new:
                    return rf"(?P=u{new.index(one)})"
                new.append(one)
                return rf"(?P<u{len(new) - 1}>[0-9a-f-]{{36}})"
            if found["time"]:
                return (r"\d{4}-\d\d-\d\d[ T]" if found["day"] else "") + r"\d\d:\d\d:\d\d(?:\.\d+)?Z?"
            if found["hex"]:
                return "[0-9a-f]{32}"
            if found["port"]:
                return r"http://127\.0\.0\.1:\d+"
            if found["number"]:
                return r"\d+(?:\.\d+)?"
            if lines := found["lines"]:
                return r"(?:.*\n)*?" if lines.endswith("\n") else r"(?:\n.*)*"
            return r"(?s:.*?)"

        parts, at = [], 0
        for found in VARIES.finditer(shown):
            parts += [re.escape(shown[at : found.start()]), vary(found)]
            at = found.end()
        pattern = "".join([*parts, re.escape(shown[at:])])
        match = re.fullmatch(pattern, printed)
        if match is None:
            return False
        self.known.update({one: match[f"u{number}"] for number, one in enumerate(new)})
        return True


class Shell:
    """One bash in a folder. What it starts ends with it."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"], cwd=folder, env={**os.environ, "PATH": path, **environment},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):  # workers of the tour drain on the first
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._bash.pid, number)
            self._reader.join(15)  # its pipe is closed when the last of the group has ended
        self._bash.wait(10)
        for pipe in (self._bash.stdin, self._bash.stdout):
            assert pipe is not None
            pipe.close()

    def type(self, command: str) -> str:
        """What the command prints, errors included, but for the last line's end."""
        assert self._bash.stdin is not None
        mark = f"--{uuid.uuid4()}--"
        self._bash.stdin.write(f"{command}\necho; echo {mark}\n")
        self._bash.stdin.flush()
        printed: list[str] = []
        end = time.monotonic() + SECONDS
        while True:
            line = self._lines.get(timeout=max(0.01, end - time.monotonic()))
            if line.strip() == mark:
                return "".join(printed).rstrip("\n")
            printed.append(line)

    def _read(self) -> None:
        assert self._bash.stdout is not None
        for line in self._bash.stdout:
            self._lines.put(line)


def follow(page: Path, folder: Path, shell: Shell, before: Callable[[str, str], str | None]) -> list[str]:
    """Follow the page; the commands that were typed. Raises `AssertionError` where a run prints something else than the page.

    `before(command, shown)` is asked before each one: it may wait for what the command needs, and gives what is to be typed (None:
    nothing). What only reads is typed again for a while, as a reader would who looks too early.
    """
    names, typed = Names(), []
    for block in read_blocks(page):
        if block.file is not None:
            name, more = block.file
            with (folder / name).open("a" if more else "w", encoding="utf-8") as file:
                file.write(block.text)
        if block.language != "console":
            continue
        for command, shown in block.typed():
            asked = before(command, shown)
            if asked is None:
                continue
            end = time.monotonic() + SECONDS
            while not names.meets(shown, printed := shell.type(names.put(asked))):
                looks = re.match(r"interlock tasks (get|list|journal|workers|types|doctor)\b", command)
                if not looks or time.monotonic() > end:
                    raise AssertionError(f"{page.name}: $ {command}\nis shown with\n{shown}\n\nand printed\n{printed}")
            typed.append(command)
    return typed
