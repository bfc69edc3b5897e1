"""The answers of the server, spelled as the original ones (protocol page §5, §6).

Invariant: texts have no content-type, since a client in use fails on typed ones.
"""

from __future__ import annotations

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
    return record.key.decode("utf-8", "replace") or record.id


def delivery(delivery: Delivery, request: Request) -> bytes:
    """A stored message as the answer to a consume (protocol page §5)."""
    record = delivery.record
    headers = dict(record.headers)
    origin = message_id(record)
    headers.pop("id", None)
    if "topic" not in headers:
        headers["topic"] = delivery.topic
    if record.tag and "tag" not in headers:
        headers["tag"] = record.tag
    if "version" not in headers:
        headers["version"] = VERSION
    if "connection" not in headers:
        headers["connection"] = "Keep-Alive"
    if origin:
        headers["origin_id"] = origin
    if delivery.attempt > 1:
        headers["retry"] = str(delivery.attempt - 1)
    headers["offset"] = str(record.offset)
    headers["id"] = request.id
    body = record.payload
    lines = f"{header_text(headers)}content-length: {len(body)}\r\n"
    if request.head.ordered:
        lines += _SANDBOX
    return _OK + lines.encode("utf-8", "replace") + b"\r\n" + body
