"""Consuming from a client: one membership of a group, over reconnects.

Invariant: at most `window` records are held and not finished; what is finished is told to the node in one frame per
turn of the event loop, together with the credit for as many new ones.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from polybus.core.group_options import BEGINNING, Start
from polybus.errors import ConnectionLost, NotReachable, PolybusError, Refused
from polybus.protocols.native import wire
from polybus.protocols.native.metas import Consume, Credit, Nack, size_of
from polybus.protocols.native.peer import Peer
from polybus.protocols.native.wire import Delivered, Frame

WINDOW_BYTES: Final = 32 * 1024 * 1024  # of records that are held here
REQUEST_TIMEOUT: Final = 30.0


class Consumer:
    """A member of a group."""

    def __init__(
        self,
        topic: str,
        group: str,
        window: int,
        *,
        start: Start = BEGINNING,
        options: dict[str, Any] | None = None,
        create: bool = False,
        forget: Callable[[Consumer], None],
    ) -> None:
        self.topic = topic
        self.group = group
        self._window = window
        self._meta = wire.encode_meta(Consume(group, start, options, create))
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._peer: Peer | None = None
        self.ident = 0
        self._came: deque[Delivered] = deque()
        self._held: dict[int, int] = {}  # offset and size, until it is finished
        self._acks: list[int] = []
        self._records_due = 0
        self._bytes_due = 0
        self._scheduled = False
        self._wake: asyncio.Future[None] | None = None
        self._error: PolybusError | None = None

    async def join(self, peer: Peer) -> None:
        """Become a member on this connection; what was held on the one before will come again.

        Raises:
            NoSuchTopic, Conflict, InvalidName, NotAuthorized, ConnectionLost.
        """
        self._came.clear()
        self._held.clear()
        self._acks.clear()
        self._records_due = self._bytes_due = 0
        answer = await peer.request(
            wire.CONSUME, self.topic, meta=self._meta, timeout=REQUEST_TIMEOUT
        )
        self._peer = peer
        self.ident = answer.id
        self._grant(self._window, WINDOW_BYTES)

    async def next(self) -> Delivered:
        """The next record, waiting for one.

        Raises:
            NoSuchTopic, NoSuchGroup: it was removed meanwhile; ConnectionLost: the client was closed.
        """
        while not self._came:
            if self._error is not None:
                raise self._error
            self._wake = self._loop.create_future()
            await self._wake
        return self._came.popleft()

    def ack(self, offset: int) -> None:
        """A record is done; one that is not held (any more) is left alone."""
        if self._finish(offset):
            self._acks.append(offset)

    def nack(self, offset: int, delay: float = 0.0, reason: str = "") -> None:
        """Give a record back, to be delivered again after `delay` seconds."""
        if self._finish(offset):
            meta = wire.encode_meta(Nack(round(delay * 1000), reason))
            self._send(wire.NACK, wire.encode_list([offset]), meta)

    async def leave(self) -> None:
        """End the membership; what is held and not finished goes to others."""
        self._forget(self)
        self._flush()
        peer, self._peer = self._peer, None
        if peer is not None and not peer.lost:
            peer.send(wire.encode(wire.LEAVE, self.ident))
        self.fail(ConnectionLost("the consumer has left"))

    # -- what the connection tells -------------------------------------------------------------------------------------

    def take(self, delivered: list[Delivered]) -> None:
        """Records came."""
        for each in delivered:
            self._held[each.record.offset] = size_of(each.record)
        self._came.extend(delivered)
        self._wake_up()

    def fail(self, error: PolybusError) -> None:
        """Nothing more will come."""
        if self._error is None:
            self._error = error
        self._wake_up()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _finish(self, offset: int) -> bool:
        size = self._held.pop(offset, None)
        if size is None:
            return False
        self._records_due += 1
        self._bytes_due += size
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)
        return True

    def _flush(self) -> None:
        self._scheduled = False
        acks, self._acks = self._acks, []
        if acks:
            self._send(wire.ACK, wire.encode_list(acks))
        # Half a window at a time: fewer frames, and the node never runs out of credit meanwhile.
        if self._records_due * 2 >= self._window or self._bytes_due * 2 >= WINDOW_BYTES:
            self._grant(self._records_due, self._bytes_due)
            self._records_due = self._bytes_due = 0

    def _grant(self, records: int, size: int) -> None:
        self._send(wire.CREDIT, meta=wire.encode_meta(Credit(records, size)))

    def _send(self, kind: int, payload: bytes = b"", meta: bytes = b"") -> None:
        if self._peer is not None and not self._peer.lost:
            self._peer.send(wire.encode(kind, self.ident, "", payload, meta=meta))

    def _wake_up(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class Consumers:
    """All memberships of one client."""

    def __init__(self) -> None:
        self._all: set[Consumer] = set()
        self._by_id: dict[int, Consumer] = {}  # of the present connection

    async def add(self, peer: Peer, consumer: Consumer) -> None:
        """Join a group. Raises as `Consumer.join`."""
        await self._join(peer, consumer)
        self._all.add(consumer)

    async def rejoin(self, peer: Peer) -> None:
        """Join all groups again on a new connection; one that cannot be joined any more ends its consumer."""
        self._by_id.clear()
        for consumer in tuple(self._all):
            try:
                await self._join(peer, consumer)
            except (NotReachable, Refused) as exc:
                self._all.discard(consumer)
                consumer.fail(exc)

    def forget(self, consumer: Consumer) -> None:
        """A consumer leaves."""
        self._all.discard(consumer)
        self._by_id.pop(consumer.ident, None)

    def take(self, frame: Frame) -> None:
        """A Delivery came."""
        consumer = self._by_id.get(frame.id)
        if consumer is not None:
            consumer.take(wire.parse_delivered(frame.payload))

    def end(self, frame: Frame) -> None:
        """An Error came that answers no request: the group or its topic is gone."""
        consumer = self._by_id.get(frame.id)
        if consumer is not None:
            self.forget(consumer)
            consumer.fail(wire.parse_error(frame))

    def fail(self, error: PolybusError) -> None:
        """The client is closed."""
        for consumer in tuple(self._all):
            self.forget(consumer)
            consumer.fail(error)

    async def _join(self, peer: Peer, consumer: Consumer) -> None:
        # Deliveries can only come after the credit that `join` gives last, when the id is known here.
        await consumer.join(peer)
        self._by_id[consumer.ident] = consumer
