"""Telling protocols apart by their first bytes."""

from __future__ import annotations

import pytest

from polybus.errors import RemoteProtocolError
from polybus.model.clock import ManualClock
from polybus.transports.connection import Connection, Connections
from polybus.transports.outbox import Outbox
from polybus.transports.sniff import MAX_HEAD, Patience, Rule, Sniffer, decide
from tests.protocols.wiretap import Peer


class Taker:
    """Keeps what it gets, with the name of the rule that chose it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.data = b""
        self.outbox: Outbox | None = None

    def connection_made(self, outbox: Outbox) -> None:
        self.outbox = outbox

    def data_received(self, data: bytes) -> None:
        self.data += data

    def eof_received(self) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def tick(self, now: float) -> None: ...


def begins(text: bytes) -> Rule:
    def matches(head: bytes) -> bool | None:
        if len(head) < len(text):
            return None if text.startswith(head) else False
        return head.startswith(text)

    return Rule(text.decode(), matches, lambda connection: Taker(text.decode()))


RULES = [begins(b"abc"), begins(b"abd"), begins(b"x")]


@pytest.fixture
def peer(clock: ManualClock) -> Peer:
    def sniffer(connection: Connection) -> Sniffer:
        return Sniffer(connection, RULES, Patience(first_byte=300, decision=5))

    return Peer(Connections(clock), sniffer)


@pytest.mark.parametrize("splits", [[], [1], [1, 2], [2], [1, 2, 3, 4]])
def test_the_chosen_session_gets_every_byte(peer, splits):
    peer.send(b"abdefg", splits)
    session = peer.connection.session
    assert isinstance(session, Taker)
    assert (session.name, session.data) == ("abd", b"abdefg")
    assert session.outbox is peer.connection.outbox


def test_a_beginning_of_no_protocol_closes_the_connection_with_its_reason(peer, caplog):
    peer.send(b"abz")
    assert peer.closed
    assert "no protocol begins with 61 62 7a" in caplog.text


def test_a_peer_that_stays_undecided_for_long_is_none_of_ours():
    undecided = [Rule("never", lambda head: None, lambda connection: Taker("never"))]
    assert decide(undecided, bytes(MAX_HEAD - 1)) is None
    with pytest.raises(RemoteProtocolError):
        decide(undecided, bytes(MAX_HEAD))


def test_the_first_byte_has_300_seconds_and_the_decision_five_more(peer, clock):
    peer.connection.tick(clock.advance(299))
    assert not peer.closed
    peer.send(b"a")
    peer.connection.tick(clock.advance(4.9))
    assert not peer.closed
    peer.connection.tick(clock.advance(0.2))
    assert peer.closed
    assert peer.connection.outbox.close_reason == "undecided for too long"


def test_a_peer_that_says_nothing_is_closed_in_the_end(peer, clock):
    peer.connection.tick(clock.advance(301))
    assert peer.closed
    peer.settle()
    assert peer.connection.registry.ended == {"silent for too long": 1}
