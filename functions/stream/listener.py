"""What the host's listening socket should carry: accepted sockets inherit it."""

from __future__ import annotations

import socket

#: Bytes that the kernel holds for one slow reader (it doubles the number).
SEND_BUFFER = 32 * 1024


def tune(listener: socket.socket, stall_seconds: float = 30.0, send_buffer: int | None = SEND_BUFFER) -> None:
    """Bounds what a reader that is gone or reads nothing can pin: its connection is ended after `stall_seconds` by the kernel.

    A black-holed peer acknowledges nothing, one that does not read keeps its window closed; either would hold the
    descriptor for as long as the system retries, and neither can be closed politely.
    """
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(stall_seconds * 1000))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if send_buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
