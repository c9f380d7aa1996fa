"""What `sam build` made of template.yaml: artifacts, layers, settings, and an emulator for each of its functions."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import importlib.metadata
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sam_cli
from emulator import Emulator
from template import read_template

# What Lambda's own Python image carries in /var/runtime, of which a function needs no copy.
_RUNTIME_DISTRIBUTIONS = ("awslambdaric", "simplejson", "snapshot-restore-py")
# What an artifact is made of; a build of other contents is another build.
_SOURCES = ("template.yaml", "functions", "layers", "migrations")
BUILDS = sam_cli.TOOLS / "builds"
KEPT = 3


class WrongPython(RuntimeError):
    """The interpreter below this environment is not the one that the artifacts were built for."""


@dataclass(frozen=True)
class Built:
    """One finished build, ready to run."""

    folder: Path
    runtime_client: Path

    @property
    def template(self) -> dict[str, Any]:
        """The built template: the source's, with every code address pointing at its artifact."""
        return read_template(self.folder / "template.yaml")

    def artifact(self, logical_id: str) -> Path:
        """The folder of one function, or of one layer, as Lambda would unpack it."""
        return self.folder / logical_id

    def open(self, logical_id: str, database_url: str, settings: Mapping[str, str] | None = None) -> Emulator:
        """An execution environment of this function, as the template describes it but on this database.

        `settings` are further environment variables. Raises WrongPython.
        """
        general, own = self.template["Globals"]["Function"], self.template["Resources"][logical_id]["Properties"]
        variables = self._literal({**_variables(general), **_variables(own)})
        layers = [layer["Ref"] for layer in [*general.get("Layers", []), *own.get("Layers", [])]]
        task = self.artifact(logical_id)
        return Emulator(
            function=logical_id,
            binary=sam_cli.emulator_binary(),
            python=find_python(),
            task=task,
            # The order in which Lambda looks for modules.
            places=[task, *(self.artifact(layer) / "python" for layer in layers), self.runtime_client],
            environment={**variables, "INTERLOCK_SERVER_DATABASE_URL": database_url, **(settings or {})},
            handler=own.get("Handler", general["Handler"]),
            timeout_seconds=int(own.get("Timeout", general["Timeout"])),
            memory_mb=int(own.get("MemorySize", general["MemorySize"])),
        )

    def _literal(self, variables: Mapping[str, Any]) -> dict[str, str]:
        """Values that need no deployment to be known: literals and parameters with a default."""
        found: dict[str, str] = {}
        for name, value in variables.items():
            if isinstance(value, str | int):
                found[name] = str(value)
            elif "Ref" in value and (default := self.template["Parameters"].get(value["Ref"], {}).get("Default")) is not None:
                found[name] = str(default)
        return found


def build(folder: Path) -> Built:
    """Builds into `folder` (made here, of this caller alone) and returns what it made.

    Raises subprocess.CalledProcessError and sam_cli.ToolMissing.
    """
    sam_cli.build(folder / "artifacts")
    # As scripts/build does it for a deployment.
    subprocess.run(
        [str(find_python()), str(sam_cli.ROOT / "scripts" / "lib" / "precompile.py"), str(folder / "artifacts")], check=True
    )
    return open_build(folder)


def build_once() -> Built:
    """The build of the tree as it stands, made unless an earlier caller made it. Two callers at once make it once.

    Raises what `build` raises.
    """
    BUILDS.mkdir(parents=True, exist_ok=True)
    while True:
        digest = _digest_sources()
        folder = BUILDS / digest
        folder.mkdir(exist_ok=True)
        with (folder / "building").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Held open for as long as this process lives, so that nobody removes the build that it runs from.
            used = (folder / "used").open("w")
            fcntl.flock(used, fcntl.LOCK_SH)
            if (folder / "done").exists():
                break
            build(folder)
            # Somebody may have edited a file meanwhile: then this is neither the one build nor the other.
            if _digest_sources() == digest:
                (folder / "done").touch()
                break
            used.close()
            shutil.rmtree(folder)
    atexit.register(used.close)
    _remove_old(BUILDS)
    return open_build(folder)


def _digest_sources() -> str:
    digest = hashlib.sha256(
        f"{sam_cli.VERSION} {sam_cli.BUILD_PYTHON} compiled {importlib.metadata.version('awslambdaric')}".encode()
    )
    for path in _source_files():
        digest.update(f"\0{path.relative_to(sam_cli.ROOT)}\0".encode())
        with contextlib.suppress(FileNotFoundError):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _source_files() -> Iterator[Path]:
    for name in _SOURCES:
        place = sam_cli.ROOT / name
        found = [place] if place.is_file() else sorted(place.rglob("*"))
        yield from (path for path in found if path.is_file() and "__pycache__" not in path.parts)


def _remove_old(builds: Path) -> None:
    """Removes all but the newest few that nobody uses."""
    for folder in sorted(builds.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)[KEPT:]:
        with contextlib.suppress(OSError), (folder / "used").open("w") as used:
            fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


def open_build(folder: Path) -> Built:
    """A build that an earlier `build(folder)` made."""
    client = folder / "runtime-client"
    if not client.exists():
        _collect_runtime_client(client)
    return Built(folder / "artifacts", client)


def find_python() -> Path:
    """The interpreter below this environment, without the environment's packages. Raises WrongPython."""
    if "{}.{}".format(*sys.version_info) != sam_cli.BUILD_PYTHON:
        raise WrongPython(f"artifacts are built for Python {sam_cli.BUILD_PYTHON}; this environment is {sys.version.split()[0]}")
    return Path(getattr(sys, "_base_executable", sys.executable))


def _variables(properties: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = properties.get("Environment", {}).get("Variables", {})
    return found


def _collect_runtime_client(target: Path) -> None:
    """Copies awslambdaric and what it needs, alone, out of this environment."""
    for name in _RUNTIME_DISTRIBUTIONS:
        for file in importlib.metadata.distribution(name).files or []:
            if ".." not in file.parts:
                place = target / file
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(str(file.locate()), place)
