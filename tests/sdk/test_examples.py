"""The examples as a user runs them, and the wheel in environments of its own."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sam_cli
from sdk.conftest import Answer, ScriptedServer
from sdk.live import Live
from support.dev_service import ROOT

SDK = ROOT / "sdk" / "python"
EXAMPLES = SDK / "examples"
TEXT = "The quick brown fox.\nThe lazy dög – naïve\n\nlast line, the end"


def environment(live: Live, **more: str) -> dict[str, str]:
    return {**os.environ, **live.environment, "INTERLOCK_PRODUCER_KEY": live.service.key("task-producer"), **more}


@pytest.fixture
def hello_worker(live: Live, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    (tmp_path / "text.txt").write_text(TEXT, "utf-8")
    with (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / "hello_worker.py")], cwd=tmp_path, stdout=output, stderr=output,
            env=environment(live, DOCUMENT_ALLOW_HOSTS="127.0.0.1"),
        )  # fmt: skip
    yield process
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0, (tmp_path / "output").read_text()


def run_example(live: Live, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(command, env=environment(live), capture_output=True, text=True, timeout=60, check=False)


def test_the_examples_do_what_they_say(live: Live, hello_worker: subprocess.Popen[bytes], scripted: ScriptedServer) -> None:
    told = run_example(live, "hello_producer.py")
    assert (told.returncode, told.stdout) == (0, "Hello, Ada!\n"), told.stderr
    told = run_example(live, "document_producer.py", "text.txt")
    assert told.returncode == 0, told.stderr
    data = TEXT.encode()
    expected = {"bytes": len(data), "characters": len(TEXT), "lines": 4, "words": 12, "distinctWords": 10}
    found = json.loads(told.stdout)
    assert {name: found[name] for name in expected} == expected
    assert found["sha256"] == hashlib.sha256(data).hexdigest()
    assert found["topWords"][0] == {"word": "the", "count": 3}
    scripted.answer("GET", "/text.txt", Answer(200, data))
    reference = {"$url": f"{scripted.url}/text.txt", "sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    by_reference = live.producer.submit("demo/text-statistics", 1, {"document": reference}).result(timeout=30)
    assert by_reference == found
    assert "authorization" not in scripted.seen[0].headers
    changed = live.producer.submit("demo/text-statistics", 1, {"document": {**reference, "sha256": "0" * 64}}).wait(30)
    assert changed.failure is not None
    assert changed.failure.code == "DocumentChanged"
    for refused in (
        {"path": "../../etc/passwd"},
        {"path": "none.txt"},
        {"document": {"$url": "https://[::1]/x"}},
        {"nothing": 1},
    ):
        failure = live.producer.submit("demo/text-statistics", 1, refused).wait(30).failure
        assert failure is not None
        assert failure.code == "DocumentRefused", refused


def load_document_worker() -> Any:
    spec = importlib.util.spec_from_file_location("document_worker", EXAMPLES / "document_worker.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Silent:
    def raise_if_cancelled(self) -> None: ...
    def progress(self, *_: object) -> None: ...

    class log:  # noqa: N801 (stands for the context's attribute)
        @staticmethod
        def info(*_: object) -> None: ...


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("text", ["", "a", "a ", "a\n", TEXT, TEXT + " ", "é" * 10, "one two\nthree\n"])
def test_a_document_is_counted_alike_however_it_is_cut(text: str, size: int) -> None:
    data = text.encode()
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    found = load_document_worker().count(iter(pieces), Silent(), len(data), None)
    assert found["characters"] == len(text)
    assert found["lines"] == len(text.splitlines())
    assert found["words"] == len(text.replace(".", " ").replace(",", " ").replace("–", " ").split())


@pytest.mark.parametrize(
    "url", ["http://example.com/x", "https://127.0.0.1/x", "https://10.0.0.1/", "https://169.254.169.254/latest", "https://[fe80::1]/",
            "https://user@93.184.216.34/", "ftp://x/", "", "https://0/", "https://[::ffff:127.0.0.1]/"],
)  # fmt: skip
def test_references_to_private_places_are_refused(url: str) -> None:
    module = load_document_worker()
    with pytest.raises((module.DocumentRefused, module.httpx.InvalidURL)):
        list(module.fetch({"$url": url}))


def find_python(version: str) -> str | None:
    """An interpreter of that version: on the path, of pyenv, or one that uv knows."""
    named = [shutil.which(f"python{version}"), *sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]
    uv = sam_cli.find_uv()
    known = subprocess.run([uv, "python", "find", version], capture_output=True, text=True, check=False).stdout if uv else ""
    for found in [*named, known.strip()]:
        if not found:
            continue
        told = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
        if told.stdout.startswith(f"Python {version}."):
            return str(found)
    return None


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    uv = sam_cli.find_uv()
    assert uv, "uv builds the wheel"
    subprocess.run(
        [uv, "build", "--package", "interlock-tasks", "--wheel", "--out-dir", folder], cwd=ROOT, check=True, timeout=300
    )
    [found] = folder.glob("*.whl")
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", ["3.10", "3.13"])
def test_the_wheel_runs_the_hello_worker_in_an_environment_of_its_own(
    live: Live, wheel: Path, tmp_path: Path, version: str, make_environment: Callable[[str, Path, Path], Path]
) -> None:
    python = find_python(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    program = make_environment(python, wheel, tmp_path / "venv")
    place = tmp_path / "outside"
    shutil.copytree(EXAMPLES, place)
    with (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(
            [program, "-W", "error", "hello_worker.py"], cwd=place, stdout=output, stderr=output, env=environment(live)
        )  # fmt: skip
    try:
        told = subprocess.run(
            [program, "-W", "error", "hello_producer.py", f"Python {version}"], cwd=place, env=environment(live),
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert told.stdout == f"Hello, Python {version}!\n", told.stderr + (tmp_path / "output").read_text()
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, (tmp_path / "output").read_text()


@pytest.fixture
def make_environment() -> Callable[[str, Path, Path], Path]:
    def make(python: str, wheel: Path, folder: Path) -> Path:
        uv = sam_cli.find_uv()
        assert uv
        subprocess.run([uv, "venv", "--python", python, folder], check=True, timeout=120)
        program = folder / "bin" / "python"
        subprocess.run([uv, "pip", "install", "--python", program, wheel], check=True, timeout=300)
        return program

    return make
