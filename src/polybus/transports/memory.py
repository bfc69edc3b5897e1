"""Connections inside one process: two sessions joined by queues instead of a socket.

Invariant: bytes arrive in order, on a later turn of the event loop, never within the call that wrote them; a side
that pauses reading makes the other side congested, as a socket would.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from polybus.transports.connection import Connection, Connections, SessionFactory


class MemoryTransport:
    """One end of the pair; what it writes is read by the protocol at the other end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._name = name
        self._peer: MemoryTransport = self
        self._protocol: Connection | None = None
        self._inbound: deque[bytes] = deque()
        self._inbound_bytes = 0
        self._scheduled = False
        self._reading = True
        self._closing = False
        self._eof = False
        self._lost = False
        self._choked = False
        self._high_water = 0

    def join(self, peer: MemoryTransport, protocol: Connection) -> None:
        self._peer = peer
        self._protocol = protocol

    # -- the outbox's side ------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self._closing or self._peer._lost:
            return
        peer = self._peer
        peer._inbound.append(data)
        peer._inbound_bytes += len(data)
        peer._schedule()
        if (
            peer._inbound_bytes > self._high_water
            and not self._choked
            and self._protocol is not None
        ):
            self._choked = True
            self._protocol.pause_writing()

    def set_write_buffer_limits(self, high: int) -> None:
        self._high_water = high

    def get_write_buffer_size(self) -> int:
        return self._peer._inbound_bytes

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._peer._eof = True
            self._peer._schedule()
            self._loop.call_soon(self._lose)

    def abort(self) -> None:
        self._peer._inbound.clear()
        self._peer._inbound_bytes = 0
        self.close()

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._schedule()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._name if name == "peername" else default

    # -- delivery -----------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._scheduled and not self._lost:
            self._scheduled = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        if not self._reading or self._lost or self._protocol is None:
            return
        if self._inbound:
            data = b"".join(self._inbound)
            self._inbound.clear()
            self._inbound_bytes = 0
            self._protocol.data_received(data)
        peer = self._peer
        if (
            peer._choked
            and self._inbound_bytes <= peer._high_water // 4
            and peer._protocol is not None
        ):
            peer._choked = False
            peer._protocol.resume_writing()
        if self._eof and not self._inbound and not self._closing:
            self._protocol.eof_received()
            self.close()

    def _lose(self) -> None:
        if not self._lost:
            self._lost = True
            self._inbound.clear()
            self._inbound_bytes = 0
            if self._protocol is not None:
                self._protocol.connection_lost(None)


def connect_memory(
    server: Connections,
    server_factory: SessionFactory,
    client: Connections,
    client_factory: SessionFactory,
) -> tuple[Connection, Connection]:
    """Join a new server-side session with a new client-side one; both are up when this returns.

    Returns:
        The client's connection and the server's.
    """
    loop = asyncio.get_running_loop()
    near, far = MemoryTransport(loop, "memory"), MemoryTransport(loop, "memory")
    client_side = Connection(client, client_factory, "memory:", "memory")
    server_side = Connection(server, server_factory, "memory:", "memory")
    near.join(far, client_side)
    far.join(near, server_side)
    server_side.connection_made(far)
    client_side.connection_made(near)
    return client_side, server_side
