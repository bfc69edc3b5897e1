"""Answers that go on: server-sent events for the page, the live tail of a topic, and GSB's `/events`.

Invariant: a viewer that does not read is let go rather than queued for; the number of viewers is bounded; a sample is
encoded once, however many look at it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from polybus.errors import LimitExceeded, LocalProtocolError
from polybus.http.request import Request
from polybus.http.response import status_line

MAX_STREAMS: Final = 500
MAX_BEHIND: Final = 1024 * 1024  # bytes that may wait for a viewer
HEAD: Final = (
    status_line(200) + b"content-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-store\r\nx-content-type-options: nosniff\r\nconnection: close\r\n\r\n"
)


class Stream:
    """One viewer's open answer."""

    __slots__ = ("_request",)

    def __init__(self, request: Request) -> None:
        if not request.head.ordered:
            raise LocalProtocolError("a stream needs a plain HTTP request of its own")
        self._request = request
        request.send(HEAD)

    @property
    def closed(self) -> bool:
        return self._request.connection.outbox.closing

    def send(self, event: str, data: bytes) -> bool:
        """Send an event whose data is one line; False when the viewer is gone, or too far behind to be kept."""
        return self.write(encode_event(event, data))

    def write(self, raw: bytes) -> bool:
        """Send events that are encoded already."""
        connection = self._request.connection
        if connection.outbox.closing:
            return False
        if connection.outbox.pending_bytes > MAX_BEHIND:
            connection.outbox.abort("it does not read its events")
            return False
        connection.keep_open()
        connection.send(raw)
        return True


def encode_event(event: str, data: bytes) -> bytes:
    """One event."""
    return b"event: %b\ndata: %b\n\n" % (event.encode(), data)


class Viewers:
    """All who look at the same stream."""

    def __init__(self) -> None:
        self._streams: set[Stream] = set()

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, request: Request) -> Stream:
        """Begin a stream.

        Raises:
            LimitExceeded: too many are open.
        """
        if len(self._streams) >= MAX_STREAMS:
            self._streams = {stream for stream in self._streams if not stream.closed}
        if len(self._streams) >= MAX_STREAMS:
            raise LimitExceeded(
                "too many open streams", limit=MAX_STREAMS, actual=len(self._streams) + 1
            )
        stream = Stream(request)
        self._streams.add(stream)
        return stream

    def tell(self, event: str, data: object) -> None:
        """Send the same to all."""
        if not self._streams:
            return
        raw = encode_event(event, msgspec.json.encode(data))
        for stream in tuple(self._streams):
            if not stream.write(raw):
                self._streams.discard(stream)

    def drop(self, stream: Stream) -> None:
        """A stream has ended."""
        self._streams.discard(stream)
