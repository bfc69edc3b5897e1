"""Connecting to a node: the client's side of TCP, Unix and TLS, with the same Session contract.

Invariant: a connection that could not be opened raises one kind of error and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Final

from polybus.errors import PeerUnavailable
from polybus.transports.connection import Connection, Connections, SessionFactory
from polybus.transports.outbox import Outbox
from polybus.transports.tls import client_context
from polybus.transports.url import Address

HANG_UP_TIMEOUT: Final = 5.0

# A peer that vanished without a word is noticed within half a minute, or two minutes if something was under way to it;
# less would cut a node that takes nothing for a while because its disk is slow.
_TCP_OPTIONS: Final = {
    "TCP_NODELAY": 1,
    "TCP_KEEPIDLE": 15,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 120_000,
}


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
            _tune(transport.get_extra_info("socket"))
            return opened
    except (OSError, ssl.SSLError, TimeoutError, ValueError) as exc:
        # A ValueError is a name that no host and no file can have.
        raise PeerUnavailable(f"cannot connect to {address}: {_reason(exc, address)}") from exc


def _reason(exc: Exception, address: Address) -> str:
    if isinstance(exc, ConnectionRefusedError):
        return "connection refused"
    why = getattr(exc, "strerror", None) or str(exc)
    if why:
        return why
    if isinstance(exc, TimeoutError):
        return "timed out"
    # What ends within the handshake has no text of its own; usually it is a port without TLS.
    doubt = "; does it speak TLS?" if address.scheme == "tls" else ""
    return f"the peer closed the connection{doubt}"


async def hang_up(outbox: Outbox, ended: asyncio.Event) -> None:
    """Close what was dialled and wait for its end; a peer that does not take what is queued holds nobody up."""
    outbox.close("closed by us")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(HANG_UP_TIMEOUT):
            await ended.wait()
    outbox.abort("closed by us")
    await ended.wait()


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _TCP_OPTIONS.items():
        if hasattr(socket, name):  # not every system has all of them
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
