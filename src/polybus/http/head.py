"""The head of a request: start line and headers.

Invariant: a parsed head has one unambiguous body length, lower-case header names and no control characters, so that
nothing in it can end a line of a message that is built from it.

Plain typed Python which Cython also compiles, as `session`, `request` and `turn` beside it (`.pxd` has the C types).
"""

from __future__ import annotations

import re
from typing import Any, Final

from polybus.errors import RemoteProtocolError

VERSIONS: Final = ("HTTP/1.1", "HTTP/1.0")
METHODS: Final = frozenset(
    {"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "QUERY", "TRACE", "CONNECT"}
)
_STARTS: Final = tuple(method.encode() + b" " for method in METHODS)
_LONGEST: Final = max(map(len, _STARTS))
_CONTROL: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f]")
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


class BadHead(RemoteProtocolError):
    """The head cannot be understood; `status` is what the peer is told before its connection ends."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class Shortcut:
    """What an application has made of a head: takes the requests that have it without looking at the head again."""

    __slots__ = ()

    def take(self, ident: bytes, body: bytes) -> bool:
        """Carry out the request with this id, in printable ASCII; False, and nothing done, leaves it to the party."""
        raise NotImplementedError


class Head:
    """What one head says. Heads that differ in nothing but `id` share one object (see `session`)."""

    __slots__ = (
        "after",
        "before",
        "chunked",
        "follower",
        "foreign",
        "headers",
        "id_size",
        "keep_alive",
        "length",
        "memo",
        "method",
        "ordered",
        "path",
        "query",
        "shortcut",
        "special",
        "target",
        "upgrade",
    )

    def __init__(self, method: str, target: str, headers: dict[str, str]) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.path, _, self.query = target.partition("?")
        self.length = 0
        self.chunked = False
        self.keep_alive = True
        self.ordered = True
        """Whether its answer has to come in its turn; not so for clients that match answers by id."""
        self.foreign = ""
        """Why the request must not change anything (see `origin`); empty when it may."""
        self.upgrade = False
        self.special = False
        """Whether the session has to look closer: chunks, an upgrade, or a body that is too large."""
        self.memo: Any = None
        """What the application has found out about this head; its own business."""
        self.shortcut: Shortcut | None = None
        """Set by an application that can."""
        # The bytes around the id, once the head has come twice, and what to expect of the id and the head behind it
        self.before = b""
        self.after = b""
        self.id_size = 0
        self.follower: Head | None = None


def sniff(first: bytes) -> bool | None:
    """Whether a connection that begins so speaks HTTP; None while that cannot be told."""
    if first.startswith(_STARTS):
        return True
    if len(first) < _LONGEST and any(start.startswith(first) for start in _STARTS):
        return None
    return False


def parse_head(raw: bytes, max_headers: int = 256) -> Head:
    """Parse a head without its final empty line.

    Raises:
        BadHead: with the status to answer.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    start, *lines = text.split("\r\n")
    parts = start.split(" ")
    if len(parts) != 3 or parts[0] not in METHODS or parts[2] not in VERSIONS:
        raise BadHead(f"bad request line {start[:80]!r}")
    if _CONTROL.search(start):
        raise BadHead("a control character in the request line")
    if len(lines) > max_headers:
        raise BadHead(f"more than {max_headers} headers", 431)
    method, target, version = parts
    if target.startswith("http://"):
        # The absolute form, as proxies send it.
        target = "/" + target[7:].partition("/")[2]
    head = Head(method, target, _parse_headers(lines))
    _frame(head, version)
    return head


def _parse_headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name):
            raise BadHead(f"bad header line {line[:80]!r}")
        if _CONTROL.search(value):
            raise BadHead(f"a control character in header {name[:80]!r}")
        name = name.lower()
        value = value.strip(" \t")
        if name in ("content-length", "transfer-encoding") and headers.get(name, value) != value:
            # Two lengths: whoever believes the other one would see another request.
            raise BadHead(f"two different values of {name}")
        headers[name] = value
    return headers


def _frame(head: Head, version: str) -> None:
    headers = head.headers
    coding = headers.get("transfer-encoding")
    length = headers.get("content-length")
    if coding is not None:
        # HTTP/1.0 knows no chunks: a proxy of that time would have passed the coding on unread.
        if coding.lower() != "chunked" or length is not None or version == "HTTP/1.0":
            raise BadHead("a body whose length is not clear")
        head.chunked = True
    elif length is not None:
        if not (length.isascii() and length.isdigit()) or len(length) > 18:
            raise BadHead(f"content-length {length[:20]!r} is no length")
        head.length = int(length)
    connection = headers.get("connection", "").lower()
    if version == "HTTP/1.0":
        head.keep_alive = connection == "keep-alive"
    else:
        head.keep_alive = connection != "close"
    head.upgrade = head.method == "GET" and headers.get("upgrade", "").lower() == "websocket"
    # A client that names its command or its id matches answers by id (protocol page Zbus §1).
    head.ordered = "cmd" not in headers and "id" not in headers
