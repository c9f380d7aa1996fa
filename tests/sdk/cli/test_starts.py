"""What a start of the command costs: nothing is imported that the run does not use."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sdk.cli.command import USER_SITE

HEAVY = ("asyncio", "httpx", "pydantic", "rich.console", "interlock.worker")
PLACE = "--url http://127.0.0.1:9 --key k --patience 0.1"


@pytest.mark.parametrize(
    ("line", "loaded"),
    [
        ("--version", ""),
        ("tasks get", ""),  # wrong: an argument is missing
        (f"tasks list --type a/b {PLACE}", "httpx"),
        (f"tasks submit a/b --priority 3 {PLACE}", "httpx pydantic"),  # a number is converted
    ],
)
def test_only_what_is_used_is_imported(line: str, loaded: str) -> None:
    program = (
        "import sys; from interlock.cli.app import run; run(sys.argv[1].split());"
        f" print('loaded', *[name for name in {HEAVY!r} if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": USER_SITE}
    done = subprocess.run(
        [sys.executable, "-c", program, line], env=environment, check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == f"loaded {loaded}".strip(), done.stderr
