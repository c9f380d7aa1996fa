"""`scripts/build` tells the build what the deployment will be told, without building anything here."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from repo.tree import ROOT

#: A Python that only writes down what it is told.
PYTHON = '#!/bin/sh\necho "{name} $*" >>"{log}"\n'


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree that holds the script alone, with every program that it starts replaced."""
    (tmp_path / "scripts" / "lib").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "build", tmp_path / "scripts")
    (tmp_path / "scripts" / "lib" / "bootstrap.sh").write_text("bootstrap() { venv_python=ours; }\n")
    for name in ("ours", "python3.12", "python3.13"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(PYTHON.format(name=name, log=tmp_path / "log"))
        program.chmod(0o755)
    return tmp_path


def run(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = f"{tree / 'bin'}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", str(tree / "scripts" / "build"), *words]
    return subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize(
    ("words", "runtime", "architecture", "told"),
    [
        ([], "python3.13", "x86_64", ""),
        (["python3.12"], "python3.12", "x86_64", "Runtime=python3.12"),
        (["arm64"], "python3.13", "arm64", "Architecture=arm64"),
        (["python3.12", "arm64"], "python3.12", "arm64", "Runtime=python3.12 Architecture=arm64"),
    ],
)
def test_the_build_is_for_what_the_deployment_is_to_be_told(
    tree: Path, words: list[str], runtime: str, architecture: str, told: str
) -> None:
    done = run(tree, *words)
    assert (done.returncode, done.stderr) == (0, "")
    commands = (tree / "log").read_text().splitlines()
    assert (
        f"ours scripts/lib/sam_cli.py build --parallel --parameter-overrides Runtime={runtime} Architecture={architecture}"
        in commands
    )
    assert commands[-1].startswith(f"{runtime} scripts/lib/precompile.py ")
    assert f"built for {runtime} on {architecture}" in done.stdout
    assert ("among the parameters" in done.stdout) is bool(told)
    assert told in done.stdout


def test_a_word_that_it_does_not_know_builds_nothing(tree: Path) -> None:
    done = run(tree, "aarch64")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: scripts/build")
    assert not (tree / "log").exists()
