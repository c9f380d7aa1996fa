"""The HTTP client against the outside world: foreign answers, dropped connections, redirects, forks, secrets."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from interlock import ApiError, Client, ConfigurationError, TaskProducer, Unreachable
from interlock.backoff import LONGEST_RETRY_AFTER
from interlock.cli.profiles import read_profiles
from sdk.conftest import KEY, Answer, ScriptedServer, Seen
from support.waiting import wait_until

TASK = {"id": "t-1", "type": "demo/hello", "schemaVersion": 1, "status": "queued", "settled": False}


def open_client(server: ScriptedServer, **options: float) -> Client:
    return Client(server.url, KEY, **options)


def in_seconds(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


def test_b60_foreign_answers_are_survived_with_sane_pauses(scripted: ScriptedServer, pauses: list[float]) -> None:
    scripted.answer(
        "POST", "/v1/tasks",
        Answer(429, b""),
        Answer(503, b"", {"retry-after": in_seconds(3)}),
        Answer(503, b"", {"retry-after": in_seconds(-100)}),
        Answer(503, b"", {"retry-after": "-5"}),
        Answer(429, b"", {"retry-after": "1e9"}),
        Answer(429, b"", {"retry-after": "9" * 40}),
        Answer(429, b"", {"retry-after": "soon \xff"}),
        Answer(502, b"<html>Bad gateway</html>"),
        Answer(200, b"<html>Sign in</html>"),
        Answer(201, TASK),
    )  # fmt: skip
    handle = TaskProducer(client=open_client(scripted, timeout=10_000)).submit("demo/hello", 1, {})
    assert handle.id == "t-1"
    assert len(pauses) == 9
    assert 1.5 <= pauses[1] <= 4.5
    assert LONGEST_RETRY_AFTER <= pauses[5] <= LONGEST_RETRY_AFTER + 2
    assert all(0 < pause <= LONGEST_RETRY_AFTER + 2 for pause in pauses)
    assert all(pause <= 15 for place, pause in enumerate(pauses) if place != 5)


def test_the_service_says_what_may_be_repeated(scripted: ScriptedServer, pauses: list[float]) -> None:
    problem = {"code": "INTERNAL", "status": 500, "detail": "no luck", "retryable": False, "next": "Tell us.", "requestId": "r-9"}
    scripted.answer("POST", "/v1/tasks", Answer(500, problem))
    with pytest.raises(ApiError, match=r"INTERNAL \(500\): no luck\. Tell us\. \(request r-9\)") as caught:
        open_client(scripted).request("POST", "/v1/tasks", json={})
    assert (caught.value.code, caught.value.status, caught.value.retryable, caught.value.request_id) == (
        "INTERNAL",
        500,
        False,
        "r-9",
    )
    assert not pauses
    scripted.answer("GET", "/v1/config", Answer(404, {"code": "X", "retryable": True}), Answer(200, {"ok": 1}))
    assert open_client(scripted).request("GET", "/v1/config") == {"ok": 1}
    assert len(pauses) == 1


def test_the_time_of_a_call_is_bounded(scripted: ScriptedServer) -> None:
    scripted.answer("GET", "/v1/config", Answer(503, b"", {"retry-after": "30"}))
    with pytest.raises(ApiError, match="HTTP_503"):
        open_client(scripted, timeout=5).request("GET", "/v1/config")
    assert len(scripted.seen) == 1  # the pause told by the service would have outlived the call
    with pytest.raises(Unreachable, match=r"no answer from 127\.0\.0\.1"):
        Client("http://127.0.0.1:9", KEY).request("GET", "/v1/config", timeout=0.3)


def test_b64_a_stale_connection_is_replaced_and_the_call_repeated(scripted: ScriptedServer) -> None:
    ids = iter(range(100))
    scripted.answer(
        "POST", "/v1/tasks", Answer(201, TASK, close_after=True), Answer(drop=True), Answer(drop=True), Answer(201, TASK)
    )
    scripted.answer("POST", "/v1/attempts/complete", Answer(drop=True), lambda _: Answer(200, {"completions": [next(ids)]}))
    client = open_client(scripted)
    producer = TaskProducer(client=client)
    producer.submit("demo/hello", 1, {})
    producer.submit("demo/hello", 1, {})
    bodies = [seen.json for seen in scripted.seen]
    assert len(bodies) == 4
    # A key is made once per call: the repeats of the second submission name the same task, another submission another.
    assert bodies[1] == bodies[2] == bodies[3]
    assert bodies[0]["idempotencyKey"] != bodies[1]["idempotencyKey"]
    assert client.request("POST", "/v1/attempts/complete", json={"completions": []}) == {"completions": [0]}


def test_a_call_that_must_not_be_repeated_is_not(scripted: ScriptedServer) -> None:
    scripted.answer("POST", "/v1/other", Answer(drop=True), Answer(200, {}))
    with pytest.raises(Unreachable):
        open_client(scripted).request("POST", "/v1/other", json={}, repeatable=False)
    assert len(scripted.seen) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_b66_no_redirect_is_followed(make_scripted: Callable[[], ScriptedServer], status: int) -> None:
    first, second = make_scripted(), make_scripted()
    place = f"{second.url}/v1/tasks?secret=1"
    first.answer("POST", "/v1/tasks", Answer(status, b"", {"location": place}))
    with pytest.raises(ConfigurationError, match=rf"INTERLOCK_URL\) to {second.url} ") as caught:
        TaskProducer(first.url, KEY).submit("demo/hello", 1, {})
    assert not second.seen
    assert KEY not in str(caught.value)
    first.answer("GET", "/v1/stream", Answer(status, b"", {"location": place}))
    with pytest.raises(ConfigurationError):
        open_client(first).open_stream(first.url, "/v1/stream", {}, 5)
    assert not second.seen


def test_b66_the_key_never_travels_from_https_to_http() -> None:
    from interlock.settings import same_security

    assert same_security("https://a.example", "https://b.example")
    assert same_security("http://127.0.0.1:1", "http://127.0.0.1:2")
    assert not same_security("https://a.example", "http://a.example")


@pytest.mark.parametrize(
    "url", ["", "ftp://x", "x.example", "https://user:pw@x.example", "https://x/?a=1", "https://[1", "http://x:99999"]
)
def test_a_url_that_cannot_work_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Client(url, KEY)
    assert "pw" not in str(caught.value)


def test_a_pause_that_takes_too_long_hides_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens on it
        client = Client(f"http://127.0.0.1:{taken.getsockname()[1]}", KEY)
        over = time.monotonic() + 2
        monkeypatch.setattr(Client, "_pause", lambda *_: wait_until(lambda: time.monotonic() > over))  # a busy machine
        with pytest.raises(Unreachable, match="refused"):
            client.request("GET", "/v1/config", timeout=2)


def test_b68_keys_are_in_no_text(scripted: ScriptedServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    problem = {"code": "UNAUTHENTICATED", "status": 401, "retryable": False, "detail": "no such key"}
    scripted.answer("GET", "/v1/config", Answer(200, {}), Answer(drop=True), Answer(401, problem))
    client = open_client(scripted)
    client.request("GET", "/v1/config")
    texts = [repr(client), repr(TaskProducer(client=client)), repr(vars(client))]
    with pytest.raises(ApiError) as refused:
        client.request("GET", "/v1/config")
    with pytest.raises(Unreachable) as unreachable:
        Client("http://127.0.0.1:9", KEY).request("GET", "/v1/config", timeout=0.2)
    for bad in (f"{KEY}\n", f"{KEY}\nX: y", f"{KEY} x", f"{KEY}é", f"{KEY}\x00"):
        try:
            Client(scripted.url, bad).request("GET", "/v1/config", timeout=1)
        except (ConfigurationError, ApiError) as error:
            texts += [str(error), repr(error), repr(error.__cause__), repr(error.__context__)]
    with pytest.raises(TypeError):
        pickle.dumps(client._key)
    for error in (refused.value, unreachable.value):
        texts += [str(error), repr(error), repr(vars(error)), repr(error.__cause__), repr(error.__context__)]
    texts += [record.getMessage() for record in caplog.records]
    assert not [text for text in texts if "SECRET" in text]


def test_url_and_key_come_from_arguments_environment_and_profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="INTERLOCK_URL"):
        Client()
    monkeypatch.setenv("INTERLOCK_URL", "https://env.example/")
    with pytest.raises(ConfigurationError, match="INTERLOCK_PRODUCER_KEY"):
        Client()
    monkeypatch.setenv("INTERLOCK_PRODUCER_KEY", "il_env")
    assert Client().url == "https://env.example"
    assert Client()._key.reveal() == "il_env"
    assert Client("https://argument.example", "il_argument")._key.reveal() == "il_argument"
    monkeypatch.delenv("INTERLOCK_URL")
    monkeypatch.delenv("INTERLOCK_PRODUCER_KEY")
    folder = tmp_path / "config" / "interlock"
    folder.mkdir(parents=True)
    (folder / "profiles.json").write_text('{"home": {"url": "https://home.example", "keys": {"task-producer": "il_home"}}}')
    monkeypatch.setenv("INTERLOCK_PROFILE", "home")
    assert (Client().url, Client()._key.reveal()) == ("https://home.example", "il_home")
    with pytest.raises(ConfigurationError, match="no profile 'work'"):
        Client(profile="work")
    for broken in ("{", "[" * 100_000):
        (folder / "profiles.json").write_text(broken)
        with pytest.raises(ConfigurationError, match="cannot be read"):
            Client()
        with pytest.raises(ConfigurationError, match="cannot be read"):
            read_profiles()


def submit_fifty(client: Client, answers: multiprocessing.Queue[object]) -> None:
    try:
        asked = [f"{os.getpid()}-{number}" for number in range(50)]
        given = [client.request("POST", "/v1/echo", json={"mine": mine})["mine"] for mine in asked]
        answers.put(asked == given)
    except BaseException as error:  # told to the parent, which fails the test
        answers.put(repr(error))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_b65_a_client_made_before_a_fork_serves_every_process(scripted: ScriptedServer) -> None:
    def echo(seen: Seen) -> Answer:
        return Answer(200, seen.json)

    scripted.answer("POST", "/v1/echo", echo)
    client = open_client(scripted)
    assert client.request("POST", "/v1/echo", json={"mine": "parent"}) == {"mine": "parent"}
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.Queue[object] = context.Queue()
    children = [context.Process(target=submit_fifty, args=(client, answers)) for _ in range(4)]
    with client._lock:  # held at the fork by another thread, say: the children must not wait for it
        for child in children:
            child.start()
    assert [answers.get(timeout=30) for _ in children] == [True] * 4
    for child in children:
        child.join(30)
    assert client.request("POST", "/v1/echo", json={"mine": "parent"}) == {"mine": "parent"}


def test_b53_proxies_are_honoured(make_scripted: Callable[[], ScriptedServer], monkeypatch: pytest.MonkeyPatch) -> None:
    proxy, service = make_scripted(), make_scripted()
    proxy.answer("GET", "http://service.example/v1/config", Answer(200, {"through": "the proxy"}))
    service.answer("GET", "/v1/config", Answer(200, {"through": "nothing"}))
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert Client("http://service.example", KEY).request("GET", "/v1/config", timeout=5) == {"through": "the proxy"}
    assert Client(service.url, KEY).request("GET", "/v1/config") == {"through": "nothing"}
