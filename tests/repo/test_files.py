"""Sizes, names and words of the repository's files."""

from __future__ import annotations

import re
import statistics
import subprocess
from pathlib import Path

import pytest

from repo.tree import ROOT, short, tracked

CODE = [path for path in tracked(".py", ".sql", ".sh", ".ts", ".js", ".mjs", ".java", ".go") if "generated" not in path.parts]
PRODUCT = [path for path in CODE if "tests" not in path.relative_to(ROOT).parts]
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "misc", "manager", "service_base"}
# Pieces, so that this file does not find itself.
MACHINE_PATHS = re.compile("|".join(["/" + "work/", "/tmp/" + "notes", "/" + "root/", "/home/" + r"\w+/"]))
BINARY = {".png", ".ico", ".gz", ".woff2", ".jar"}


@pytest.mark.parametrize("path", CODE, ids=short)
def test_no_file_is_longer_than_400_lines(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= 400


def test_the_median_file_of_the_product_is_short() -> None:
    assert statistics.median(len(path.read_text(encoding="utf-8").splitlines()) for path in PRODUCT) <= 150


def test_no_file_has_a_name_that_takes_anything() -> None:
    assert [short(path) for path in CODE if path.stem.lower() in VAGUE_NAMES] == []


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    found = []
    for path in tracked():
        if path.suffix in BINARY or path.name == "uv.lock":
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if MACHINE_PATHS.search(line):
                found.append(f"{short(path)}:{number}: {line.strip()[:100]}")
    assert found == []


def test_programs_can_be_run() -> None:
    for path in (ROOT / "scripts").iterdir():
        if path.is_file():
            assert path.stat().st_mode & 0o111, f"{short(path)} is not executable"
            assert path.read_text(encoding="utf-8").startswith("#!"), short(path)


def test_migrations_are_numbered_without_gaps() -> None:
    names = sorted(path.name for path in (ROOT / "migrations").glob("*.sql"))
    assert [name[:5] for name in names] == [f"{number:04}_" for number in range(1, len(names) + 1)]


def test_shell_programs_parse() -> None:
    shell = [
        path
        for path in tracked()
        if path.suffix == ".sh" or (not path.suffix and path.read_bytes()[:32].startswith(b"#!/usr/bin/env bash"))
    ]
    assert shell
    for path in shell:
        checked = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stderr
