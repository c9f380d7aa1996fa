"""A worker that does real work: the statistics of a text, read as a stream, however large it is.

The document is a file below the folder in which the worker runs (DOCUMENT_ROOT names another), or a reference
`{"$url": "https://…", "sha256": "…", "size": …}`. A reference is fetched over https from public addresses only; hosts
named in DOCUMENT_ALLOW_HOSTS (comma-separated, `127.0.0.1` say) may be private and plain http.

Needs INTERLOCK_URL and INTERLOCK_WORKER_KEY.
"""

from __future__ import annotations

import codecs
import hashlib
import ipaddress
import logging
import os
import re
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from interlock import Retry, Retryable, TaskContext, TaskWorker

PIECE = 256 * 1024
LARGEST = 10 * 1024**3
MOST_WORDS = 200_000
WORD = re.compile(r"\w+")


class DocumentRefused(ValueError):
    """The document is not one that this worker reads; the message says why."""


class DocumentChanged(ValueError):
    """The document is not the one that the reference names."""


def serve_documents(worker: TaskWorker) -> None:
    """Let the worker serve `demo/text-statistics`."""
    worker.handle(
        "demo/text-statistics",
        1,
        effect_safety="pure",
        retry=Retry(max_attempts=5, on=(httpx.TransportError,)),
        timeout=3600,
        description="Lines, words, characters and the most frequent words of a text",
    )(text_statistics)


def text_statistics(inp: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
    """`{"path": "…"}` or `{"document": {"$url": "…", "sha256"?, "size"?}}` → counts, `sha256`, `topWords`."""
    reference = inp.get("document")
    if isinstance(reference, dict):
        return count(fetch(reference), ctx, reference.get("size"), reference.get("sha256"))
    if isinstance(inp.get("path"), str):
        path = find_file(inp["path"])
        return count(read(path), ctx, path.stat().st_size, inp.get("sha256"))
    raise DocumentRefused('the input needs a "path", or a "document" with a "$url"')


def count(pieces: Iterator[bytes], ctx: TaskContext, size: int | None, sha256: str | None) -> dict[str, Any]:
    """The statistics of a stream of bytes, held in memory one piece at a time."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    digest = hashlib.sha256()
    words: Counter[str] = Counter()
    total = {"bytes": 0, "characters": 0, "lines": 0, "words": 0}
    rest, last = "", "\n"
    for piece in pieces:
        ctx.raise_if_cancelled()
        digest.update(piece)
        total["bytes"] += len(piece)
        text = decoder.decode(piece)
        last = text[-1:] or last
        rest = count_text(rest + text, total, words)
        if size:
            ctx.progress(100 * min(1.0, total["bytes"] / size), f"{total['bytes']} of {size} bytes")
    text = decoder.decode(b"", final=True)
    count_text(rest + text, total, words, final=True)
    if (text[-1:] or last) != "\n":
        total["lines"] += 1  # the last line, which no line break ends
    if sha256 is not None and digest.hexdigest() != sha256.lower():
        raise DocumentChanged(f"its sha256 is {digest.hexdigest()}, not {sha256}")
    if size is not None and total["bytes"] != size:
        raise DocumentChanged(f"it has {total['bytes']} bytes, not {size}")
    ctx.log.info("read %d bytes", total["bytes"])
    top = [{"word": word, "count": number} for word, number in sorted(words.items(), key=lambda item: (-item[1], item[0]))[:10]]
    return {**total, "distinctWords": len(words), "sha256": digest.hexdigest(), "topWords": top}


def count_text(text: str, total: dict[str, int], words: Counter[str], *, final: bool = False) -> str:
    """Count the text up to its last white space, and return what stands behind it: the word that may go on."""
    end = len(text) if final else max(text.rfind(" "), text.rfind("\n")) + 1 or (len(text) if len(text) > PIECE else 0)
    whole = text[:end]
    total["characters"] += len(whole)
    total["lines"] += whole.count("\n")
    found = [word.lower() for word in WORD.findall(whole)]
    total["words"] += len(found)
    words.update(found)
    if len(words) > MOST_WORDS:  # A text without end must not fill the memory: the rarest are forgotten.
        for word, _ in words.most_common()[MOST_WORDS // 2 :]:
            del words[word]
    return text[end:]


def find_file(name: str) -> Path:
    """The file, if it lies below the folder that the worker may read."""
    root = Path(os.environ.get("DOCUMENT_ROOT") or ".").resolve()
    path = (root / name).resolve()
    if not path.is_relative_to(root):
        raise DocumentRefused(f"this worker reads files below {root} only")
    if not path.is_file():
        raise DocumentRefused(f"there is no file {path}")
    return path


def read(path: Path) -> Iterator[bytes]:
    """The file in pieces."""
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            yield piece


def fetch(reference: dict[str, Any]) -> Iterator[bytes]:
    """The document behind a reference, in pieces. The service's key is not sent: this is another host."""
    url = httpx.URL(str(reference.get("$url") or ""))
    address = choose_address(url)
    # The connection goes to the very address that was checked; name and certificate stay those of the URL.
    target = url.copy_with(host=address)
    headers = {"Host": url.netloc.decode("ascii")}
    with (
        httpx.Client(follow_redirects=False, timeout=30.0, trust_env=False) as client,
        client.stream("GET", target, headers=headers, extensions={"sni_hostname": url.host}) as response,
    ):
        if response.status_code in (408, 425, 429, 500, 502, 503, 504):
            raise Retryable(f"{url.host} answers {response.status_code}")
        if response.status_code != 200:
            raise DocumentRefused(f"{url.host} answers {response.status_code}")
        size = 0
        for piece in response.iter_bytes(PIECE):
            size += len(piece)
            if size > LARGEST:
                raise DocumentRefused(f"it is larger than {LARGEST} bytes")
            yield piece


def choose_address(url: httpx.URL) -> str:
    """A public address of the URL's host (any address of an allowed host); DocumentRefused for everything else."""
    allowed = {host.strip().lower() for host in os.environ.get("DOCUMENT_ALLOW_HOSTS", "").split(",") if host.strip()}
    trusted = url.host.lower() in allowed
    if url.scheme != "https" and not (trusted and url.scheme == "http"):
        raise DocumentRefused("a reference is fetched over https only")
    if url.userinfo:
        raise DocumentRefused("a reference carries no user or password")
    try:
        found = socket.getaddrinfo(url.host, url.port or 443, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Retryable(f"{url.host} is not found: {error}") from None
    addresses = [ipaddress.ip_address(item[4][0]) for item in found]
    if not trusted and not all(address.is_global and not address.is_multicast for address in addresses):
        raise DocumentRefused(f"{url.host} is not a public address; DOCUMENT_ALLOW_HOSTS names exceptions")
    return str(addresses[0])


worker = TaskWorker(worker_id="documents", max_concurrent=2)
serve_documents(worker)

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    worker.run()
