"""Each way to fail has a status of its own, the same facts in words and in JSON, and never shows a key."""

from __future__ import annotations

import socket
import uuid

import pytest

from interlock.cli.exits import MEANINGS, ExitCode
from sdk.cli.command import Cli
from sdk.cli.conftest import RunHere
from sdk.conftest import Answer, ScriptedServer

KEY = "il_p_1_0123456789abcdefSECRET"


def problem(status: int, code: str) -> Answer:
    body = {
        "code": code,
        "status": status,
        "title": "No",
        "detail": f"it is {code}",
        "retryable": False,
        "next": "Do this.",
        "requestId": "r-1",
    }
    return Answer(status, body)


REFUSALS = [
    (problem(400, "INVALID_TYPE"), ExitCode.REFUSED),
    (problem(401, "UNAUTHENTICATED"), ExitCode.DENIED),
    (problem(401, "KEY_REVOKED"), ExitCode.DENIED),
    (problem(403, "SCOPE_DENIED"), ExitCode.DENIED),
    (problem(404, "NOT_FOUND"), ExitCode.REFUSED),
    (problem(409, "TASK_FINISHED"), ExitCode.CONFLICT),
    (problem(413, "PAYLOAD_TOO_LARGE"), ExitCode.REFUSED),
    (problem(503, "NO_ELIGIBLE_WORKER"), ExitCode.REFUSED),
    (problem(503, "UNAVAILABLE"), ExitCode.UNREACHABLE),
    (problem(500, "INTERNAL"), ExitCode.UNREACHABLE),
    (problem(429, "RATE_LIMITED"), ExitCode.UNREACHABLE),
    (Answer(404, b"<h1>not here</h1>"), ExitCode.UNREACHABLE),
    (Answer(200, b"<h1>captive portal</h1>", {"retry-after": "3600"}), ExitCode.UNREACHABLE),
    (Answer(308, b"", {"location": "https://elsewhere.example/"}), ExitCode.USAGE),
]


@pytest.mark.parametrize(("answer", "code"), REFUSALS)
def test_each_refusal_has_its_status(scripted: ScriptedServer, answer: Answer, code: ExitCode, run_here: RunHere) -> None:
    scripted.answer("GET", "/v1/tasks/x", answer)
    arguments = ["tasks", "get", "x", "--url", scripted.url, "--key", KEY]
    words = run_here(*arguments, expect=code)
    assert words.out == ""
    facts = run_here(*arguments, "--json", expect=code)
    error = facts.json["error"]
    assert error["exitCode"] == code
    assert f"interlock: {error['message']}" in words.err
    assert error.get("next", "") in words.err
    if isinstance(answer.body, dict):
        assert (error["code"], error["requestId"]) == (answer.body["code"], "r-1")
        assert "Do this." in words.err
        assert "r-1" in words.err
    assert "SECRET" not in words.err + facts.out + facts.err


def test_refusals_of_the_real_service(cli: Cli, here: RunHere, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: str, code: int) -> str:
        error = here(*arguments, "--json", expect=code).json["error"]
        found: str = error["code"]
        return found

    assert fails("tasks", "submit", "demo", code=4) == "INVALID_TYPE"
    assert fails("tasks", "get", str(uuid.uuid4()), code=4) == "NOT_FOUND"
    assert fails("tasks", "submit", "a/nobody", "--require-worker", "registered", code=4) == "TASK_TYPE_NOT_FOUND"
    assert fails("tasks", "submit", "a/nobody", "--require-worker", "online", "--patience", "1", code=4) == "NO_ELIGIBLE_WORKER"
    monkeypatch.setenv("INTERLOCK_PRODUCER_KEY", "il_p_unknown")
    assert fails("tasks", "list", code=5) == "UNAUTHENTICATED"
    monkeypatch.setenv("INTERLOCK_PRODUCER_KEY", cli.environment["INTERLOCK_WORKER_KEY"])
    assert fails("tasks", "list", code=5) == "SCOPE_DENIED"


def test_without_service_url_or_key(offline: Cli) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # Bound and not listening: refused, and nobody else's.
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        done = offline.process("tasks", "list", "--url", url, "--key", KEY, "--patience", "0.3", "--json", expect=3)
        assert done.json["error"]["exit"] == "unreachable"
    assert "INTERLOCK_URL" in offline.run("tasks", "list", "--key", KEY, expect=2).err
    assert "INTERLOCK_OPERATOR_KEY" in offline.run("tasks", "list", "--url", url, expect=2).err
    spoilt = offline.run("tasks", "list", "--url", url, "--key", KEY + "\nX-Evil: 1", expect=2)
    assert "SECRET" not in spoilt.err


def test_verbose_says_what_is_asked_and_never_the_key(cli: Cli) -> None:
    done = cli.process("tasks", "list", "--limit", "1", "--verbose", expect=0)
    assert "/v1/tasks" in done.err
    for value in cli.environment.values():
        assert value.startswith("http") or value not in done.err + done.out
    done = cli.run("tasks", "get", str(uuid.uuid4()), "--verbose", expect=4)
    assert not [value for value in cli.environment.values() if value.startswith("il_") and value in done.err + done.out]


def test_help_shows_the_table(offline: Cli) -> None:
    shown = offline.process("--help", expect=0).out
    for code, meaning in MEANINGS.items():
        assert f"{code.value:>3}  {meaning}" in shown
    assert set(MEANINGS) == set(ExitCode)


def test_a_wrong_choice_is_told_in_our_words(run_here: RunHere) -> None:
    said = run_here("tasks", "resolve", "x", "--as", "maybe", "--note", "n", expect=2).err
    assert "interlock: Invalid value for '--as': 'maybe' is not one of" in said


@pytest.mark.parametrize("option", ["--profile", "--json", "--url"])
def test_an_option_before_its_command_is_told_its_place(run_here: RunHere, option: str) -> None:
    done = run_here(option, "x", "tasks", "list", expect=2)
    assert f"It belongs behind the command: interlock … {option}" in done.err
    done = run_here("tasks", option, "x", "list", expect=2)
    assert f"It belongs behind the command: interlock tasks … {option}" in done.err
    assert "--help` shows" in run_here("tasks", "--limit", "3", "list", expect=2).err


def test_a_service_that_is_down_says_what_to_do(run_here: RunHere) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens on it
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        done = run_here("tasks", "list", "--url", url, "--key", KEY, "--patience", "2", "--json", expect=3)
    assert "Nothing listens there: start the service" in done.err
    assert done.json["error"]["next"] in done.err


def test_without_a_command_the_help_is_shown(run_here: RunHere) -> None:
    for arguments in ((), ("tasks",), ("keys",)):
        done = run_here(*arguments, expect=2)
        assert done.err.startswith("Usage:")
        assert "a command is missing" in done.err
        assert done.out == ""
    assert "sumbit" in run_here("tasks", "sumbit", expect=2).err
