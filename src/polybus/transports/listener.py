"""Listening sockets: bind, accept, tell TLS from plain text before a transport exists.

Invariant: nothing that one connection does, a failed handshake or an accept error included, ends a listener.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
import stat
from collections.abc import Sequence
from typing import Any, Final

from polybus.errors import ConfigError
from polybus.transports.connection import Connection, Connections, SessionFactory
from polybus.transports.sniff import Patience
from polybus.transports.url import Address

log = logging.getLogger("polybus.listener")

ACCEPTS_PER_TURN: Final = 64  # so that a storm of connections does not starve those that are served
BACKLOG: Final = 1024
ACCEPT_PAUSE: Final = 1.0  # seconds; after running out of file descriptors
HANDSHAKE_TIMEOUT: Final = 10.0
PORT_TRIES: Final = 16  # for one that is free on all addresses of a host
NOT_HERE: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
# First byte of every TLS connection; no other wire of ours begins with it
TLS_HANDSHAKE: Final = 0x16

Place = tuple[int, tuple[Any, ...]]
"""The family of an address, and the address as that family has it."""


class Listener:
    """One listening address."""

    def __init__(
        self,
        address: Address,
        connections: Connections,
        factory: SessionFactory,
        tls: ssl.SSLContext | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.address = address
        self._connections = connections
        self._factory = factory
        self._tls = tls
        self._patience = patience or Patience()
        self._sockets: list[socket.socket] = []
        """One, or as many as a host name has addresses."""
        self._opening: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Bind and accept, on every address of a host name; `address` then has the port that was taken.

        Raises:
            ConfigError: the address is taken or cannot be bound.
        """
        self._loop = asyncio.get_running_loop()
        if self.address.scheme == "unix":
            self._sockets = [bind_unix(self.address)]
        else:
            self._sockets = bind_tcp(self.address)
            self.address = self.address.with_port(self._sockets[0].getsockname()[1])
        for sock in self._sockets:
            sock.setblocking(False)
            self._loop.add_reader(sock.fileno(), self._accept, sock)

    async def stop(self) -> None:
        """Accept nobody new and give the address free; connections that are open stay."""
        if not self._sockets or self._loop is None:
            return
        for sock in self._sockets:
            self._loop.remove_reader(sock.fileno())
            sock.close()
        self._sockets = []
        if self.address.scheme == "unix":
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.address.path)
        for task in tuple(self._opening):
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _accept(self, sock: socket.socket) -> None:
        assert self._loop is not None
        for _ in range(ACCEPTS_PER_TURN):
            try:
                peer, _address = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                log.error("cannot accept on %s: %s", self.address, exc)
                self._loop.remove_reader(sock.fileno())
                self._loop.call_later(ACCEPT_PAUSE, self._resume, sock)
                return
            peer.setblocking(False)
            task = self._loop.create_task(self._open(peer))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    def _resume(self, sock: socket.socket) -> None:
        if sock in self._sockets and self._loop is not None:
            self._loop.add_reader(sock.fileno(), self._accept, sock)

    async def _open(self, peer: socket.socket) -> None:
        assert self._loop is not None
        tls = self._tls
        try:
            if peer.family != socket.AF_UNIX:
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None and self.address.scheme == "tcp":
                first = await asyncio.wait_for(self._peek(peer), self._patience.first_byte)
                tls = tls if first == TLS_HANDSHAKE else None
            await self._loop.connect_accepted_socket(
                self._connection,
                peer,
                ssl=tls,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT if tls else None,
            )
        except (OSError, ssl.SSLError, asyncio.CancelledError, TimeoutError) as exc:
            peer.close()
            self._connections.ended["handshake failed"] += 1
            if isinstance(exc, asyncio.CancelledError):
                raise
            reason = str(exc) or type(exc).__name__
            log.info("connection on %s failed before it began: %s", self.address, reason)

    def _connection(self) -> Connection:
        return Connection(self._connections, self._factory, str(self.address), self.address.scheme)

    async def _peek(self, peer: socket.socket) -> int:
        """The first byte of a connection, left in the socket for whoever reads it next."""
        assert self._loop is not None
        readable = asyncio.Event()
        self._loop.add_reader(peer.fileno(), readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(peer.fileno())
        head = peer.recv(1, socket.MSG_PEEK)
        if not head:
            raise ConnectionResetError("closed before the first byte")
        return head[0]


def bind_tcp(address: Address) -> list[socket.socket]:
    """Bound, listening TCP sockets with one port: one for each address that the host has here.

    Raises:
        ConfigError: taken, not ours, or no such host; then none is left open.
    """
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, ValueError) as exc:  # a name that no host can have is a UnicodeError
        reason = getattr(exc, "strerror", None) or exc
        raise ConfigError(f"cannot listen on {address}: {reason}") from exc
    places = list(dict.fromkeys((family, where) for family, _, _, _, where in found))
    tries = 1 if address.port else PORT_TRIES
    while True:
        tries -= 1
        try:
            return _bind_all(address, places)
        except ConfigError as exc:
            taken = isinstance(exc.__cause__, OSError) and exc.__cause__.errno == errno.EADDRINUSE
            if not (taken and tries):
                raise


def _bind_all(address: Address, places: Sequence[Place]) -> list[socket.socket]:
    bound: list[socket.socket] = []
    port = address.port
    for family, where in places:
        try:
            bound.append(_bind(family, (where[0], port, *where[2:]), alone=len(places) == 1))
        except OSError as exc:
            # The name may stand for an address of a family that this machine has switched off.
            if exc.errno in NOT_HERE and (bound or (family, where) != places[-1]):
                continue
            for sock in bound:
                sock.close()
            which = f"[{where[0]}]: " if len(places) > 1 else ""
            who = "; does a node run there already?" if exc.errno == errno.EADDRINUSE else ""
            raise ConfigError(f"cannot listen on {address}: {which}{exc.strerror}{who}") from exc
        port = bound[0].getsockname()[1]
    return bound


def _bind(family: int, where: tuple[Any, ...], *, alone: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and not alone:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(where)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def bind_unix(address: Address) -> socket.socket:
    """A bound, listening Unix socket; a stale socket file is replaced, any other file is left alone.

    Raises:
        ConfigError: something else lives at the path.
    """
    path = address.path
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.stat(path).st_mode):
                raise FileExistsError(errno.EEXIST, "a file that is no socket lies there")
            _unlink_stale(path)
        sock.bind(path)
        sock.listen(BACKLOG)
    except (OSError, ValueError) as exc:  # a path that no file can have is a ValueError
        sock.close()
        reason = getattr(exc, "strerror", None) or exc
        raise ConfigError(f"cannot listen on {address}: {reason}") from exc
    return sock


def _unlink_stale(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        else:
            raise OSError(errno.EADDRINUSE, "Address already in use")
