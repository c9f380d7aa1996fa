"""Walls that import-linter cannot see: functions, the environment, SQL text, what a pooler forbids."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from repo.tree import ROOT, imports, parse, short, tracked

CORE = ROOT / "layers" / "core" / "interlock_core"
FUNCTIONS = ROOT / "functions"
FUNCTION_FILES = [path for path in tracked(".py") if path.is_relative_to(FUNCTIONS)]
CORE_FILES = [path for path in tracked(".py") if path.is_relative_to(CORE)]
SQL_FILES = sorted((CORE / "sql").glob("*.sql"))


@pytest.mark.parametrize("path", FUNCTION_FILES, ids=short)
def test_a_function_imports_the_core_and_its_own_folder_only(path: Path) -> None:
    own = {beside.stem for beside in path.parent.glob("*.py")}
    # pydantic for the one thing that the edge models raise; a container brings the server that it runs in.
    allowed = {"interlock_core", "starlette", "pydantic", *own, *sys.stdlib_module_names}
    if (path.parent / "serve.py").exists():
        allowed.add("uvicorn")
    assert {name.split(".")[0] for name in imports(path)} <= allowed


@pytest.mark.parametrize("path", [*CORE_FILES, *FUNCTION_FILES], ids=short)
def test_the_environment_is_read_in_one_place(path: Path) -> None:
    # The test points are armed from outside a process under test, so their file reads one variable of its own.
    if path.relative_to(ROOT).name in ("settings.py", "testpoint.py") and path.is_relative_to(CORE):
        return
    touched = [
        node.lineno for node in ast.walk(parse(path)) if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    ]
    assert touched == []


@pytest.mark.parametrize("path", [*CORE_FILES, *FUNCTION_FILES], ids=short)
def test_sql_text_lives_in_sql_files(path: Path) -> None:
    if path.name in ("db.py", "migrate.py") and path.is_relative_to(CORE):
        return  # the connection's own words (is it alive, is it a replica) and the runner's
    statement = re.compile(r"\s*(SELECT\s.+\sFROM|INSERT\s+INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM|WITH\s+\w+\s+AS)\b", re.DOTALL)
    texts = [node for node in ast.walk(parse(path)) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    assert [node.lineno for node in texts if statement.match(node.value)] == []


@pytest.mark.parametrize("path", SQL_FILES, ids=short)
def test_a_sql_file_says_what_it_does_and_is_used(path: Path) -> None:
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    assert first.startswith("-- ") is not first.startswith("-- ::"), "the header says what moves and what it locks"
    assert any(f'"{path.stem}"' in module.read_text(encoding="utf-8") for module in CORE_FILES), "nothing calls it"


# What a transaction pooler cannot carry from one statement to the next, or takes a database-wide order for.
FORBIDDEN = re.compile(
    r"\bpg_(try_)?advisory|^\s*SET\s+(?!LOCAL)(SESSION\s+)?\w+|\bset_config\([^)]*false|\bLISTEN\b|\bnextval\b|\bTEMP(ORARY)?\s+TABLE|"
    r"\bDECLARE\b.*\bCURSOR\b|\bPREPARE\b",
    re.IGNORECASE | re.MULTILINE,
)


@pytest.mark.parametrize("path", SQL_FILES, ids=short)
def test_b34_no_statement_of_a_function_needs_a_session(path: Path) -> None:
    statements = [part for part in re.split(r"^-- :: .*$", path.read_text(encoding="utf-8"), flags=re.MULTILINE) if part.strip()]
    for statement in statements:
        bare = re.sub(r"--[^\n]*", "", statement)
        # `UPDATE x\nSET a = …` is no session setting.
        bare = re.sub(r"(UPDATE\s+[\w.]+(\s+(AS\s+)?\w+)?|DO\s+UPDATE)\s+SET\b", "UPDATE", bare, flags=re.IGNORECASE)
        assert FORBIDDEN.findall(bare) == []


def test_functions_connect_without_startup_options_and_never_listen() -> None:
    for path in CORE_FILES:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\boptions\s*=\s*[\"'f]", text), f"{short(path)}: startup options do not pass a pooler"
        if path.name not in ("listen.py", "hints.py"):
            assert "LISTEN " not in re.sub(r'"""[\s\S]*?"""|#[^\n]*', "", text), f"{short(path)}: only the stream listens"


def test_tables_take_no_sequence() -> None:
    for path in sorted((ROOT / "migrations").glob("*.sql")):
        assert not re.search(
            r"\b(big|small)?serial\b|GENERATED\s+\w+(\s+DEFAULT)?\s+AS\s+IDENTITY|CREATE\s+SEQUENCE",
            path.read_text(),
            re.IGNORECASE,
        )
