"""Producing from a client: what is produced within one turn of the event loop goes out as one frame.

Invariant: a produce ends with the offset its record has on disk, or with an error; records of one topic keep the order
in which they were produced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from polybus.errors import (
    ConnectionLost,
    LimitExceeded,
    LocalProtocolError,
    PolybusError,
    RemoteProtocolError,
)
from polybus.model.record import NewRecord
from polybus.protocols.native import wire
from polybus.protocols.native.metas import CREATE, parse_offset
from polybus.protocols.native.peer import Peer

# A frame is sent when it has grown to one of these, even within a turn: the node works on the first while the second is
# still being filled.
BATCH_BYTES: Final = 256 * 1024
BATCH_RECORDS: Final = 4096  # as many as a chunk holds


class Batch:
    """Records of one topic that share a frame, and who waits for them."""

    __slots__ = ("_producer", "create", "futures", "records", "size", "topic")

    def __init__(self, producer: Producer, topic: str, create: bool) -> None:
        self._producer = producer
        self.topic = topic
        self.create = create
        self.records: list[NewRecord] = []
        self.futures: list[asyncio.Future[int]] = []
        self.size = 0

    def add(self, record: NewRecord, future: asyncio.Future[int]) -> None:
        self.records.append(record)
        self.futures.append(future)
        self.size += len(record.payload)

    def part(self, frame: bytes) -> None:
        raise RemoteProtocolError("a Produce was answered in parts")

    def end(self, frame: bytes) -> None:
        parsed = wire.parse(frame)
        if parsed.kind == wire.PRODUCED:
            offset = parse_offset(parsed.payload)
            for future in self.futures:
                if not future.done():
                    future.set_result(offset)
                offset += 1
            return
        error = wire.parse_error(parsed)
        if isinstance(error, LimitExceeded) and len(self.futures) > 1:
            # Nothing was taken, and the fault may be that of one record only, each waited for by itself.
            self._producer.send_alone(self)
        else:
            self.fail(error)

    def fail(self, error: PolybusError) -> None:
        for future in self.futures:
            if not future.done():
                future.set_exception(error)


class Producer:
    """What a client is about to produce."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._peer: Peer | None = None
        self._open: dict[tuple[str, bool], Batch] = {}

    def add(self, peer: Peer, topic: str, record: NewRecord, create: bool) -> asyncio.Future[int]:
        """Produce one record with the others of this turn."""
        if peer is not self._peer:
            self._flush()
            self._peer = peer
        future: asyncio.Future[int] = self._loop.create_future()
        if record.id:
            # With ids some may be there already: then the offsets of a batch do not follow one another.
            self._flush()
            batch = Batch(self, topic, create)
            batch.add(record, future)
            self._send(batch)
            return future
        batches = self._open
        found = batches.get((topic, create))
        if found is None:
            if not batches:
                self._loop.call_soon(self._flush)
            found = batches[topic, create] = Batch(self, topic, create)
        found.add(record, future)
        if found.size >= BATCH_BYTES or len(found.records) >= BATCH_RECORDS:
            del batches[topic, create]
            self._send(found)
        return future

    def add_many(
        self, peer: Peer, topic: str, records: Sequence[NewRecord], create: bool
    ) -> asyncio.Future[int]:
        """Produce records as one batch; the offset of the first."""
        self._flush()
        self._peer = peer
        batch = Batch(self, topic, create)
        future: asyncio.Future[int] = self._loop.create_future()
        batch.futures.append(future)
        batch.records.extend(records)
        self._send(batch)
        return future

    def send_alone(self, batch: Batch) -> None:
        """Send the records of a batch one by one, for those who wait for them one by one."""
        for record, future in zip(batch.records, batch.futures, strict=True):
            alone = Batch(self, batch.topic, batch.create)
            alone.add(record, future)
            self._send(alone)

    def _flush(self) -> None:
        batches, self._open = self._open, {}
        for batch in batches.values():
            self._send(batch)

    def _send(self, batch: Batch) -> None:
        peer = self._peer
        if peer is None or peer.lost:
            batch.fail(ConnectionLost("the connection ended before the record was sent"))
            return
        try:
            payload = wire.encode_list(batch.records)
        except (TypeError, ValueError, OverflowError) as exc:
            if len(batch.futures) > 1:
                self.send_alone(batch)  # as above: the fault is that of one record
            else:
                batch.fail(LocalProtocolError(f"a record cannot be sent: {exc}"))
            return
        ident = peer.take_id()
        try:
            peer.check_size(len(payload) + len(batch.topic))
            peer.wait(ident, batch)
        except PolybusError as exc:
            batch.fail(exc)
            return
        flags = CREATE if batch.create else 0
        peer.send(wire.encode(wire.PRODUCE, ident, batch.topic, payload, flags=flags))
