"""The answers of the server, spelled as the original ones (protocol page §5, §6).

Invariant: texts have no content-type, since a client in use fails on typed ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from polybus.errors import (
    InvalidName,
    LimitExceeded,
    NoSuchGroup,
    NoSuchTopic,
    NotAuthorized,
    PolybusError,
)
from polybus.http.response import status_line
from polybus.protocols.zbus.wire import VERSION, encode_reply, header_text, reply_headers

if TYPE_CHECKING:
    from polybus.http.request import Request
    from polybus.model.record import Delivery, Record

_BREAKS: Final = re.compile("[\x00-\x1f\x7f]+")
_OK: Final = status_line(200)
# Plain HTTP means a browser may show it: what a producer sent must not run as a page of this node.
_SANDBOX: Final = "content-security-policy: sandbox\r\nx-content-type-options: nosniff\r\n"


def text(status: int, ident: str, topic: str, body: str) -> bytes:
    """A plain answer."""
    return encode_reply(status, reply_headers(ident, topic), body.encode("utf-8", "replace"))


def done(ident: str, topic: str, now_ms: int) -> bytes:
    """200 with the time in milliseconds, the answer of most commands."""
    return text(200, ident, topic, str(now_ms))


def bad(ident: str, topic: str, what: str) -> bytes:
    """400."""
    return text(400, ident, topic, f"400: Bad Format, {what}")


def unknown(ident: str, command: str) -> bytes:
    """400 for a command that is none."""
    return text(400, ident, "", f"Bad format: command({command}) not support")


def forbidden(ident: str, topic: str) -> bytes:
    """403, in the original's spelling."""
    return text(403, ident, topic, f"403: Topic({topic}) Forbbiden")


def no_topic(ident: str, topic: str) -> bytes:
    """404 for a topic."""
    return text(404, ident, topic, f"404: Topic({topic}) Not Found")


def no_group(ident: str, topic: str, group: str) -> bytes:
    """404 for a group."""
    return text(404, ident, topic, f"404: ConsumeGroup({group}) Not Found")


def error(ident: str, topic: str, exc: PolybusError) -> bytes:
    """Any other failure."""
    match exc:
        case NoSuchTopic():
            return no_topic(ident, topic)
        case NoSuchGroup():
            return no_group(ident, topic, exc.group)
        case InvalidName():
            return bad(ident, topic, exc.text)
        case LimitExceeded():
            return bad(ident, topic, exc.text)
        case NotAuthorized():
            return forbidden(ident, topic)
        case _:
            return text(500, ident, topic, f"500: Exception Caught, {exc.text}")


def message_id(record: Record) -> str:
    """The id a message was produced with; records of other wires may have one of their own."""
    found = record.key.decode("utf-8", "replace") or record.id
    return found if found.isprintable() else _BREAKS.sub(" ", found)


class Deliveries:
    """Stored messages as answers to consumes (protocol page §5).

    Messages of one producer share their headers, so the lines that come from them are kept for the next one.
    """

    __slots__ = ("_headers", "_lines", "_tag", "_topic")

    def __init__(self) -> None:
        self._headers: Mapping[str, str] | None = None
        self._tag = ""
        self._topic = ""
        self._lines = b""

    def encode(self, delivery: Delivery, request: Request) -> bytes:
        """The answer to one consume."""
        record = delivery.record
        headers = record.headers
        if headers is not self._headers or record.tag != self._tag or delivery.topic != self._topic:
            self._headers, self._tag, self._topic = headers, record.tag, delivery.topic
            self._lines = _OK + _lines(headers, record.tag, delivery.topic)
        own = f"offset: {record.offset}\r\nid: {request.id}\r\n"
        origin = message_id(record)
        if origin:
            own += f"origin_id: {origin}\r\n"
        if delivery.attempt > 1:
            own += f"retry: {delivery.attempt - 1}\r\n"
        if request.head.ordered:
            own += _SANDBOX
        body = record.payload
        own += f"content-length: {len(body)}\r\n\r\n"
        return b"".join((self._lines, own.encode("utf-8", "replace"), body))


def _lines(headers: Mapping[str, str], tag: str, topic: str) -> bytes:
    shown = {"topic": topic, "version": VERSION, "connection": "Keep-Alive", **headers}
    if tag:
        shown.setdefault("tag", tag)
    for name in ("id", "content-length", "transfer-encoding"):
        shown.pop(name, None)  # of records that another wire has made
    return header_text(shown).encode("utf-8", "replace")
