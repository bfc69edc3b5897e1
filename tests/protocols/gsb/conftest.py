"""A router with clients, without a socket."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polybus.core.router import Router
from polybus.model.clock import ManualClock
from polybus.protocols.gsb.room import GsbOptions, GsbRoom
from polybus.protocols.gsb.session import GsbSession
from polybus.protocols.gsb.wire import CURRENT, Kind
from polybus.transports.connection import Connections
from polybus.transports.outbox import Bounds
from tests.protocols.wiretap import Peer


class Client(Peer):
    """A client of the bus that speaks in kinds and bodies."""

    framing = CURRENT

    def say(self, kind: Kind, body: bytes = b"") -> None:
        self.send(self.framing.encode(kind, body))

    def frames(self) -> list[tuple[Kind, bytes]]:
        """What came since the last look, frame by frame, without the router's Hello."""
        data, found = self.received(), []
        while data:
            length = self.framing.length(data, 0)
            found.append(self.framing.parse(data[:length]))
            data = data[length:]
        return [frame for frame in found if frame[0] != Kind.HELLO]


class Bus:
    """One router and its clients."""

    def __init__(
        self, clock: ManualClock, options: GsbOptions | None = None, bounds: Bounds | None = None
    ) -> None:
        self.clock = clock
        self.router = Router(clock)
        self.room = GsbRoom(self.router, options)
        self.connections = Connections(clock, bounds or Bounds())

    def client(self) -> Client:
        return Client(self.connections, lambda connection: GsbSession(self.room))

    def pass_time(self, seconds: float) -> None:
        """Let time pass in steps of a second, as a node ticks."""
        for _ in range(round(seconds)):
            self.connections.tick(self.clock.advance(1))


@pytest.fixture
def bus(clock: ManualClock) -> Bus:
    return Bus(clock)


@pytest.fixture
def make_bus(clock: ManualClock) -> Callable[..., Bus]:
    return lambda **given: Bus(clock, **given)
