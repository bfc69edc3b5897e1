"""Answers are gathered and written once per turn, in order, and none is left behind when a connection closes."""

from __future__ import annotations

import asyncio

from polybus.http.turn import BUSY, HELD, Gathering, Turn
from tests.http.serving import Served, responses, serve

ORDERED = b"GET /plain HTTP/1.1\r\n\r\n"
BY_ID = b"GET /%d HTTP/1.1\r\ncmd: x\r\nid: %d\r\n\r\n"


def gathering(turn: Turn) -> Served:
    served = serve()
    served.peer.send(ORDERED)
    served.peer.received()
    served.echo.session.turn = turn
    served.peer.tap.writes = 0
    return served


async def test_all_answers_of_a_turn_are_one_write_in_their_order():
    served = gathering(Turn())
    served.peer.send(BY_ID % (1, 1) + ORDERED + BY_ID % (2, 2))
    served.peer.send(BY_ID % (3, 3))
    assert served.peer.tap.writes == 0
    await asyncio.sleep(0)
    bodies = [body for _, _, body in responses(served.peer.received())]
    assert bodies == [b"/1 ", b"/plain ", b"/2 ", b"/3 "]
    assert served.peer.tap.writes == 1


async def test_several_connections_share_a_turn():
    turn = Turn()
    both = [gathering(turn), gathering(turn)]
    for served in both:
        served.peer.send(BY_ID % (1, 1))
    await asyncio.sleep(0)
    assert [served.peer.tap.writes for served in both] == [1, 1]


async def test_what_was_gathered_goes_out_before_the_connection_closes():
    served = gathering(Turn())
    served.peer.send(BY_ID % (1, 1))
    served.peer.connection.outbox.close("closed by an operator")
    assert len(responses(served.peer.received())) == 1
    bad = gathering(Turn())
    bad.peer.send(BY_ID % (1, 1) + b"nonsense\r\n\r\n")
    assert [status for status, _, _ in responses(bad.peer.received())] == [200, 400]
    last = gathering(Turn())
    last.peer.send(BY_ID % (1, 1) + b"GET /end HTTP/1.1\r\nconnection: close\r\n\r\n")
    assert [body for _, _, body in responses(last.peer.received())] == [b"/1 ", b"/end "]
    for ended in (served, bad, last):
        await asyncio.sleep(0)
        assert ended.peer.closed
        assert ended.peer.received() == b""


async def test_a_connection_that_is_lost_writes_no_more():
    served = gathering(Turn())
    served.peer.send(BY_ID % (1, 1))
    served.peer.hang_up()
    await asyncio.sleep(0)
    assert served.peer.received() == b""


class Written:
    """In place of sessions: each has a name, which is written when its turn has come."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def session(self, name: str) -> Gathering:
        written = self.names

        class Session(Gathering):
            def write_out(self) -> None:
                written.append(name)

        return Session()


async def test_what_a_turn_has_for_sessions_is_written_when_it_ends():
    turn, written = Turn(), Written()
    turn.add(written.session("a"))
    turn.add(written.session("b"))
    assert written.names == []
    await asyncio.sleep(0)
    assert written.names == ["a", "b"]


async def test_a_single_answer_does_not_wait_for_others():
    turn, written = Turn(), Written()
    turn.add(written.session("caller"), patient=True)
    await asyncio.sleep(0)
    assert written.names == ["caller"]


async def test_answers_wait_while_there_is_much_to_do_and_not_longer():
    turn, written = Turn(), Written()
    turn.add(written.session("caller"), patient=True)
    for number in range(HELD - 1):
        for _ in range(BUSY):
            turn.add(written.session("service"))
        await asyncio.sleep(0)
        assert written.names == ["service"] * BUSY * (number + 1)
    await asyncio.sleep(0)
    assert written.names[-1] == "caller"
    assert written.names.count("caller") == 1


async def test_answers_that_nobody_adds_to_go_out_with_the_next_turn():
    turn, written = Turn(), Written()
    for _ in range(BUSY):
        turn.add(written.session("caller"), patient=True)
    await asyncio.sleep(0)
    assert written.names == []
    await asyncio.sleep(0)
    assert written.names == ["caller"] * BUSY


async def test_the_oldest_answer_of_a_busy_loop_waits_for_so_many_turns_at_the_most():
    turn, written = Turn(), Written()
    for number in range(4 * HELD):
        for _ in range(BUSY):
            turn.add(written.session(str(number)), patient=True)
        await asyncio.sleep(0)
        oldest = int(written.names[-1]) + 1 if written.names else 0
        assert number - oldest < HELD


def test_a_turn_goes_on_in_another_event_loop_when_its_own_has_ended():
    turn, written = Turn(), Written()

    async def use() -> None:
        turn.add(written.session("a"))
        await asyncio.sleep(0)

    asyncio.run(use())
    asyncio.run(use())
    assert written.names == ["a", "a"]
