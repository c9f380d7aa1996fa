"""The SDK's public surface: what a release promises to keep."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

import interlock
from repo.tree import ROOT, parse

FROZEN = ROOT / "tests" / "repo" / "public_surface.txt"
INIT = ROOT / "sdk" / "python" / "src" / "interlock" / "__init__.py"


def test_the_public_names_are_the_frozen_ones() -> None:
    # A name that is added belongs into the file, and into the changelog; one that leaves breaks somebody's program.
    assert sorted(interlock.__all__) == FROZEN.read_text(encoding="utf-8").split()


def test_all_is_sorted_and_complete() -> None:
    assert list(interlock.__all__) == sorted(interlock.__all__)
    told = names_for_type_checkers()
    assert {*told, "__version__"} == set(interlock.__all__)
    assert set(interlock.__all__) <= set(dir(interlock))


def names_for_type_checkers() -> dict[str, str]:
    """Each public name and the module that a type checker finds it in."""
    checked = next(node for node in parse(INIT).body if isinstance(node, ast.If))
    imports = [node for node in checked.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def test_a_name_is_imported_from_where_a_type_checker_finds_it() -> None:
    assert {name: f"interlock.{module}" for name, module in interlock._HOMES.items()} == names_for_type_checkers()
    assert not hasattr(interlock, "Surely")


def test_importing_the_package_loads_nothing_that_is_not_used() -> None:
    program = "import sys, interlock; print(*sorted({'httpx', 'asyncio', 'ssl', 'logging', 'interlock.client'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("name", sorted(interlock.__all__))
def test_every_public_name_exists_and_is_explained(name: str) -> None:
    value = getattr(interlock, name)
    if isinstance(value, type) or callable(value):
        assert value.__doc__, name
