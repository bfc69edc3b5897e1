"""A head that an application made a shortcut of takes its requests itself, whatever way they come."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.http.head import Shortcut
from polybus.http.request import Request
from polybus.http.session import LARGE_HEAD, MAX_HEADS, HttpSession
from tests.http.serving import Echo, Served, responses, serve

IDS = [b"1", b"2", b"77", b"00000000-0000-0000-0000-000000000001", b"x" * 64, b"y" * 65, b"", b" "]
IDS += [b" padded", "ä".encode(), b"a b", b"~", b"\x7f", b"\xff"]


class Noted(Shortcut):
    """Notes what it takes; an id that ends in 7 it leaves to the party."""

    def __init__(self, echo: ShortEcho, number: str) -> None:
        self.echo = echo
        self.number = number
        self.taken = 0

    def take(self, ident: bytes, body: bytes) -> bool:
        if ident.endswith(b"7"):
            return False
        self.taken += 1
        self.echo.seen.append((self.number, ident.decode(), body))
        return True


class ShortEcho(Echo):
    """An application that notes all it gets, in their order; with `short`, by shortcuts where it can."""

    short = True

    def __init__(self, session: HttpSession) -> None:
        super().__init__(session)
        self.seen: list[tuple[str, str, bytes]] = []

    def take(self, request: Request) -> None:
        number = request.head.headers.get("number", "")
        if self.short and not request.head.ordered:
            request.head.shortcut = Noted(self, number)
        self.seen.append((number, request.id, request.body))


class LongEcho(ShortEcho):
    short = False


def request(number: int, ident: bytes, body: bytes) -> bytes:
    head = b"GET / HTTP/1.1\r\nnumber: %d\r\ncmd: x\r\nid: %b\r\nversion: 1\r\ncontent-length: %d\r\n\r\n"
    return head % (number, ident, len(body)) + body


def beginning_alike(number: int) -> bytes:
    return b"GET / HTTP/1.1\r\ncmd: x\r\nid: a\r\nnumber: %d\r\n\r\n" % number


def serving(kind: type[ShortEcho], **settings: Any) -> Served:
    served = serve(**settings)

    def application(session: HttpSession) -> ShortEcho:
        served.parties.append(kind(session))
        return served.parties[-1]  # type: ignore[return-value]

    served.site.application = application
    return served


def seen(served: Served) -> list[tuple[str, str, bytes]]:
    if not served.parties:
        return []
    echo = served.echo
    assert isinstance(echo, ShortEcho)
    return echo.seen


def outcome(kind: type[ShortEcho], data: bytes, splits: Iterable[int]) -> object:
    served = serving(kind)
    served.peer.send(data, splits)
    return seen(served), served.peer.received(), served.peer.closed


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(IDS), st.sampled_from([b"", b"ab", b"\r\n"])),
        min_size=1,
        max_size=30,
    ),
    st.lists(st.integers(0, 3000), max_size=6),
)
def test_the_two_ways_give_the_same_requests_in_the_same_order(requests, cuts):
    data = b"".join(request(*each) for each in requests)
    splits = [cut for cut in cuts if cut < len(data)]
    short = outcome(ShortEcho, data, splits)
    assert short == outcome(LongEcho, data, splits)
    assert short == outcome(LongEcho, data, ())


def test_a_head_that_comes_a_third_time_takes_its_requests():
    served = serving(ShortEcho)
    served.peer.send(b"".join(request(1, b"%d" % number, b"ab") for number in range(7)))
    assert [ident for _, ident, _ in seen(served)] == [str(number) for number in range(7)]
    (head,) = served.echo.session._heads.values()
    assert isinstance(head.shortcut, Noted)
    assert head.shortcut.taken == 5


def test_heads_that_take_turns_are_all_known():
    served = serving(ShortEcho)
    rounds = b"".join(request(n, b"%d" % n, b"") for n in (1, 2, 1, 3, 1, 2, 1, 4, 2, 3)) * 5
    served.peer.send(rounds, range(1, len(rounds), 11))
    numbers = [number for number, _, _ in seen(served)]
    assert numbers == re.findall("number: ([0-9])", rounds.decode())


def test_heads_without_number_leave_nothing_behind():
    served = serving(ShortEcho)
    for number in range(3 * MAX_HEADS):
        served.peer.send(request(number, b"a", b"") + request(number, b"b", b""))
    assert len(served.echo.session._begun) <= MAX_HEADS
    assert len(served.echo.session._heads) <= MAX_HEADS


@pytest.mark.parametrize("alike", [False, True])
def test_a_head_that_is_still_in_use_keeps_none_of_those_that_came_behind_it(alike: bool):
    served = serving(ShortEcho)
    served.peer.send(request(0, b"a", b"") * 2)
    (kept,) = served.echo.session._heads.values()
    for number in range(1, 5 * MAX_HEADS):
        other = beginning_alike(number) if alike else request(number, b"a", b"")
        served.peer.send(other * 2)
    behind, head = 0, kept.follower
    while head is not None and behind < 2 * MAX_HEADS:
        behind, head = behind + 1, head.follower
    assert behind <= MAX_HEADS
    assert len(seen(served)) == 10 * MAX_HEADS


def test_large_heads_are_parsed_anew_and_not_kept():
    served = serving(ShortEcho)
    large = b"GET / HTTP/1.1\r\ncmd: x\r\nid: a\r\npad: " + LARGE_HEAD * b"x" + b"\r\n\r\n"
    served.peer.send((large + request(1, b"b", b"")) * 4)
    assert [ident for _, ident, _ in seen(served)] == ["a", "b"] * 4
    assert len(served.echo.session._heads) == 1


def test_heads_go_with_their_connection_whoever_still_knows_it():
    served = serving(ShortEcho)
    served.peer.send(b"".join(request(number, b"a", b"") * 2 for number in range(3)))
    session = served.echo.session
    head = next(iter(session._heads.values()))
    served.peer.connection.connection_lost(None)
    assert not session._heads
    assert not session._begun
    assert head.follower is None


def test_plain_requests_are_answered_in_their_turn_between_those_that_are_taken():
    served = serving(ShortEcho)
    plain = b"GET /zbus-missing HTTP/1.1\r\n\r\n"
    served.peer.send((request(1, b"a", b"") + plain) * 4)
    assert [status for status, _, _ in responses(served.peer.received())] == [404] * 4
    assert len(seen(served)) == 4


@pytest.mark.parametrize("ident", [b"3\nset-cookie: b", b"\x01", b"3\rx"])
def test_an_id_that_could_end_a_line_is_refused_whoever_would_take_it(ident: bytes):
    served = serving(ShortEcho)
    served.peer.send(request(1, b"1", b"") * 3 + request(1, ident, b""))
    assert [status for status, _, _ in responses(served.peer.received())] == [400]
    assert len(seen(served)) == 3
