"""`--json` everywhere: whatever becomes of a command, standard output is JSON and nothing else."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

import pytest

from interlock.cli.app import build
from interlock.cli.filters import FILTERS, read_filter
from interlock.reading import TaskFilter
from sdk.cli.command import Cli
from sdk.cli.conftest import RunHere
from sdk.cli.test_documented import commands

EVERY = dict(commands(build()))
LOCAL = {"completion", "logout", "profiles list"}
"""What needs neither a service nor a key."""

READ = [
    "tasks list", "tasks types", "tasks workers", "tasks top --once", "tasks doctor", "workers list", "keys list", "projects list",
    "limits list", "audit",
]  # fmt: skip


def required(command: Any) -> list[str]:
    """A value for all that the command cannot do without."""
    line: list[str] = []
    for parameter in command.params:
        if not parameter.required:
            continue
        kind = parameter.type_descriptor.annotation
        value = next(iter(kind)).value if isinstance(kind, type) and issubclass(kind, Enum) else "1"
        line += [value] if parameter.param_type_name == "argument" else [parameter.opts[0], str(value)]
    return line


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_a_command_that_fails_says_so_in_json(offline: Cli, path: tuple[str, ...]) -> None:
    done = offline.run(*path, *required(EVERY[path]), "--json")
    assert isinstance(done.json, dict)
    local = " ".join(path) in LOCAL
    assert done.code == (0 if local else 2), done
    if path == ("tasks", "doctor"):  # what it found is its answer
        assert done.json["exitCode"] == 2
    elif not local:
        assert done.json["error"]["exit"] == "usage"
        assert done.json["error"]["message"] in done.err


@pytest.mark.parametrize("line", READ)
def test_a_command_that_reads_answers_with_one_document(here: RunHere, line: str) -> None:
    done = here(*line.split(), "--json", expect=None)
    assert done.code in (0, 11, 12)  # the doctor's findings are its status
    assert isinstance(json.loads(done.out), dict)


def test_the_filters_of_the_command_line_are_those_of_the_service() -> None:
    given = {name: None for name, _ in FILTERS}
    given |= {name: "1h" if name.endswith(("_after", "_before")) else "a=b" if name == "tag" else "x" for name in given}
    found = read_filter(**{**given, "status": ["failed"], "schema_version": 2})
    assert {*found} == {*TaskFilter.__annotations__}
