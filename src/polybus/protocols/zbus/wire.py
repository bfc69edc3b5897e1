"""Zbus messages as bytes: HTTP-like, matched by id (protocol page Zbus §1, §5).

Invariant: header names are lower case on output, `content-length` is always right, and nothing that a producer put
into a header can end a line of the message that carries it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from polybus.errors import RemoteProtocolError
from polybus.http.response import status_line

WIRE: Final = "zbus"
VERSION: Final = "0.8.0"  # the documented dialect, as its clients expect to read it
OK: Final = status_line(200)
MAX_ID: Final = 39
MAX_TAG: Final = 127
MAX_FILTER: Final = 127

JSON: Final = {"content-type": "application/json"}
# Left behind when a message is stored: the request's own business, or replaced on the way out (protocol page §5).
# Cookies would hand one browser's session to whoever consumes.
NOT_STORED: Final = frozenset(
    {"cmd", "ack", "token", "id", "content-length", "transfer-encoding", "cookie", "expect"}
    | {"authorization"}
)
NOT_ROUTED: Final = frozenset(
    {"cmd", "ack", "recver", "origin_status", "id", "content-length", "transfer-encoding"}
)
_BREAKS: Final = re.compile("[\x00-\x1f\x7f]+")
_NO_NAME: Final = re.compile(r"[^!#$%&'*+\-.^_`|~0-9a-z]+")


def new_id() -> str:
    """An id for a message that came without one."""
    return str(uuid.uuid4())


def header_text(headers: Mapping[str, str]) -> str:
    """Headers as lines; values that could break a line are mended (they come from another wire)."""
    text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if text.count("\n") != len(headers) or text.count("\r") != len(headers):
        return header_text(
            {_NO_NAME.sub("-", n.lower()): _BREAKS.sub(" ", v) for n, v in headers.items()}
        )
    return text


def encode_reply(status: int, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """A whole response."""
    text = f"{header_text(headers)}content-length: {len(body)}\r\n\r\n"
    return status_line(status) + text.encode("utf-8", "replace") + body


def encode_request(
    headers: Mapping[str, str], body: bytes = b"", *, method: str = "GET", url: str = "/"
) -> bytes:
    """A whole request; the original clients always use GET and `/`, body or not."""
    text = f"{method} {url} HTTP/1.1\r\n{header_text(headers)}content-length: {len(body)}\r\n\r\n"
    return text.encode("utf-8", "replace") + body


def reply_headers(ident: str, topic: str = "") -> dict[str, str]:
    """What every reply of the server carries."""
    headers = {"connection": "Keep-Alive", "version": VERSION}
    if topic:
        headers["topic"] = topic
    if ident:
        headers["id"] = ident
    return headers


def is_acknowledged(headers: Mapping[str, str]) -> bool:
    """Whether the sender wants an answer: `ack` absent, `1` or `true`."""
    return headers.get("ack", "1").lower() in ("1", "true")


@dataclass(slots=True)
class Message:
    """A message as a client sees it: a response when `status` is not 0, else a request."""

    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    status: int = 0
    url: str = "/"
    method: str = "GET"

    @property
    def id(self) -> str:
        return self.headers.get("id", "")

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode("utf-8", "replace")

    def get(self, name: str, default: str = "") -> str:
        """A header."""
        return self.headers.get(name, default)


class MessageReader:
    """Takes the server's bytes apart into messages, however they are split; bounded by `max_bytes` per message."""

    __slots__ = ("_buffer", "_need", "max_bytes")

    def __init__(self, max_bytes: int = 1 << 30) -> None:
        self._buffer = bytearray()
        self._need = 0
        self.max_bytes = max_bytes

    def feed(self, data: bytes) -> list[Message]:
        """All messages that are whole now.

        Raises:
            RemoteProtocolError: the peer does not speak this wire.
        """
        buffer = self._buffer
        buffer += data
        found = []
        pos = 0
        while len(buffer) - pos >= self._need:
            end = buffer.find(b"\r\n\r\n", pos)
            if end < 0:
                if len(buffer) - pos > 1 << 20:
                    raise RemoteProtocolError("a head of more than 1 MiB")
                self._need = 0
                break
            message, length = parse_message_head(bytes(buffer[pos:end]))
            stop = end + 4 + length
            if length > self.max_bytes:
                raise RemoteProtocolError(f"a message of {length} bytes is over the limit")
            if stop > len(buffer):
                self._need = stop - pos
                break
            self._need = 0
            message.body = bytes(buffer[end + 4 : stop])
            found.append(message)
            pos = stop
        del buffer[:pos]
        return found


def parse_message_head(raw: bytes) -> tuple[Message, int]:
    """A message without its body, and the length of that.

    Raises:
        RemoteProtocolError.
    """
    start, *lines = raw.decode("utf-8", "replace").split("\r\n")
    first, _, rest = start.partition(" ")
    message = Message()
    try:
        if first.startswith("HTTP/1."):
            message.status = int(rest.partition(" ")[0])
        else:
            message.method, (message.url, _, _) = first, rest.partition(" ")
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise ValueError(line)
            message.headers[name.strip().lower()] = value.strip()
        return message, int(message.headers.get("content-length", 0))
    except ValueError as exc:
        raise RemoteProtocolError(f"not a Zbus message: {start[:80]!r}") from exc
