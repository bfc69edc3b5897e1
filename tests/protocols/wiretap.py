"""A connection whose network is two lists: what the test feeds in, and what the session wrote.

It uses the real Connection, Outbox and Session; only the event loop's transport is replaced, as that is where
the machine begins.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from polybus.transports.connection import Connection, Connections, SessionFactory


class WireTap:
    """The transport: keeps what was written; `stuck` stops it from being taken, as a peer that does not read would."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.waiting = bytearray()
        self.writes = 0
        self.stuck = False
        self.closed = False
        self.lost = False
        self.reading = True
        self.high = 1 << 62
        self.protocol: Connection

    def write(self, data: bytes) -> None:
        if self.lost:
            raise RuntimeError("the handler is closed")  # as the event loop's transport does
        if self.closed:
            return
        self.writes += 1
        if not self.stuck:
            self.written += data
            return
        self.waiting += data
        if len(self.waiting) > self.high and not self.protocol.outbox.congested:
            self.protocol.pause_writing()

    def unstick(self) -> None:
        """The peer reads again."""
        self.stuck = False
        self.written += self.waiting
        self.waiting.clear()
        if self.protocol.outbox.congested:
            self.protocol.resume_writing()

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True
        self.waiting.clear()

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return len(self.waiting)

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return "tap" if name == "peername" else default


class Peer:
    """One client of a session under test."""

    def __init__(self, connections: Connections, factory: SessionFactory) -> None:
        self.tap = WireTap()
        self.connection = Connection(connections, factory, "tap:", "memory")
        self.tap.protocol = self.connection
        self.connection.connection_made(self.tap)
        self.gone = False

    def send(self, data: bytes, splits: Iterable[int] = ()) -> None:
        """Feed bytes, cut at the given positions; a connection that was closed takes nothing more."""
        cuts = [0, *sorted(splits), len(data)]
        for start, end in pairwise(cuts):
            if start < end and not self.closed:
                self.connection.data_received(bytes(data[start:end]))

    def received(self) -> bytes:
        """What came since the last look."""
        data = bytes(self.tap.written)
        self.tap.written.clear()
        return data

    @property
    def closed(self) -> bool:
        """Whether our side ended the connection."""
        return self.tap.closed

    def hang_up(self) -> None:
        """The client goes."""
        if not self.gone:
            self.gone = True
            self.tap.closed = self.tap.lost = True
            self.connection.connection_lost(None)

    def settle(self) -> None:
        """Let a close that was asked for happen."""
        if self.closed:
            self.hang_up()
