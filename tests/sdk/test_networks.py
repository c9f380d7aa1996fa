"""What stands between the SDK and the service: TLS of a private authority, an HTTP proxy that is slow."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from interlock import Client, ConfigurationError, TaskContext, TaskProducer, TaskWorker, Unreachable
from sdk.conftest import KEY
from sdk.live import Live
from support.proxy import MakeProxy
from support.waiting import wait_until

# proxies that take their time, and a worker behind each
pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a private authority (`ca.pem`) and a certificate of its for localhost (`server.pem`, `server.key`)."""
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=Private authority")
    openssl("req", *curve, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=localhost")
    (folder / "names").write_text("subjectAltName=DNS:localhost\n")
    openssl(
        *("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
        *("-days", "2", "-extfile", "names", "-out", "server.pem"),
    )
    return folder


@pytest.fixture
def tls_url(live: Live, authority: Path) -> Iterator[str]:
    """The live service behind a TLS endpoint."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority / "server.pem", authority / "server.key")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, ssl.SSLError):
                while data := await reader.read(65536):
                    writer.write(data)
                    await writer.drain()
        finally:  # also at the fixture's end, which cancels
            writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = urlsplit(live.url)
        up_reader, up_writer = await asyncio.open_connection(there.hostname, there.port)
        await asyncio.gather(pump(reader, up_writer), pump(up_reader, writer))

    async def listen() -> asyncio.Server:
        return await asyncio.start_server(accept, "localhost", 0, ssl=context)

    async def close() -> None:
        server.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for one in rest:
            one.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    server = asyncio.run_coroutine_threadsafe(listen(), loop).result(10)
    # One port on each of localhost's addresses would be two: the first is enough.
    yield f"https://localhost:{server.sockets[0].getsockname()[1]}"
    asyncio.run_coroutine_threadsafe(close(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def test_the_whole_job_over_tls_of_a_private_authority(live: Live, tls_url: str, authority: Path, tmp_path: Path) -> None:
    ca = authority / "ca.pem"
    worker = TaskWorker(
        worker_id="tls", url=tls_url, key=live.service.key("task-worker"), ca=ca, spool=tmp_path / "spool", drain_timeout=5
    )

    @worker.handle(live.type, 1, effect_safety="pure")
    def run(inp: int, ctx: TaskContext) -> int:
        return inp + 1

    with TaskProducer(tls_url, live.service.key("task-producer"), ca=ca) as producer:
        handle = producer.submit(live.type, 1, 1)
        worker.start()
        try:
            assert handle.result(timeout=20) == 2
        finally:
            worker.drain()
        producer._host.find = lambda: tls_url  # type: ignore[method-assign]  # the live service tells its plain address
        assert [event.kind for event in handle.watch()] == ["submitted", "claimed", "succeeded"]


def test_the_environment_names_the_authority_too(
    tls_url: str, live: Live, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority / "ca.pem"))
    assert Client(tls_url, live.service.key("task-producer")).request("GET", "/v1/config", timeout=10)["version"]


# asyncio leaves the server's half of a handshake that the client refused to the collector (this test's own server)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_authority_that_is_not_trusted_is_told_at_once(tls_url: str, pauses: list[float]) -> None:
    client = Client(tls_url, KEY)
    for call in (lambda: client.request("GET", "/v1/config"), lambda: client.open_stream(tls_url, "/v1/stream", {}, 5)):
        with pytest.raises(Unreachable, match="SSL_CERT_FILE or ca="):
            call()
    assert pauses == []


def test_a_file_that_is_no_authority_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nonsense").write_text("no certificate")
    for path in (tmp_path / "nonsense", tmp_path / "missing"):
        with pytest.raises(ConfigurationError, match="PEM"):
            Client("https://localhost:1", KEY, ca=path)


def test_b53_the_whole_job_through_a_slow_http_proxy(live: Live, make_proxy: MakeProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls and streams alike: the service's name is known to the proxy only."""
    proxy = make_proxy(live.url)
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    monkeypatch.setenv("NO_PROXY", "")
    proxy.delay(0.3)
    url = "http://service.invalid"
    worker = live.worker(lambda inp, ctx: inp + 1, url=url)
    worker.start()
    wait_until(lambda: worker._life is not None and worker._life._stream.connected, 20)
    with TaskProducer(url, live.service.key("task-producer")) as producer:
        handle = producer.submit(live.type, 1, 1)
        assert handle.result(timeout=20) == 2
        assert [event.kind for event in handle.watch()] == ["submitted", "claimed", "succeeded"]
    monkeypatch.setenv("NO_PROXY", "service.invalid")
    with pytest.raises(Unreachable):
        Client(url, KEY).request("GET", "/v1/config", timeout=0.5)
    streams = [path for _, path in proxy.requests if path.endswith("/v1/stream")]
    assert len(streams) == 1, proxy.requests
