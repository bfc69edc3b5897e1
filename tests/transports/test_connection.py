"""What a session that goes wrong does to its own connection, and not to others."""

from __future__ import annotations

import asyncio
import logging

import pytest

from polybus.errors import RemoteProtocolError
from polybus.model.clock import ManualClock
from polybus.transports import connection as module
from polybus.transports.connection import Connection, Connections
from polybus.transports.outbox import Outbox
from tests.protocols.wiretap import Peer


class Stumbling:
    """A session that fails in the way its input, or the test, says."""

    def __init__(self) -> None:
        self.inputs = 0
        self.ticks = 0
        self.fails_at_tick = False

    def connection_made(self, outbox: Outbox) -> None: ...

    def data_received(self, data: bytes) -> None:
        self.inputs += 1
        if data == b"bad":
            raise RemoteProtocolError("bad input")
        if data == b"mistake":
            raise KeyError("a mistake of ours")

    def eof_received(self) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...

    def tick(self, now: float) -> None:
        self.ticks += 1
        if self.fails_at_tick:
            raise KeyError("a mistake of ours")


@pytest.fixture
def connections(clock: ManualClock) -> Connections:
    return Connections(clock)


def connect(connections: Connections) -> tuple[Peer, Stumbling]:
    session = Stumbling()

    def factory(connection: Connection) -> Stumbling:
        return session

    return Peer(connections, factory), session


def test_a_refused_connection_takes_no_more_input_and_is_logged_once(connections, caplog):
    peer, session = connect(connections)
    with caplog.at_level(logging.WARNING, "polybus.connection"):
        for _ in range(3):
            peer.connection.data_received(b"bad")
    assert session.inputs == 1
    assert [record.getMessage() for record in caplog.records] == [
        f"connection {peer.connection.id} from tap closed: bad input"
    ]
    peer.settle()
    assert connections.ended == {"protocol error": 1}


def test_a_mistake_of_ours_ends_the_connection_where_it_showed(connections, caplog):
    peer, _session = connect(connections)
    other, _session = connect(connections)
    peer.send(b"mistake")
    assert (peer.closed, other.closed) == (True, False)
    assert "KeyError" in caplog.text
    peer.settle()
    assert connections.ended == {"internal error": 1}


def test_a_mistake_at_a_tick_does_not_keep_the_others_from_theirs(connections, clock):
    peers = [connect(connections) for _ in range(3)]
    peers[1][1].fails_at_tick = True
    connections.tick(clock.advance(1))
    assert [session.ticks for _peer, session in peers] == [1, 1, 1]
    assert [peer.closed for peer, _session in peers] == [False, True, False]


async def test_closing_all_cuts_who_does_not_take_its_last_words(connections, monkeypatch):
    monkeypatch.setattr(module, "CLOSE_GRACE", 0)
    peer, _session = connect(connections)
    peer.tap.stuck = True
    peer.connection.outbox.write(b"last words")
    await connections.close_all("enough")
    assert peer.closed
    assert not peer.tap.waiting
    peer.settle()
    assert connections.ended == {"enough": 1}


def test_ticks_in_parts_reach_every_session_once_a_round(connections, clock):
    sessions = [connect(connections)[1] for _ in range(25)]
    most = 0
    for part in range(10):
        before = sum(session.ticks for session in sessions)
        connections.tick(clock.advance(0.1), part, 10)
        most = max(most, sum(session.ticks for session in sessions) - before)
    assert [session.ticks for session in sessions] == [1] * 25
    assert most == 3


def test_who_went_in_the_middle_of_a_round_gets_no_tick(connections, clock):
    peers = [connect(connections) for _ in range(4)]
    connections.tick(clock.advance(0.1), 0, 2)
    ticked = {session for _peer, session in peers if session.ticks}
    for peer, session in peers:
        if session not in ticked:
            peer.hang_up()
    connections.tick(clock.advance(0.1), 1, 2)
    assert len(ticked) == sum(session.ticks for _peer, session in peers) == 2


class Laborious:
    """A session to which each byte is work."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.pieces: list[bytes] = []
        self.ms_per_byte = 1.1
        self.outbox: Outbox

    def connection_made(self, outbox: Outbox) -> None:
        self.outbox = outbox

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)
        self.clock.advance(len(data) * self.ms_per_byte / 1000)

    def eof_received(self) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def tick(self, now: float) -> None: ...


@pytest.fixture
def laborious(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> tuple[Peer, Laborious]:
    monkeypatch.setattr(module, "LEAST_PIECE", 4)
    monkeypatch.setattr(module, "SHORT", 3)
    session = Laborious(clock)
    connections = Connections(clock, first_piece=40)
    return Peer(connections, lambda connection: session), session


async def test_input_that_takes_long_is_handled_in_turns_with_the_others(laborious):
    peer, session = laborious
    data = bytes(range(100))
    peer.connection.data_received(data)
    assert [len(piece) for piece in session.pieces] == [40]
    assert not peer.tap.reading
    turns = 1
    while not peer.tap.reading:
        before = len(session.pieces)
        await asyncio.sleep(0)
        turns += 1
        assert sum(map(len, session.pieces[before:])) <= 18, "ten milliseconds, and one more piece"
    assert b"".join(session.pieces) == data
    assert turns >= 4


async def test_input_that_comes_while_others_have_their_turn_keeps_its_order(laborious):
    peer, session = laborious
    peer.connection.data_received(bytes(50))
    peer.connection.data_received(b"last")
    for _turn in range(10):
        await asyncio.sleep(0)
    assert peer.tap.reading
    assert b"".join(session.pieces) == bytes(50) + b"last"


async def test_input_that_takes_no_time_comes_in_ever_larger_pieces(laborious):
    peer, session = laborious
    session.ms_per_byte = 0.0
    peer.connection.data_received(bytes(100))
    peer.connection.data_received(bytes(100))
    assert [len(piece) for piece in session.pieces] == [40, 60, 80, 20]
    assert peer.tap.reading


async def test_input_that_waits_for_its_turn_goes_with_its_connection(laborious):
    peer, session = laborious
    peer.connection.data_received(bytes(100))
    session.outbox.close("enough")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [len(piece) for piece in session.pieces] == [40]


async def test_a_short_input_ends_its_turn_by_itself(laborious):
    peer, session = laborious
    session.ms_per_byte = 100.0
    peer.connection.data_received(b"abc")
    assert peer.tap.reading
    peer.connection.data_received(b"abcd")
    assert not peer.tap.reading
    peer.connection.data_received(b"z")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert session.pieces == [b"abc", b"abcd", b"z"]


async def test_the_end_of_the_input_does_not_overtake_what_waits_for_its_turn(laborious):
    peer, session = laborious
    peer.connection.data_received(bytes(100))
    peer.connection.eof_received()
    assert b"".join(session.pieces) == bytes(100)
