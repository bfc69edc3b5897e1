"""Stored messages as answers to consumes (protocol page §5).

Invariant: an answer carries the headers of its message, the id of the consume and, as `origin_id`, that of the message;
none of them can end a line of it.

Messages of one producer share their headers, so the lines that come from them are kept for the next one.

Plain typed Python which Cython also compiles (`deliveries.pxd` has the C types).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from polybus.http.request import Request
from polybus.http.session import is_plain
from polybus.protocols.zbus.wire import OK, VERSION, header_text

if TYPE_CHECKING:
    from polybus.model.record import Delivery, Record

_BREAKS: Final = re.compile("[\x00-\x1f\x7f]+")
PRODUCERS: Final = 8  # whose lines are kept
# Plain HTTP means a browser may show it: what a producer sent must not run as a page of this node.
SANDBOX: Final = b"content-security-policy: sandbox\r\nx-content-type-options: nosniff\r\n"


def message_id(record: Record) -> str:
    """The id a message was produced with; records of other wires may have one of their own."""
    found = record.key.decode("utf-8", "replace") or record.id
    return found if found.isprintable() else _BREAKS.sub(" ", found)


class Deliveries:
    """The answers to one connection."""

    __slots__ = ("_headers", "_known", "_lines", "_size", "_sized", "_tag", "_topic")

    def __init__(self) -> None:
        self._known: dict[int, tuple[Mapping[str, str], str, str, bytes]] = {}
        """Lines by the identity of the headers they were made of, which they keep alive."""
        self._headers: Mapping[str, str] | None = None
        self._tag = ""
        self._topic = ""
        self._lines = b""
        self._size = -1
        self._sized = b""

    def encode(self, delivery: Delivery, request: Request) -> bytes:
        """The answer to one consume."""
        record = delivery.record
        headers, tag, topic, body = record.headers, record.tag, delivery.topic, record.payload
        if headers is not self._headers or tag != self._tag or topic != self._topic:
            self._turn_to(headers, tag, topic)
        if len(body) != self._size:
            self._size = len(body)
            self._sized = b"content-length: %d\r\n\r\n" % len(body)
        origin = record.key
        if not is_plain(origin, 0, len(origin)):
            origin = message_id(record).encode("utf-8", "replace")
        parts = [
            self._lines,
            str(record.offset).encode(),
            b"\r\nid: ",
            request.id.encode(),
            b"\r\norigin_id: " if origin else b"",
            origin,
            b"\r\n",
        ]
        attempt = delivery.attempt
        if attempt > 1:
            parts.append(b"retry: %d\r\n" % (attempt - 1))
        if request.head.ordered:
            parts.append(SANDBOX)
        parts.append(self._sized)
        parts.append(body)
        return b"".join(parts)

    def _turn_to(self, headers: Mapping[str, str], tag: str, topic: str) -> None:
        """Take the lines of other messages, which are mostly those of a producer that was seen before."""
        self._headers, self._tag, self._topic = headers, tag, topic
        known = self._known.get(id(headers))
        if known is not None and known[1] == tag and known[2] == topic:
            self._lines = known[3]
            return
        self._lines = OK + _lines(headers, tag, topic) + b"offset: "
        if len(self._known) >= PRODUCERS:
            self._known.clear()
        self._known[id(headers)] = (headers, tag, topic, self._lines)


def _lines(headers: Mapping[str, str], tag: str, topic: str) -> bytes:
    shown = {"topic": topic, "version": VERSION, "connection": "Keep-Alive", **headers}
    if tag:
        shown.setdefault("tag", tag)
    for name in ("id", "content-length", "transfer-encoding"):
        shown.pop(name, None)  # of records that another wire has made
    return header_text(shown).encode("utf-8", "replace")
