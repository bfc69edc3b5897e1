"""Glue between an event-loop transport and a session, and the registry of all open connections.

Invariant: whatever a peer sends, the worst that follows is the end of its own connection, counted by reason and
logged once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import struct
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from polybus.errors import RemoteProtocolError
from polybus.model.clock import Clock
from polybus.model.ids import counter
from polybus.transports.linger import Linger
from polybus.transports.outbox import Bounds, Budget, KiB, Outbox, Pause, Transport
from polybus.transports.session import Session

log = logging.getLogger("polybus.connection")

_next_id = counter()

LONGEST_TURN: Final = 0.01  # seconds for one peer before the loop looks at the others
LEAST_PIECE: Final = 16 * KiB  # a machine that is busy elsewhere must not cost us our batches
# Bytes that are handled without looking at the clock: a read that brings less than it could is the last of its turn,
# and so little cannot take long
SHORT: Final = 4 * KiB
CLOSE_GRACE: Final = 1.0  # seconds for peers to take what is queued once all are told to close
CLOSE_POLL: Final = 0.02  # an event would be paid for by every connection that ends

_EXPECTED_ENDS = (ConnectionError, TimeoutError, BrokenPipeError)


@dataclass(slots=True)
class Connections:
    """All open connections of a node, with what ended the others."""

    clock: Clock
    bounds: Bounds = field(default_factory=Bounds)
    budget: Budget = field(default_factory=Budget)
    first_piece: int = sys.maxsize
    """How much input of a new peer is handled at once, until it has shown how long its kind takes."""
    open: set[Connection] = field(default_factory=set)
    accepted: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    """How many connections ended for which reason (a short, bounded set of texts)."""

    linger: Linger | None = None
    """Told of input, where the loop may look out for more."""

    on_refused: Callable[[Connection, str], None] | None = None
    """Told of peers that did not keep to their wire."""

    round: list[Connection] = field(default_factory=list)
    """Those that get their tick in this round, whose parts come one after the other."""

    def tick(self, now: float, part: int = 0, parts: int = 1) -> None:
        """Give every session its tick; a fault of ours in one of them ends that connection only.

        One part of them at a time: ten thousand at once would hold the loop for 40 ms. Who comes meanwhile is among
        those of the next round.
        """
        if part == 0:
            self.round = list(self.open)
        size = -(-len(self.round) // parts)
        for connection in self.round[part * size : (part + 1) * size]:
            if connection not in self.open:
                continue
            try:
                connection.tick(now)
            except RemoteProtocolError as exc:
                connection.refuse(exc)  # in input that had to wait
            except Exception:
                connection.fault()

    async def close_all(self, reason: str) -> None:
        """Close every connection and wait for their ends; who does not take its last words in time is cut."""
        for connection in tuple(self.open):
            connection.outbox.close(reason)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_GRACE):
                while self.open:  # noqa: ASYNC110
                    await asyncio.sleep(CLOSE_POLL)
        for connection in tuple(self.open):
            connection.outbox.abort(reason)
        await asyncio.sleep(0)


SessionFactory = Callable[["Connection"], Session]


class Connection(asyncio.Protocol):
    """One peer: owns the outbox, feeds the session, ends it exactly once."""

    __slots__ = (
        "_input",
        "_piece",
        "address",
        "id",
        "opened_at",
        "outbox",
        "peer",
        "registry",
        "session",
        "transport_kind",
    )

    def __init__(
        self, registry: Connections, factory: SessionFactory, address: str, kind: str
    ) -> None:
        self.id = _next_id()
        self.registry = registry
        self.address = address
        """The listener, or the remote address for a connection that we opened."""
        self.transport_kind = kind
        self.peer = ""
        self.opened_at = 0.0
        self.outbox: Outbox = None  # type: ignore[assignment]  # set when the transport comes up
        self._piece = registry.first_piece
        self._input = b""
        """What came and waits for this peer's next turn, while `Pause.TURN` stands."""
        self.session: Session = factory(self)

    # -- asyncio's side -------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        registry = self.registry
        transport.set_write_buffer_limits(high=registry.bounds.high_water)
        self.peer = _peer_text(transport)
        self.opened_at = registry.clock.monotonic()
        self.outbox = Outbox(transport, registry.bounds, registry.budget, self.opened_at)
        registry.accepted += 1
        registry.open.add(self)
        self.session.connection_made(self.outbox)

    def data_received(self, data: bytes) -> None:
        if self.outbox.close_reason is not None:
            return  # TLS passes on what was under way when we closed
        if self._input:
            self._input += data  # TLS again, paused as it is
            return
        linger = self.registry.linger
        if linger is not None and not linger.came:
            linger.begin()
        if len(data) <= SHORT:
            # As `_feed`, without the call: most input is short.
            try:
                self.session.data_received(data)
            except RemoteProtocolError as exc:
                self.refuse(exc)
            except Exception:
                self.fault()
            return
        if len(data) > self._piece:
            self._input = data
            slow = self._take_pieces()
        else:
            slow = self._take(data) > LONGEST_TURN
        if slow:
            self.outbox.pause_reading(Pause.TURN)
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        if self._take_pieces():
            asyncio.get_running_loop().call_soon(self._next_turn)
        else:
            self.outbox.resume_reading(Pause.TURN)

    def _take_pieces(self) -> bool:
        """Handle what waits, piece by piece; whether it is the others' turn now."""
        spent = 0.0
        while self._input and not self.outbox.closing:
            if spent > LONGEST_TURN:
                return True
            size = self._piece
            data, self._input = self._input[:size], self._input[size:]
            spent += self._take(data)
        self._input = b""
        return spent > LONGEST_TURN

    def _take(self, data: bytes) -> float:
        """Let the session handle some input; how many seconds it took.

        A megabyte of small frames that are parsed one by one holds the loop for seconds, and libuv reads as long as
        there is something: so a piece gets smaller when it takes long and larger when it does not.
        """
        clock = self.registry.clock
        began = clock.monotonic()
        self._feed(data)
        took = clock.monotonic() - began
        if took > LONGEST_TURN:
            self._piece = max(LEAST_PIECE, int(len(data) * LONGEST_TURN / took))
        elif took < LONGEST_TURN / 4 and len(data) == self._piece:
            self._piece *= 2
        return took

    def _feed(self, data: bytes) -> None:
        try:
            self.session.data_received(data)
        except RemoteProtocolError as exc:
            self.refuse(exc)
        except Exception:
            self.fault()

    def eof_received(self) -> bool:
        while (
            self._take_pieces()
        ):  # TLS tells the end though it is paused: what came before it counts
            pass
        try:
            self.session.eof_received()
        except RemoteProtocolError as exc:
            self.refuse(exc)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        registry = self.registry
        registry.open.discard(self)
        self.outbox.lost()
        reason = self.outbox.close_reason or ("lost" if exc is not None else "closed by peer")
        registry.ended[reason] += 1
        if exc is not None and not isinstance(exc, _EXPECTED_ENDS):
            log.info("connection %d from %s ended: %s", self.id, self.peer, exc, extra=self.subject)
        self.session.connection_lost(exc)

    def pause_writing(self) -> None:
        self.outbox.choked(self.registry.clock.monotonic())

    def resume_writing(self) -> None:
        self.outbox.drained()

    # -- the node's side ------------------------------------------------------------------------------------------

    def refuse(self, exc: RemoteProtocolError) -> None:
        """Close a peer that does not keep to its wire: what was queued before still goes out."""
        log.warning(
            "connection %d from %s closed: %s", self.id, self.peer, exc.text, extra=self.subject
        )
        self.outbox.close("protocol error")
        if self.registry.on_refused is not None:
            self.registry.on_refused(self, exc.text)

    def fault(self) -> None:
        """Cut a connection whose session stumbled over a mistake of ours; called while that is handled."""
        log.exception("connection %d from %s cut", self.id, self.peer, extra=self.subject)
        self.outbox.abort("internal error")

    @property
    def subject(self) -> dict[str, Any]:
        """What a log line about this connection carries as fields."""
        return {"connection": self.id, "peer": self.peer}

    def tick(self, now: float) -> None:
        self.outbox.tick(now)
        self.session.tick(now)

    @property
    def peer_uid(self) -> int | None:
        """The user id at the other end of a Unix socket."""
        sock = self.outbox.get_extra_info("socket")
        if sock is None or sock.family != socket.AF_UNIX:
            return None
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        uid: int = struct.unpack("3i", credentials)[1]
        return uid

    @property
    def peer_certificate(self) -> dict[str, Any] | None:
        """The verified client certificate, when there is one."""
        found: dict[str, Any] | None = self.outbox.get_extra_info("peercert")
        return found or None


def is_loopback(peer: str) -> bool:
    """Whether a peer (`host:port`) is on this machine, by its address."""
    host = peer.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    # A client of a socket that takes both families: ::ffff:127.0.0.1
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _peer_text(transport: Transport) -> str:
    name = transport.get_extra_info("peername")
    if isinstance(name, tuple):
        host = f"[{name[0]}]" if ":" in name[0] else name[0]
        return f"{host}:{name[1]}"
    return str(name or "unix")
