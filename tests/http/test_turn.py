"""Writes are gathered until the turn ends, answers of a busy loop for a few turns more."""

from __future__ import annotations

import asyncio
from typing import Any

from polybus.http.turn import BUSY, HELD, Turn


class Written:
    """In place of sessions: each has a name, which is written when its turn has come."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def session(self, name: str) -> Any:
        written = self.names

        class Session:
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
    turn.add_answered(written.session("caller"))
    await asyncio.sleep(0)
    assert written.names == ["caller"]


async def test_answers_wait_while_there_is_much_to_do_and_not_longer():
    turn, written = Turn(), Written()
    turn.add_answered(written.session("caller"))
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
        turn.add_answered(written.session("caller"))
    await asyncio.sleep(0)
    assert written.names == []
    await asyncio.sleep(0)
    assert written.names == ["caller"] * BUSY


async def test_the_oldest_answer_of_a_busy_loop_waits_for_so_many_turns_at_the_most():
    turn, written = Turn(), Written()
    for number in range(4 * HELD):
        for _ in range(BUSY):
            turn.add_answered(written.session(str(number)))
        await asyncio.sleep(0)
        oldest = int(written.names[-1]) + 1 if written.names else 0
        assert number - oldest < HELD
