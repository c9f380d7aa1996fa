"""The pinned SAM CLI, kept apart from the project's environment: its exact pins (click, boto3 …) would decide ours.

Run as a program it is `sam` itself: ``python scripts/lib/sam_cli.py validate --lint``. The first run installs it into
``.tools/`` (a few seconds); later runs touch no network.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# The linter's data ages with its version: unpinned, the check would turn red by itself.
VERSION = "1.170.0"
# Those that functions may run on, as the template's parameter Runtime says.
PYTHONS = ("3.11", "3.12", "3.13")
_OURS = "{}.{}".format(*sys.version_info)
# The one that local hosts and tests build for: this environment's. (A deployment's default is the template's.)
BUILD_PYTHON = _OURS if _OURS in PYTHONS else PYTHONS[-1]

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / ".tools"


class ToolMissing(RuntimeError):
    """The SAM CLI, or a Python it can build with, is not here and could not be installed. The text says what to do."""


def sam_python() -> Path:
    """The interpreter of the isolated SAM CLI, installed on first use. Raises ToolMissing."""
    python = TOOLS / f"sam-{VERSION}" / "bin" / "python"
    with _locked("sam"):
        if not (python.parent / "sam").exists():
            _uv("venv", "--quiet", "--clear", str(python.parent.parent))
            _uv("pip", "install", "--quiet", "--python", str(python), f"aws-sam-cli=={VERSION}")
    return python


def build_python() -> Path:
    """A Python of the functions' version that has pip, as `sam build` asks for. Raises ToolMissing if none is found."""
    python = TOOLS / f"build-python{BUILD_PYTHON}" / "bin" / f"python{BUILD_PYTHON}"
    with _locked("build-python"):
        if not python.exists():
            chosen = sys.executable if _OURS == BUILD_PYTHON else BUILD_PYTHON
            try:
                _uv("venv", "--quiet", "--clear", "--seed", "--python", chosen, str(python.parent.parent))
            except ToolMissing:  # one without pip would be taken for finished the next time
                shutil.rmtree(python.parent.parent, ignore_errors=True)
                raise
    return python


def emulator_binary() -> Path:
    """The Runtime Interface Emulator that ships inside the SAM CLI, for this machine's processor."""
    architecture = "arm64" if platform.machine() in ("aarch64", "arm64") else "x86_64"
    packages = next((sam_python().parent.parent / "lib").glob("python*/site-packages"))
    return packages / "samcli" / "local" / "rapid" / f"aws-lambda-rie-{architecture}"


def command(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The command line and the environment that run `sam` with these arguments. Raises ToolMissing."""
    # `sam build` takes the first Python of that version *with pip* on PATH, so ours goes first; only a build needs it.
    places = [str(build_python().parent)] if "build" in arguments[:1] else []
    environment = dict(os.environ, SAM_CLI_TELEMETRY="0")
    environment["PATH"] = os.pathsep.join([*places, environment.get("PATH", os.defpath)])
    return [str(sam_python()), "-m", "samcli", *arguments], environment


def build(target: Path) -> None:
    """Builds every function and layer of template.yaml into `target`, a folder of this caller alone.

    A failing or a parallel build empties the folder it writes to, so two callers must never share one.
    Raises subprocess.CalledProcessError with the output, and ToolMissing.
    """
    runtime = ["--parameter-overrides", f"Runtime=python{BUILD_PYTHON}"]
    arguments, environment = command(["build", "--parallel", "--build-dir", str(target), *runtime])
    subprocess.run(arguments, cwd=ROOT, env=environment, check=True, capture_output=True, text=True, timeout=600)


@contextmanager
def _locked(name: str) -> Iterator[None]:
    # Two first runs at once (a test run beside scripts/check) would install into each other's half-made folder.
    TOOLS.mkdir(exist_ok=True)
    with (TOOLS / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def find_uv() -> str | None:
    """The uv that bootstrap.sh has put into the tools, or else one of the user's."""
    places = [str(TOOLS / "uv" / "bin" / "uv"), shutil.which("uv")]
    return next((place for place in places if place and Path(place).exists()), None)


def _uv(*arguments: str) -> None:
    uv = find_uv()
    if uv is None:
        raise ToolMissing("uv was not found; run scripts/check or scripts/test once, they install it")
    # A VIRTUAL_ENV of the caller's must not be taken for the target.
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT")}
    environment["UV_PYTHON_DOWNLOADS"] = "never"
    if not os.access(os.environ.get("UV_CACHE_DIR") or Path.home(), os.W_OK):
        environment["UV_CACHE_DIR"] = str(TOOLS / "cache")
    done = subprocess.run([uv, *arguments], env=environment, cwd=TOOLS, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise ToolMissing(f"uv {' '.join(arguments)} failed:\n{done.stderr.strip()}")


def main() -> int:
    """Runs `sam` with this program's arguments and returns its exit status."""
    try:
        arguments, environment = command(sys.argv[1:])
    except ToolMissing as problem:
        print(problem, file=sys.stderr)
        return 1
    return subprocess.run(arguments, env=environment, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
