"""The HTTP client of everything in this package: one key, one service, retries that the protocol makes safe.

    request → one try after another, until an answer counts or the time is over
    send    → one try: stale connections, timeouts and foreign answers become errors of ours

This is the only file that talks HTTP. Every mutation of the protocol may be repeated after a lost
answer, so a try that broke is repeated whatever it was, unless the caller says `repeatable=False`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

import httpx

from interlock.answers import foreign_answer, read_answer
from interlock.backoff import Backoff
from interlock.bodies import ENCODING, BadAnswer, Unconnected, check_encoding, read_body, read_lines
from interlock.deadlines import bound, until
from interlock.errors import ApiError, ConfigurationError, InterlockError, Unreachable
from interlock.json_text import encode
from interlock.settings import KeyKind, certificate_places, check_url, find_key, find_url
from interlock.version import VERSION

log = logging.getLogger("interlock")

Params = Mapping[str, "str | int | float | bool | Sequence[str | int] | None"]


class ClientOptions(TypedDict, total=False):
    """How a producer or an operator reaches the service, beside its URL and key; as the arguments of Client.

    `profile` names an entry of the file of profiles, `timeout` bounds one call, retries included, in seconds; `ca` is a file
    of certificates (PEM) of authorities that are trusted beside the usual ones. `client` is one in use already: all else
    is its own then.
    """

    profile: str | None
    timeout: float
    ca: str | os.PathLike[str] | None
    client: Client | None


USER_AGENT = f"interlock-python/{VERSION}"


class Client:
    """Calls of one service with one key. Thread-safe; safe after fork; its repr shows no key.

    The URL and the key come from the arguments, else from the environment, else from the profile. `timeout` bounds a
    whole call in seconds, its retries included. Proxies (`HTTPS_PROXY`, `NO_PROXY`) and `SSL_CERT_FILE` are honoured;
    `ca` is a file of certificates (PEM) of authorities that are trusted beside the usual ones.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        kind: KeyKind = "task-producer",
        profile: str | None = None,
        timeout: float = 60.0,
        ca: str | os.PathLike[str] | None = None,
    ) -> None:
        self.url = find_url(url, profile)
        self.kind = kind
        self.timeout = timeout
        self._key = find_key(key, kind, profile)
        self._trust = None if ca is None else read_authority(ca)
        self._connections: dict[bool, httpx.Client]  # with TLS, and without
        self._closers: list[weakref.finalize[[httpx.Client, int], Client]]
        self._reset()
        _clients.add(self)

    def __repr__(self) -> str:
        return f"Client(url={self.url!r}, kind={self.kind!r})"

    def __enter__(self) -> Client:  # noqa: PYI034 (typing.Self is newer than Python 3.10)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        params: Params | None = None,
        content: bytes | None = None,
        timeout: float | None = None,
        url: str | None = None,
        repeatable: bool = True,
        stop: Callable[[], bool] | None = None,
        on_send: Callable[[], None] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """The JSON object that the service answers with.

        `json` is encoded once, exactly; `content` is a body already encoded. `timeout` (seconds, absent: the
        client's) bounds all tries together. `url` is another host of the same service (the stream's). With
        `repeatable=False` a try whose request may have reached the service is not repeated. `stop`, when true, ends
        the retries; `on_send` is called just before each try. `headers` go beside the usual ones. Raises ApiError
        (refused), Unreachable (time over), NotJson, ConfigurationError (redirected).
        """
        if content is None and json is not None:
            content = encode(json, "the request")
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        last: InterlockError
        backoff = Backoff(first=0.1, longest=10.0)
        target = (check_url(url) if url else self.url) + path
        while True:
            if on_send is not None:
                on_send()
            try:
                return self.send(method, target, content, params, deadline, headers)
            except ApiError as error:
                if not error.retryable:
                    raise
                delay, last = backoff.next(error.retry_after), error
            except _Broken as error:
                if not (repeatable or error.unsent) or error.untrusted:
                    raise Unreachable(error.text) from None
                # A kept-alive connection that the other end had closed is no sign of trouble: ask again at once, once.
                delay = 0.0 if error.stale and backoff.tries == 0 else backoff.next()
                backoff.tries = max(backoff.tries, 1)
                last = Unreachable(error.text)
            if time.monotonic() + delay >= deadline or (stop is not None and stop()):
                raise last from None
            log.debug("asking again in %.2f s: %s %s: %s", delay, method, path, last)
            if not self._pause(delay, stop) or time.monotonic() >= deadline:
                raise last from None  # which says what was wrong; a try without time would only say that there was none

    def send(
        self,
        method: str,
        target: str,
        content: bytes | None,
        params: Params | None,
        deadline: float,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """One try. Raises _Broken where no answer came, ApiError where a bad one did."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise _Broken("the time was over before the request was sent", unsent=True)
        sent = {**(headers or {}), **self.headers()}
        if content is not None:
            sent["Content-Type"] = "application/json"
        query = {name: value for name, value in (params or {}).items() if value is not None} or None
        limits = httpx.Timeout(connect=min(left, 10.0), read=min(left, 40.0), write=min(left, 40.0), pool=min(left, 40.0))
        try:
            http = self._http(target)
            request = http.build_request(method, target, content=content, params=query, headers=sent, timeout=limits)
            with until(deadline):
                response = http.send(request, stream=True, follow_redirects=False)
                try:
                    body = read_body(response, deadline)
                finally:
                    response.close()
        except (httpx.InvalidURL, UnicodeError):  # the latter for a name that is none in IDNA
            raise ConfigurationError("the service URL cannot be used; correct INTERLOCK_URL") from None
        except (httpx.RequestError, BadAnswer) as error:
            raise describe_break(error, target) from None
        return read_answer(response.status_code, response.headers, body, target)

    def open_stream(
        self, url: str, path: str, params: Params, read_timeout: float, headers: Mapping[str, str] | None = None
    ) -> EventStream:
        """A stream of server-sent events, open. `read_timeout` (seconds) is the longest silence that is not a fault.

        Raises ApiError when it is refused, Unreachable when it cannot be opened, ConfigurationError when redirected.
        """
        target = check_url(url) + path
        http = open_connections(self._verify(target), read_timeout)
        try:
            sent = {
                **self.headers(),
                **(headers or {}),
                "Accept": "text/event-stream",
                "Accept-Encoding": "identity",
                "Cache-Control": "no-store",
            }
            request = http.build_request("GET", target, params=dict(params), headers=sent)
            with until(time.monotonic() + read_timeout):
                response = http.send(request, stream=True, follow_redirects=False)
                if response.status_code != 200:
                    read_answer(response.status_code, response.headers, read_body(response, time.monotonic() + 10), target)
                    raise foreign_answer(response.status_code, response.headers, retryable=True)
            check_encoding(response)
        except (httpx.InvalidURL, UnicodeError):
            http.close()
            raise ConfigurationError("the URL of the stream cannot be used") from None
        except (httpx.RequestError, BadAnswer) as error:
            http.close()
            raise Unreachable(describe_break(error, target).text) from None
        except BaseException:
            http.close()
            raise
        return EventStream(http, response, target)

    def headers(self) -> dict[str, str]:
        """The headers of a call, the key among them: given to no log, and to no other host."""
        return {
            "Authorization": f"Bearer {self._key.reveal()}",
            "User-Agent": USER_AGENT,
            "Accept": "application/json",
            "Accept-Encoding": ENCODING,
        }

    def close(self) -> None:
        """Close the connections. The client opens new ones if it is used again."""
        with self._lock:
            self._connections = {}
            closers, self._closers = self._closers, []
        for closer in closers:
            closer()

    def _http(self, target: str) -> httpx.Client:
        if self._pid != os.getpid():
            self.forget_parent()
        verify = self._verify(target)
        http = self._connections.get(bool(verify))
        if http is None:
            with self._lock:
                http = self._connections.get(bool(verify))
                if http is None:
                    http = self._connections[bool(verify)] = open_connections(verify)
                    self._closers.append(weakref.finalize(self, close_connections, http, self._pid))
        return http

    def _verify(self, target: str) -> ssl.SSLContext | Literal[False]:
        """What the certificate of a target is checked against; without TLS there is none, and a twentieth of a second saved."""
        if not target.lower().startswith("https:"):
            return False
        return self._trust or read_authorities(*certificate_places())

    def _pause(self, seconds: float, stop: Callable[[], bool] | None) -> bool:
        """Wait; False as soon as `stop` says so."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if stop is not None and stop():
                return False
            time.sleep(min(left, 0.1 if stop is not None else left))
        return True

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._connections = {}
        self._closers = []

    def forget_parent(self) -> None:
        """Start afresh in a child process."""
        # The parent's sockets are shared with us: they are neither used nor closed (closing TLS would say goodbye on
        # the parent's connection), only kept out of the collector's reach.
        _parents.extend(self._connections.values())
        self._reset()


def open_client(
    kind: KeyKind,
    url: str | None = None,
    key: str | None = None,
    *,
    profile: str | None = None,
    timeout: float = 60.0,
    ca: str | os.PathLike[str] | None = None,
    client: Client | None = None,
) -> Client:
    """The client of a producer or an operator: the one given, or a new one. The options are those of ClientOptions."""
    return client or Client(url, key, kind=kind, profile=profile, timeout=timeout, ca=ca)


class EventStream:
    """The lines of an open stream. Connections of its own: a stream that hangs must not take one from the calls."""

    def __init__(self, http: httpx.Client, response: httpx.Response, target: str) -> None:
        self._http = http
        self._response = response
        self._target = target

    def lines(self) -> Iterator[str]:
        """Each line as it comes; ends when the server ends it. Raises Unreachable when it breaks or falls silent."""
        try:
            yield from read_lines(self._response.iter_bytes())
        except Unreachable:
            raise
        except (httpx.RequestError, httpx.StreamError, OSError) as error:
            raise Unreachable(f"the stream broke: {type(error).__name__}") from None

    def interrupt(self) -> None:
        """End a read that another thread is in."""
        stream = self._response.extensions.get("network_stream")
        connection = stream.get_extra_info("socket") if stream is not None else None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it, by the thread that reads it."""
        with contextlib.suppress(httpx.RequestError, OSError):
            self._response.close()
        self._http.close()


class _Broken(InterlockError):
    """No answer came. `unsent`: the request cannot have arrived. `stale`: an idle connection had been closed.

    `untrusted`: the server's certificate was refused; asking again at once changes nothing.
    """

    def __init__(self, text: str, *, unsent: bool = False, stale: bool = False, untrusted: bool = False) -> None:
        super().__init__(text)
        self.text = text
        self.unsent = unsent
        self.stale = stale
        self.untrusted = untrusted


@functools.cache
def read_authorities(*_places: str | None) -> ssl.SSLContext:
    """The usual authorities, or those of the environment: read once for all clients, since reading them takes its time."""
    return httpx.create_ssl_context()


def read_authority(ca: str | os.PathLike[str]) -> ssl.SSLContext:
    """The authorities of a file beside the usual ones. Raises ConfigurationError for a file that cannot be used."""
    context = httpx.create_ssl_context()
    try:
        context.load_verify_locations(cafile=Path(ca).expanduser())
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"ca={str(ca)!r} cannot be used: it must be a file of certificates in PEM form ({error})"
        ) from None
    return context


def open_connections(verify: ssl.SSLContext | Literal[False], read_timeout: float = 40.0) -> httpx.Client:
    """Connections that carry no key by themselves and follow nothing."""
    http = httpx.Client(
        verify=verify,
        follow_redirects=False,
        timeout=httpx.Timeout(10.0, read=read_timeout),
        limits=httpx.Limits(max_connections=100, max_keepalive_connections=40, keepalive_expiry=20.0),
    )
    bound(http)
    return http


def close_connections(http: httpx.Client, pid: int) -> None:
    """Close what this process opened; called at the latest when the client is collected."""
    if pid == os.getpid():
        http.close()


def describe_break(error: httpx.RequestError | BadAnswer, target: str) -> _Broken:
    """Our error for a transport's: the host and the kind of fault, never what was sent.

    The transport's own error is not chained to it: its text may quote a header, and its traceback tells a user nothing.
    """
    host = httpx.URL(target).netloc.decode("ascii", "replace")
    unsent = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError, Unconnected))
    # httpx files "server disconnected" under protocol errors, not network errors.
    stale = isinstance(error, (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError, httpx.CloseError))
    reason = type(error).__name__ if isinstance(error, httpx.LocalProtocolError) else str(error) or type(error).__name__
    untrusted = "CERTIFICATE_VERIFY_FAILED" in reason
    if untrusted:
        reason += " (a private authority's certificate is named by SSL_CERT_FILE or ca=)"
    return _Broken(f"no answer from {host}: {reason}", unsent=unsent, stale=stale, untrusted=untrusted)


def _forget_parents_connections() -> None:
    for client in list(_clients):
        client.forget_parent()


_clients: weakref.WeakSet[Client] = weakref.WeakSet()
_parents: list[httpx.Client] = []

if hasattr(os, "register_at_fork"):
    # A lock that another thread held at the fork would stay locked in the child for ever.
    os.register_at_fork(after_in_child=_forget_parents_connections)

__all__ = ["USER_AGENT", "Client", "ClientOptions", "EventStream", "open_client"]
