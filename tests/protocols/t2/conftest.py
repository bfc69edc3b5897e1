"""A T2 bus with clients, without a socket."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polybus.core.endpoint import ANONYMOUS, Identity
from polybus.core.router import Router
from polybus.model.clock import ManualClock
from polybus.protocols.t2.room import T2Options, T2Room
from polybus.protocols.t2.session import T2Session
from polybus.protocols.t2.wire import (
    SERVER_KINDS,
    Message,
    encode_data,
    encode_frame,
    encode_uint,
    parse_message,
    payload_content,
    response_content,
    topic_content,
    unit_content,
)
from polybus.transports.connection import Connections
from polybus.transports.outbox import Bounds
from tests.protocols.wiretap import Peer


class Client(Peer):
    """A client of the bus that speaks in messages and numbers them 1, 2, 3 …"""

    next_id = 1

    def say(self, content: bytes) -> int:
        number = self.next_id
        self.next_id += 1
        self.send(encode_frame(number, content))
        return number

    def unit(self, kind: str) -> int:
        return self.say(unit_content(kind))

    def topic(self, kind: str, topic: str) -> int:
        return self.say(topic_content(kind, topic))

    def payload(self, kind: str, topic: str, payload: bytes = b"") -> int:
        return self.say(payload_content(kind, topic, encode_data(payload), False))

    def respond(self, request_id: int, payload: bytes = b"", status: str = "Ok") -> int:
        return self.say(
            response_content(encode_uint(request_id), status, encode_data(payload), False)
        )

    def messages(self) -> list[Message]:
        """What came since the last look."""
        data, found = self.received(), []
        while data:
            end = 4 + int.from_bytes(data[:4], "big")
            found.append(parse_message(data[4:end], SERVER_KINDS))
            data = data[end:]
        return found

    def kinds(self) -> list[str]:
        return [message.kind for message in self.messages()]

    def ack(self) -> Message:
        """The one message that came, which is an Ack."""
        (message,) = self.messages()
        assert message.kind == "Ack"
        return message


class Bus:
    """One bus and its clients."""

    def __init__(
        self,
        clock: ManualClock,
        options: T2Options | None = None,
        bounds: Bounds | None = None,
        router: Router | None = None,
        on_stop: Callable[[], None] | None = None,
    ) -> None:
        self.clock = clock
        self.router = router or Router(clock)
        self.room = T2Room(self.router, options, on_stop)
        self.connections = Connections(clock, bounds or Bounds())

    def client(self, identity: Identity = ANONYMOUS, peer: str = "127.0.0.1:1") -> Client:
        return Client(self.connections, lambda _connection: T2Session(self.room, identity, peer))

    def pass_time(self, seconds: float) -> None:
        """Let time pass in steps of a second, as a node ticks."""
        for _ in range(round(seconds)):
            now = self.clock.advance(1)
            self.router.tick(now)
            self.connections.tick(now)


@pytest.fixture
def bus(clock: ManualClock) -> Bus:
    return Bus(clock)


@pytest.fixture
def make_bus(clock: ManualClock) -> Callable[..., Bus]:
    return lambda **given: Bus(clock, **given)
