"""docs/faults.md and the tests name the same cases.

A line of the page that names a case (B07) claims immunity, so a test `test_b07_…` must exist, unless the line, or the
heading it stands under, says `deferred`. A test named after a case must be in the page, and not as deferred.
"""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from repo.tree import ROOT, parse, tracked

PAGE = ROOT / "docs" / "faults.md"
CASE = re.compile(r"\bB(\d{2,3})\b")
NAMED = re.compile(r"test_((?:b\d{2,3}_)+)")


@cache
def find_tested() -> set[str]:
    files = [path for path in tracked(".py") if "tests" in path.relative_to(ROOT).parts]
    names = [
        node.name for path in files for node in ast.walk(parse(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return {case.upper() for name in names if (found := NAMED.match(name)) for case in found[1].strip("_").split("_")}


def read_page() -> tuple[set[str], set[str]]:
    """The cases claimed as done, and those told as deferred."""
    done: set[str] = set()
    deferred: set[str] = set()
    headings: dict[int, bool] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        says = "deferred" in line.lower()
        if heading := re.match(r"#+", line):
            level = len(heading[0])
            headings = {depth: value for depth, value in headings.items() if depth < level} | {level: says}
        later = says or any(headings.values())
        # The first id is what the line is about; further ones are mentions.
        if first := CASE.search(line):
            (deferred if later else done).add(f"B{first[1]}")
    return done, deferred - done


@pytest.fixture(scope="module")
def page() -> tuple[set[str], set[str]]:
    if not PAGE.exists():
        pytest.skip("docs/faults.md is not written yet")
    return read_page()


def test_every_case_claimed_has_its_test(page: tuple[set[str], set[str]]) -> None:
    assert page[0] - find_tested() == set()


def test_every_test_of_a_case_is_told(page: tuple[set[str], set[str]]) -> None:
    assert find_tested() - page[0] == set()
