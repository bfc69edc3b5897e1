"""The Session contract: one protocol on one connection, with no socket and no clock inside.

Invariant every session keeps: any split of the input gives the same result, and input is bounded before it is
buffered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from polybus.transports.outbox import Outbox


class Session(Protocol):
    """What a connection calls. All calls come from the event loop, never nested, in this order:

    `connection_made` once; then any number of `data_received` and `tick`; `eof_received` at most once;
    `connection_lost` once, after which nothing else comes. A `RemoteProtocolError` raised by `data_received` or
    `eof_received` closes the connection, and is counted and logged once with its text.
    """

    def connection_made(self, outbox: Outbox) -> None:
        """The connection is up; everything the session sends goes through `outbox`."""

    def data_received(self, data: bytes) -> None:
        """Some input came, split anywhere; the bytes may be kept."""

    def eof_received(self) -> None:
        """The peer will send no more; the connection closes after this returns, once the outbox is flushed."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone, for whatever reason."""

    def tick(self, now: float) -> None:
        """About once a second, with the node's monotonic time: idle rules, deadlines, pings."""
