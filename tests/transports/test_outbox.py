"""Bounds of an outgoing queue."""

from __future__ import annotations

import pytest

from polybus.model.clock import ManualClock
from polybus.transports.connection import Connection, Connections
from polybus.transports.outbox import Bounds, Budget, Outbox, Pause
from tests.protocols.wiretap import Peer

BOUNDS = Bounds(pending_bytes=1000, share_bytes=300, high_water=100, write_timeout=5)


class Quiet:
    """A session that says nothing."""

    def connection_made(self, outbox: Outbox) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def tick(self, now: float) -> None: ...


def quiet(connection: Connection) -> Quiet:
    return Quiet()


@pytest.fixture
def connections(clock: ManualClock) -> Connections:
    return Connections(clock, BOUNDS, Budget(2000))


@pytest.fixture
def peer(connections: Connections) -> Peer:
    return Peer(connections, quiet)


def test_a_free_queue_takes_everything_from_everybody(peer):
    outbox = peer.connection.outbox
    assert all(outbox.offer(bytes(500), sender) for sender in range(10))
    assert len(peer.received()) == 5000


def test_a_congested_queue_gives_each_sender_its_share(peer):
    outbox = peer.connection.outbox
    peer.tap.stuck = True
    outbox.write(bytes(101))
    assert outbox.congested
    assert outbox.offer(bytes(200), 1)
    assert not outbox.offer(bytes(200), 1)
    assert outbox.offer(bytes(100), 1)
    assert outbox.offer(bytes(290), 2)


def test_a_sender_with_nothing_waiting_may_place_one_frame_however_large(peer):
    outbox = peer.connection.outbox
    peer.tap.stuck = True
    outbox.write(bytes(101))
    assert outbox.offer(bytes(900), 1)
    assert not outbox.offer(bytes(1), 1)


def test_the_total_is_bounded_however_many_senders_there_are(peer):
    outbox = peer.connection.outbox
    peer.tap.stuck = True
    outbox.write(bytes(101))
    taken = sum(outbox.offer(bytes(100), sender) for sender in range(100))
    assert outbox.pending_bytes <= BOUNDS.pending_bytes + BOUNDS.share_bytes
    assert taken == 11


def test_shares_start_anew_once_the_queue_has_drained(peer):
    outbox = peer.connection.outbox
    drained: list[bool] = []
    outbox.on_drained = lambda: drained.append(True)
    peer.tap.stuck = True
    outbox.write(bytes(101))
    assert outbox.offer(bytes(300), 1)
    assert not outbox.offer(bytes(1), 1)
    peer.tap.unstick()
    assert drained == [True]
    assert outbox.offer(bytes(300), 1)
    assert len(peer.received()) == 701


def test_a_peer_that_reads_slowly_is_not_stalled(peer, clock):
    outbox = peer.connection.outbox
    peer.tap.stuck = True
    outbox.write(bytes(101))
    for _ in range(20):
        del peer.tap.waiting[:1]
        outbox.tick(clock.advance(1))
    assert not peer.closed


def test_a_peer_that_takes_nothing_is_cut_even_while_more_is_queued(peer, clock):
    outbox = peer.connection.outbox
    peer.tap.stuck = True
    outbox.write(bytes(101))
    for second in range(7):
        outbox.offer(b"x", second)
        outbox.tick(clock.advance(1))
    assert peer.closed
    assert outbox.close_reason == "it takes no data"


def test_when_the_budget_is_spent_the_largest_queue_is_cut_first(connections):
    small, large = Peer(connections, quiet), Peer(connections, quiet)
    for peer in (small, large):
        peer.tap.stuck = True
        peer.connection.outbox.write(bytes(101))
    connections.budget.limit = 1200
    assert large.connection.outbox.offer(bytes(800), 1)
    assert small.connection.outbox.offer(bytes(100), 1)
    assert connections.budget.cuts == 0
    assert small.connection.outbox.offer(bytes(150), 2)
    assert (large.closed, small.closed) == (True, False)
    assert connections.budget.cuts == 1


def test_what_a_lost_connection_held_goes_back_to_the_budget(connections, peer):
    peer.tap.stuck = True
    peer.connection.outbox.write(bytes(101))
    peer.connection.outbox.offer(bytes(200), 1)
    assert connections.budget.held == 301
    peer.hang_up()
    assert connections.budget.held == 0


def test_a_queue_that_moves_lets_one_sender_place_more_than_its_share_in_all(peer):
    outbox = peer.connection.outbox
    peer.tap.stuck = True
    outbox.write(bytes(101))
    for _ in range(50):
        assert outbox.offer(bytes(100), 1)
        del peer.tap.waiting[:100]
    assert outbox.congested


def test_a_peer_that_reads_its_replies_slowly_is_not_cut_for_their_sum(peer):
    outbox = peer.connection.outbox
    peer.tap.stuck = True
    outbox.write(bytes(101))
    for _ in range(50):
        outbox.write(bytes(100))
        del peer.tap.waiting[:100]
    assert not peer.closed
    assert not outbox.reading_paused


def test_a_peer_that_never_takes_its_last_words_is_cut_too(peer, clock):
    outbox = peer.connection.outbox
    peer.tap.stuck = True
    outbox.write(bytes(10))
    outbox.close("enough")
    for _ in range(5):
        outbox.tick(clock.advance(1))
    assert peer.tap.waiting
    outbox.tick(clock.advance(1))
    assert not peer.tap.waiting
    assert outbox.close_reason == "enough"


def test_late_output_for_a_peer_that_has_gone_harms_nobody(peer):
    outbox = peer.connection.outbox
    peer.hang_up()
    outbox.write(b"late")
    assert outbox.offer(b"late", 1)
    assert outbox.closing
    assert not outbox.pending_bytes


def test_many_small_queues_draw_on_the_budget_as_well(connections, clock):
    peers = [Peer(connections, quiet) for _ in range(3)]
    for size, peer in enumerate(peers):
        peer.tap.stuck = True
        peer.connection.outbox.write(bytes(90 + size))
    connections.budget.limit = 200
    connections.tick(clock.advance(1))
    assert [peer.closed for peer in peers] == [False, False, True]
    assert connections.budget.held <= 200


def test_the_beginnings_of_frames_draw_on_the_budget_as_well(connections, clock):
    modest, greedy = Peer(connections, quiet), Peer(connections, quiet)
    modest.connection.outbox.input = bytes(900)
    greedy.connection.outbox.input = bytes(1200)
    connections.tick(clock.advance(1))
    assert (modest.closed, greedy.closed) == (False, True)
    assert greedy.connection.outbox.close_reason == "memory budget spent"


def test_reading_is_paused_and_resumed_once(peer):
    outbox = peer.connection.outbox
    outbox.pause_reading()
    outbox.pause_reading()
    assert not peer.tap.reading
    outbox.resume_reading()
    assert peer.tap.reading


def test_reading_goes_on_only_when_no_reason_against_it_is_left(peer):
    outbox = peer.connection.outbox
    outbox.pause_reading(Pause.SESSION)
    peer.tap.stuck = True
    outbox.write(bytes(101))
    outbox.write(bytes(301))
    outbox.throttle(True)
    assert outbox.paused == Pause.SESSION | Pause.UNREAD | Pause.RATE
    peer.tap.stuck = False
    outbox.drained()
    outbox.throttle(False)
    assert not peer.tap.reading
    outbox.resume_reading(Pause.SESSION)
    assert peer.tap.reading
