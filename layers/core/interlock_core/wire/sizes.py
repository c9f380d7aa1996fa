"""How large an answer is for the platform, which carries it inside JSON of its own."""

from __future__ import annotations


def encoded_bytes(content: bytes) -> int:
    """The size of an answer as the platform encodes it: as a JSON string, and what is not ASCII also as base64 (see `entry`)."""
    return inside_json(content) if content.isascii() else max(inside_json(content), base64_bytes(content))


def inside_json(text: bytes | bytearray) -> int:
    """The size of JSON inside a JSON string."""
    return len(text) + text.count(b'"') + text.count(b"\\")


def base64_bytes(content: bytes) -> int:
    """The size of content as base64."""
    return (len(content) + 2) // 3 * 4
