"""What a user can set, or can be told, is in the documentation."""

from __future__ import annotations

from dataclasses import fields

import pytest

from interlock_core import errors
from interlock_core.settings import PREFIX, Settings
from repo.tree import ROOT, documentation


def codes_of(problem: type[errors.Problem]) -> set[str]:
    return {problem.code}.union(*(codes_of(child) for child in problem.__subclasses__()))


@pytest.fixture(scope="module")
def pages() -> str:
    if not (ROOT / "docs" / "protocol.md").exists():
        pytest.skip("docs/protocol.md is not written yet")
    return documentation()


@pytest.mark.parametrize("name", sorted(PREFIX + field.name.upper() for field in fields(Settings)))
def test_every_setting_of_the_service_is_documented(name: str, pages: str) -> None:
    assert name in pages


@pytest.mark.parametrize("code", sorted(codes_of(errors.Problem)))
def test_every_error_code_is_documented(code: str, pages: str) -> None:
    assert f"`{code}`" in pages
