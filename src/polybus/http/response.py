"""Responses as bytes.

Invariant: what is encoded here has a content-length that is right, and header names in lower case.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from http import HTTPStatus

# Spelled as the clients of the original servers see it (protocol page §1).
_REASONS = {s.value: s.phrase for s in HTTPStatus} | {413: "Request Entity Too Large"}


@lru_cache(maxsize=256)
def status_line(status: int) -> bytes:
    """The first line of a response, with its line end; a status without a phrase repeats its number."""
    return f"HTTP/1.1 {status} {_REASONS.get(status, str(status))}\r\n".encode()


def encode_response(
    status: int, headers: Mapping[str, str], body: bytes = b"", *, bodyless: bool = False
) -> bytes:
    """One whole response; `bodyless` (to HEAD) tells the length and leaves the body out."""
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    if status >= 200 and status != 204:
        lines.append(f"content-length: {len(body)}\r\n")
    head = status_line(status) + "".join(lines).encode("utf-8", "surrogateescape") + b"\r\n"
    return head if bodyless else head + body
