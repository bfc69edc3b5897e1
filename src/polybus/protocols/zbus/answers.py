"""The answers of the server, spelled as the original ones (protocol page §5, §6).

Invariant: texts have no content-type, since a client in use fails on typed ones.
"""

from __future__ import annotations

from polybus.errors import (
    InvalidName,
    LimitExceeded,
    NoSuchGroup,
    NoSuchTopic,
    NotAuthorized,
    PolybusError,
)
from polybus.protocols.zbus.wire import encode_reply, reply_headers


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
