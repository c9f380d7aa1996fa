"""The cut-able proxy does what the tests believe it does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from support.proxy import MakeProxy, Proxy
from support.waiting import wait_until


class Target(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: list[str]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def seen() -> list[str]:
    return []


@pytest.fixture
def proxy(seen: list[str], make_proxy: MakeProxy) -> Iterator[Proxy]:
    handler = type("Handler", (Target,), {"seen": seen})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield make_proxy(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()


def test_an_answer_is_lost_after_its_request_was_served(proxy: Proxy, seen: list[str]) -> None:
    with httpx.Client(base_url=proxy.url) as client:
        assert client.post("/a", content=b"x" * 300_000).text == "ok"
        rule = proxy.drop_next_answer("POST", "/b")
        assert client.post("/c").text == "ok"
        with pytest.raises(httpx.TransportError):
            client.post("/b?q=1")
        rule.wait()
        assert client.post("/b").text == "ok"
    assert seen == ["/a", "/c", "/b?q=1", "/b"]
    assert proxy.count("POST", "/b") == 2


def test_a_request_is_lost_before_it_was_served(proxy: Proxy, seen: list[str]) -> None:
    with httpx.Client(base_url=proxy.url) as client:
        proxy.drop_next_request("POST", "/a*")
        with pytest.raises(httpx.TransportError):
            client.post("/a/1")
        assert client.post("/a/2").text == "ok"
    assert seen == ["/a/2"]


def test_a_black_hole_holds_bytes_back_and_a_cut_resets(proxy: Proxy, seen: list[str]) -> None:
    with httpx.Client(base_url=proxy.url, timeout=0.2) as client:
        proxy.black_hole()
        with pytest.raises(httpx.ReadTimeout):
            client.post("/a")
        assert seen == []
        proxy.restore()
        wait_until(lambda: client.post("/b").text == "ok")
        proxy.cut()
        for _ in range(2):
            with pytest.raises(httpx.TransportError):
                client.post("/c")
        proxy.restore()
        assert client.post("/d").text == "ok"
        proxy.delay(0.5)
        with pytest.raises(httpx.ReadTimeout):
            client.post("/e")
    assert "/c" not in seen
