"""The repository as the tests of this folder read it: files, source trees, documentation."""

from __future__ import annotations

import ast
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def tracked(*suffixes: str) -> tuple[Path, ...]:
    """Files that are, or would be, committed, with one of the suffixes (all without any); links are left out."""
    # A clone made for one test, or an unpacked archive, may have no .git: then everything outside dot-folders counts.
    found = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if found.returncode == 0:
        paths = [ROOT / name for name in found.stdout.decode().split("\0") if name]
    else:
        paths = [p for p in ROOT.rglob("*") if not any(part.startswith(".") for part in p.relative_to(ROOT).parts)]
    return tuple(sorted(p for p in paths if p.is_file() and not p.is_symlink() and (not suffixes or p.suffix in suffixes)))


@cache
def parse(path: Path) -> ast.Module:
    """The syntax tree of a Python file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imports(path: Path) -> set[str]:
    """The full names of the modules that a Python file imports, at any depth of its code."""
    found: set[str] = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
    return found


def documentation() -> str:
    """The text of every page that a user or an operator reads."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages if page.is_file())


def short(path: Path) -> str:
    """A path as it is written in a message."""
    return path.relative_to(ROOT).as_posix()
