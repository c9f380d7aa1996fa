"""The scripts around containers, with engines that only write down what they are told: what is decided without a container."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from repo.tree import ROOT

#: Answers `info` as told, and writes every other command, with the format it is to build, into a file.
ENGINE = """#!/bin/sh
if [ "$1" = info ]; then exit {info}; fi
echo "{name} $BUILDAH_FORMAT $*" >>"{log}"
echo "noise of the engine"
"""


class Engines:
    """A folder that goes first on PATH, with a docker and a podman."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"

    def have(self, *, docker: bool, podman: bool) -> None:
        for name, answers in (("docker", docker), ("podman", podman)):
            program = self.folder / name
            program.write_text(ENGINE.format(name=name, info=0 if answers else 1, log=self.log))
            program.chmod(0o755)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.folder}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            command, cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60, check=False
        )

    def told(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def engines(tmp_path: Path) -> Engines:
    return Engines(tmp_path)


def source(function: str) -> tuple[str, str, str]:
    return ("bash", "-c", f"source scripts/lib/containers.sh; {function}")


@pytest.mark.parametrize(
    ("docker", "podman", "found"), [(True, True, "docker"), (False, True, "podman"), (True, False, "docker")]
)
def test_the_engine_is_the_first_that_answers(engines: Engines, docker: bool, podman: bool, found: str) -> None:
    engines.have(docker=docker, podman=podman)
    assert engines.run(*source("find_engine")).stdout == f"{found}\n"


def test_without_an_engine_nothing_is_built(engines: Engines) -> None:
    engines.have(docker=False, podman=False)
    done = engines.run("./scripts/stream-image")
    assert (done.returncode, done.stdout) == (1, "")
    assert "neither docker nor podman answers" in done.stderr
    assert not engines.log.exists()


def test_the_stream_image_is_named_by_what_is_in_it_and_its_address_is_all_that_is_printed(engines: Engines) -> None:
    engines.have(docker=False, podman=True)
    plain = engines.run("./scripts/stream-image")
    again = engines.run("./scripts/stream-image", "--push", "registry.example/stream")
    based = engines.run("./scripts/stream-image", "--base", "localhost/base:1")
    assert [done.returncode for done in (plain, again, based)] == [0, 0, 0], plain.stderr
    name, _, version = plain.stdout.strip().partition(":")
    assert (name, again.stdout) == ("interlock-stream", f"registry.example/stream:{version}\n")
    assert based.stdout != plain.stdout, "another base is another image"
    build = f"podman docker build -f functions/stream/Dockerfile -t interlock-stream:{version} ."
    assert engines.told() == [
        build,
        build,
        f"podman docker tag interlock-stream:{version} registry.example/stream:{version}",
        f"podman docker push registry.example/stream:{version}",
        f"podman docker build --build-arg BASE=localhost/base:1 -f functions/stream/Dockerfile -t {based.stdout.strip()} .",
    ]


@pytest.mark.parametrize(
    ("given", "inside"),
    [
        ("postgresql://me:pw@127.0.0.1:5432/x", "postgresql://me:pw@HOST:5432/x"),
        ("postgresql://localhost/x?sslmode=disable", "postgresql://HOST/x?sslmode=disable"),
        ("postgres://me@[::1]", "postgres://me@HOST"),
        ("postgresql://me:127.0.0.1@db.example/localhost", "postgresql://me:127.0.0.1@db.example/localhost"),
        ("postgresql://me@localhost.example:1/x", "postgresql://me@localhost.example:1/x"),
    ],
)
def test_a_database_on_loopback_is_named_as_containers_see_it(engines: Engines, given: str, inside: str) -> None:
    assert engines.run(*source(f"address_from_inside '{given}' HOST")).stdout == f"{inside}\n"


def test_the_image_takes_what_it_copies_and_the_build_sees_no_more() -> None:
    lines = (ROOT / "functions" / "stream" / "Dockerfile").read_text().splitlines()
    copied = {line.split()[1] for line in lines if line.startswith("COPY")}
    # In the root, where each engine looks for it.
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    seen = [rule[1:] for rule in rules if rule.startswith("!")]
    assert rules[0] == "*"
    assert rules[-1] == "**/__pycache__"
    assert copied
    assert all(any(path.startswith(f"{each}/") for each in seen) for path in copied), (copied, seen)
