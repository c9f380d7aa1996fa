"""Answers that drip, never end, swell or say nothing: a call ends in its time, and memory has a bound."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator

import pytest

from interlock import ApiError, Client, ConfigurationError, Unreachable
from interlock.bodies import LONGEST_LINE, read_lines
from interlock.stream import read_frames
from sdk.conftest import KEY, Answer, ScriptedServer

Talk = Callable[[socket.socket], object]
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


@pytest.fixture
def make_talker() -> Iterator[Callable[[Talk], str]]:
    """A server that reads one request of each connection, and then talks as it is told to."""
    with contextlib.ExitStack() as stack:

        def make(talk: Talk) -> str:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def serve(connection: socket.socket) -> None:
                with connection, contextlib.suppress(OSError):
                    connection.recv(65_536)
                    talk(connection)

            def accept() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

            threading.Thread(target=accept, daemon=True).start()
            return f"http://127.0.0.1:{listener.getsockname()[1]}"

        yield make


def drip(head: bytes, piece: bytes) -> Talk:
    """Sends the head, and the piece again and again: often enough that no single wait for bytes is long."""

    def talk(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(piece)
            time.sleep(0.05)  # the pace of the server, not a wait for anything

    return talk


def end_of(call: Callable[[], object]) -> object:
    """What the call, whose own time is half a second, gives or raises; fails where it outlives five."""
    ended: list[object] = []

    def run() -> None:
        try:
            ended.append(call())
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(5)
    assert ended, "the call outlives its time"
    return ended[0]


GZIP_HEAD = zlib.compressobj(wbits=31).compress(b"") or b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03"


@pytest.mark.parametrize(
    "talk",
    [
        pytest.param(drip(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n"), id="headers"),
        pytest.param(drip(b"", b"HTTP/1.1 102 Processing\r\n\r\n"), id="informational"),
        pytest.param(drip(OK + b"content-length: 9000\r\n\r\n{", b" "), id="body"),
        pytest.param(drip(OK + b"transfer-encoding: chunked\r\n\r\n1;", b"x"), id="chunk-header"),
        pytest.param(
            drip(OK + b"content-encoding: gzip\r\ncontent-length: 9000\r\n\r\n" + GZIP_HEAD, b"\0\0\0\xff\xff"), id="gzip"
        ),
    ],
)
def test_an_answer_that_drips_ends_with_its_call(make_talker: Callable[[Talk], str], talk: Talk) -> None:
    client = Client(make_talker(talk), KEY)
    assert isinstance(end_of(lambda: client.request("GET", "/v1/config", timeout=0.5)), Unreachable)


@pytest.mark.parametrize("url", ["http://xn--/", "http://" + "a" * 70 + ".invalid\u00e9", "http://-\u00e9.invalid"])
def test_a_host_that_is_no_name_is_told_as_a_setting(url: str) -> None:
    with pytest.raises(ConfigurationError):
        Client(url, KEY).request("GET", "/v1/config", timeout=0.5)
    with pytest.raises(ConfigurationError):
        Client("http://127.0.0.1:9", KEY).open_stream(url, "/v1/stream", {}, 0.5)


def test_a_call_without_time_to_connect_was_not_sent(scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening connections may take its time where a machine is busy: the call may be repeated whatever it is."""
    from interlock import client

    opened = client.open_connections
    monkeypatch.setattr(client, "open_connections", lambda *given: (time.sleep(0.2), opened(*given))[1])
    scripted.answer("POST", "/v1/tasks", Answer(201, {"ok": True}))
    with pytest.raises(Unreachable, match="before there was a connection"):
        Client(scripted.url, KEY).request("POST", "/v1/tasks", json={}, timeout=0.1, repeatable=False)
    assert not scripted.seen


def test_a_stream_that_never_opens_is_given_up(make_talker: Callable[[Talk], str]) -> None:
    url = make_talker(drip(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n"))
    assert isinstance(end_of(lambda: Client(url, KEY).open_stream(url, "/v1/stream", {}, 0.5)), Unreachable)


@pytest.mark.parametrize("encoding", ["gzip, gzip", "br", "zstd", "deflate, identity, gzip"])
def test_an_answer_in_an_encoding_that_was_not_asked_for_is_not_read(scripted: ScriptedServer, encoding: str) -> None:
    scripted.answer("GET", "/v1/config", Answer(200, b"{}", {"content-encoding": encoding}))
    with pytest.raises(Unreachable, match="encoded"):
        Client(scripted.url, KEY).request("GET", "/v1/config", stop=lambda: True)
    assert scripted.seen[0].headers["accept-encoding"] == "gzip"


def test_a_compressed_answer_is_read(scripted: ScriptedServer) -> None:
    packed = zlib.compressobj(wbits=31)
    body = packed.compress(b'{"ok": true}') + packed.flush()
    scripted.answer("GET", "/v1/config", Answer(200, body, {"content-encoding": "gzip"}))
    assert Client(scripted.url, KEY).request("GET", "/v1/config") == {"ok": True}


@pytest.mark.parametrize(("status", "body"), [(200, b""), (201, b" \n"), (204, b"")])
def test_an_answer_without_a_word_is_none_of_the_service(
    scripted: ScriptedServer, pauses: list[float], status: int, body: bytes
) -> None:
    scripted.answer("POST", "/v1/claims", Answer(status, body), Answer(200, {"attempts": []}))
    assert Client(scripted.url, KEY).request("POST", "/v1/claims", json={}) == {"attempts": []}
    assert len(pauses) == 1
    scripted.answer("POST", "/v1/tasks", Answer(status, body))
    with pytest.raises(ApiError, match="does not come from an Interlock service"):
        Client(scripted.url, KEY).request("POST", "/v1/tasks", json={}, stop=lambda: True)


@pytest.mark.parametrize("begin", [b": \n\ndata: ", b"id: 1\nevent: "])
def test_a_line_of_a_stream_that_never_ends_breaks_it(make_talker: Callable[[Talk], str], begin: bytes) -> None:
    taken = 0

    def talk(connection: socket.socket) -> None:
        nonlocal taken
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + begin)
        while True:
            connection.sendall(b"x" * 65_536)
            taken += 65_536
            assert taken < 4 * LONGEST_LINE, "nobody ends it"

    url = make_talker(talk)
    stream = Client(url, KEY).open_stream(url, "/v1/stream", {}, 5)
    try:
        with pytest.raises(Unreachable, match="does not end"):
            list(read_frames(stream.lines()))
    finally:
        stream.close()


def test_an_event_of_a_stream_that_never_ends_breaks_it() -> None:
    def lines() -> Iterator[str]:
        for _ in range(4 * LONGEST_LINE // 60_000):
            yield "data: " + "x" * 60_000

    with pytest.raises(Unreachable, match="does not end"):
        list(read_frames(lines()))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_lines_end_as_the_standard_of_event_streams_says(size: int) -> None:
    text = "\ufeffevent: a\r\ndata: {}\r\n\r\n: \u2028\x85\x0b\x0c\n\revent: b\rdata: \ufeff1\r\rlast"
    data = text.encode() + b"\xff\n"
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert list(read_lines(pieces)) == [
        *("event: a", "data: {}", "", ": \u2028\x85\x0b\x0c", "", "event: b", "data: \ufeff1", "", "last\ufffd"),
    ]
