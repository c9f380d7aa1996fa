"""The SDK's public surface: what a release promises to keep."""

from __future__ import annotations

import ast

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
    imported = {
        alias.asname or alias.name
        for node in parse(INIT).body
        if isinstance(node, ast.ImportFrom) and node.module not in ("version", "interlock.version")
        for alias in node.names
    }
    public = {name for name in imported - {"annotations"} if not name.startswith("_")}
    assert public <= set(interlock.__all__)


@pytest.mark.parametrize("name", sorted(interlock.__all__))
def test_every_public_name_exists_and_is_explained(name: str) -> None:
    value = getattr(interlock, name)
    if isinstance(value, type) or callable(value):
        assert value.__doc__, name
