"""Connecting to a node: the client's side of TCP, Unix and TLS, with the same Session contract.

Invariant: a connection that could not be opened raises one kind of error and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import socket
import ssl

from polybus.errors import PeerUnavailable
from polybus.transports.connection import Connection, Connections, SessionFactory
from polybus.transports.tls import client_context
from polybus.transports.url import Address


async def dial(
    address: Address,
    connections: Connections,
    factory: SessionFactory,
    tls: ssl.SSLContext | None = None,
    timeout: float = 3.0,
) -> Connection:
    """Open a connection; `tls` overrides the context made from the address's options.

    Raises:
        PeerUnavailable: refused, unreachable, or no handshake within `timeout` seconds.
    """

    def connection() -> Connection:
        return Connection(connections, factory, str(address), address.scheme)

    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout):
            if address.scheme == "unix":
                _, opened = await loop.create_unix_connection(connection, address.path)
                return opened
            context = None
            if address.scheme == "tls":
                context = tls or client_context(**address.options)
            transport, opened = await loop.create_connection(
                connection, address.host, address.port, ssl=context
            )
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return opened
    except (OSError, ssl.SSLError, TimeoutError) as exc:
        raise PeerUnavailable(f"cannot connect to {address}: {str(exc) or 'timed out'}") from exc
