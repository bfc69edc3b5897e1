"""The small parts by themselves: messages, tables of what waits, Redis replies in any split, work in bulk."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from functools import partial
from operator import mul
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.errors import ConfigError
from polybus.protocols.rmb.bulk import Bulk
from polybus.protocols.rmb.intake import Intake
from polybus.protocols.rmb.message import (
    Message,
    Unreadable,
    encode,
    parse_lenient,
    parse_strict,
    salvage,
    stamp,
)
from polybus.protocols.rmb.names import from_shared, to_shared, to_twin
from polybus.protocols.rmb.peers import _Connection, _parse_head
from polybus.protocols.rmb.pending import Pending, Waiting, restore, save
from polybus.protocols.rmb.queues import Layout
from polybus.protocols.rmb.resp import RedisConnection, RedisUrl, parse_redis_url
from polybus.protocols.rmb.taken import Rates, Replays, Taken
from tests.protocols.rmb.twins import until
from tests.protocols.rmb.vectors import SIGNATURES, VECTORS


def test_captured_messages_are_written_byte_for_byte():
    for vector in SIGNATURES:
        m = parse_strict(json.dumps(vector["message"]).encode())
        assert json.loads(encode(m, "rs")) == {
            k: v for k, v in vector["message"].items() if k != "pxy"
        }
    trip = VECTORS["rs"]["round_trip"]
    for key in ("backlog_value", "delivered_to_msgbus.cap.echo", "delivered_to_ret"):
        assert encode(parse_strict(trip[key].encode()), "rs").decode() == trip[key]
    first = VECTORS["v1"]["pushed_to_msgbus.system.local"]
    assert encode(parse_lenient(first.encode()), "v1").decode() == first


def test_messages_of_all_real_clients_are_read():
    for name, text in VECTORS["clients"].items():
        if isinstance(text, str) and text.startswith("{"):
            m = parse_lenient(text.encode())
            assert m.cmd.startswith("demo."), name
    without = parse_lenient(VECTORS["clients"]["soft_client_request_without_try"].encode())
    assert (without.tries, without.exp) == (0, 0)


def test_the_minimal_message_has_other_names():
    m = parse_lenient(b'{"id": "x", "dst": 7, "cmd": "a.b", "data": "aGk=", "ret": "r"}')
    assert (m.uid, m.dst, m.dat, m.ver) == ("x", [7], "aGk=", 1)
    both = parse_lenient(b'{"uid": "u", "id": "x", "dat": "d", "data": "e"}')
    assert (both.uid, both.dat) == ("u", "d")


def test_what_is_left_of_an_unreadable_message_is_enough_for_an_answer():
    with pytest.raises(Unreadable) as caught:
        parse_lenient(b'{"ret": "r", "uid": "u", "cmd": "c", "exp": "30", "tag": "t"}')
    m = salvage(caught.value)
    assert (m.ret, m.uid, m.cmd, m.tag) == ("r", "u", "c", "t")
    assert "exp" in (m.err or "")
    for text in (b"", b"[]", b'{"ret": 5, "exp": ""}'):
        with pytest.raises(Unreadable) as caught:
            parse_lenient(text)
        assert caught.value.ret == ""


@pytest.mark.parametrize(
    ("now", "m", "expected"),
    [
        (100, Message(now=0, exp=30), (100, 30)),
        (100, Message(now=200, exp=30), (100, 30)),
        (100, Message(now=90, exp=30), (100, 20)),
        (100, Message(now=50, exp=30), (100, 0)),
        (100, Message(now=100, exp=0), (100, 3600)),
    ],
)
def test_a_stamp_keeps_the_deadline(now, m, expected):
    assert stamp(now, m) == expected


@pytest.mark.parametrize(
    ("cmd", "name"),
    [("a.b", "a/b"), ("a", "a"), ("", None), ("a..b", None), ("a/b", None), ("a.*", None)],
)
def test_commands_and_shared_names(cmd, name):
    assert to_shared(cmd) == name
    if name is not None:
        assert from_shared(name) == cmd
    assert from_shared("a.b/c") is None


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("twin/12/a/b", (12, "a.b")),
        ("twin/12", None),
        ("twin/x/a", None),
        ("twin/12/a.b", None),
        ("other/12/a", None),
        ("twin/12345678901/a", None),
    ],
)
def test_names_of_other_twins(name, found):
    assert to_twin(name) == found


def test_an_entry_leaves_once_and_in_time():
    pending = Pending()
    early, late = (
        Waiting("u", dst, Message(now=100, exp=exp, dst=[1, 2])) for dst, exp in ((1, 10), (2, 50))
    )
    pending.add(early)
    pending.add(late)
    assert pending.asked("u") == [1, 2]
    assert list(pending.due(109_999)) == []
    assert list(pending.due(110_000)) == [early]
    assert pending.take("u", 1) is early
    assert pending.take("u", 1) is None
    pending.rename(late, "2.7")
    assert pending.get("u", 2) is None
    assert pending.get("2.7", 2) is late
    assert list(pending.due(200_000)) == [late]


def test_answered_entries_do_not_pile_up():
    pending = Pending()
    for number in range(5000):
        pending.add(Waiting(str(number), 1, Message(now=100, exp=10)))
        pending.take(str(number), 1)
    pending.add(Waiting("last", 1, Message(now=100, exp=10)))
    assert list(pending.due(0)) == []
    assert len(pending._deadlines) < 1024


def test_an_entry_survives_in_redis():
    waiting = Waiting("a.b", 12, Message(uid="mine", now=100, exp=10, ret="r", tag="t", dst=[12]))
    command = save([waiting])
    field, value = str(command[2]).encode(), command[3]
    assert isinstance(value, bytes)
    again = restore(field, value)
    assert (again.key, again.deadline_ms, again.message.ret) == (("a.b", 12), 110_000, "r")
    with pytest.raises(ValueError, match="invalid literal"):
        restore(b"no number", value)


def test_the_replay_window_forgets_in_time():
    replays = Replays()
    until = 1_120_000
    assert replays.seen("u", 1, b"p", until, 1_000_000) == ""
    assert replays.seen("u", 1, b"p", until, until) == "replay"
    assert replays.seen("u", 1, b"q", until, until) == "again"
    assert replays.seen("u", 2, b"p", until, until) == ""
    assert len(replays) == 2
    assert replays.seen("u", 1, b"p", until + 60_000, until + 30_000) == ""
    assert len(replays) == 1


def test_requests_under_way_are_known_by_their_sender():
    taken = Taken()
    taken.add("2.1", 1, 10)
    taken.add("2.1", 3, 20)
    assert taken.holds("2.1", 1)
    assert taken.only("2.1") is None
    taken.add("2.1", 3, 20)
    assert len(taken) == 2
    taken.expire(15)
    assert taken.only("2.1") == 3
    taken.drop("2.1", 3)
    taken.drop("2.1", 3)
    assert len(taken) == 0


def test_a_minute_has_room_for_so_many():
    rates = Rates(1)
    assert not rates.is_spent(1, 0)
    rates.count(1)
    assert rates.is_spent(1, 59_999)
    assert not rates.is_spent(2, 59_999)
    assert not rates.is_spent(1, 60_000)


def test_an_entry_of_the_forward_queue_is_cut_at_the_last_dot():
    assert Layout("rs", "left").parse_forward("a.b.12") == ("a.b", 12)
    assert Layout("rs", "left").parse_forward("odd") == ("odd", None)
    assert Layout("documented", "left").parse_forward("a.12") == ("a.12", None)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("redis://h", RedisUrl("h")),
        ("redis://h:1/3", RedisUrl("h", 1, db=3)),
        ("redis://:pa%20ss@h", RedisUrl("h", password="pa ss")),
        ("rediss://u:p@h:5", RedisUrl("h", 5, "", "u", "p", 0, True)),
        ("unix:///run/r.sock?db=2", RedisUrl(path="/run/r.sock", db=2)),
    ],
)
def test_addresses_of_redis(text, url):
    assert parse_redis_url(text) == url
    assert "pa ss" not in str(url)


@pytest.mark.parametrize("text", ["", "h:1", "redis://h:x", "unix://rel"])
def test_addresses_that_are_none(text):
    with pytest.raises(ConfigError):
        parse_redis_url(text)


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.closed = True

    close = abort

    def is_closing(self) -> bool:
        return self.closed


@given(st.lists(st.integers(0, 60), max_size=8))
def test_replies_of_redis_are_the_same_in_any_split(cuts):
    async def run() -> None:
        connection = RedisConnection()
        connection.connection_made(Wire())
        found: list[Any] = []
        connection.send([("GET", "a"), ("LLEN", "b")], found.append)
        connection.send([("PING",)], found.append)
        data = b"$5\r\nhello\r\n:42\r\n*2\r\n$1\r\nx\r\n$-1\r\n"
        at = 0
        for cut in [*sorted(cuts), len(data)]:
            if at < cut <= len(data):
                connection.data_received(data[at:cut])
                at = cut
        assert found == [[b"hello", 42], [[b"x", None]]]
        connection.send([("PING",)], found.append)
        connection.connection_lost(None)
        assert found[-1] is None

    asyncio.run(run())


async def test_bytes_that_are_not_redis_end_the_connection():
    for data in (b"HTTP/1.1 200 OK\r\n", b"+unasked\r\n"):
        connection, wire = RedisConnection(), Wire()
        connection.connection_made(wire)
        connection.data_received(data)
        assert wire.closed


async def test_commands_of_one_turn_leave_in_one_write():
    connection, wire = RedisConnection(), Wire()
    connection.connection_made(wire)
    connection.send([("PING",)], lambda replies: None)
    connection.send([("GET", "ä"), ("SET", b"\xff", 5)], lambda replies: None)
    assert wire.written == b""
    await asyncio.sleep(0)
    assert wire.written.count(b"*") == 3


@pytest.mark.parametrize("count", [1, 4, 5, 300])
async def test_work_in_bulk_is_all_done_once(count):
    bulk = Bulk()
    found: list[int] = []
    for number in range(count):
        bulk.submit(partial(mul, number, 2), found.append)
    await until(lambda: len(found) == count)
    assert sorted(found) == [2 * n for n in range(count)]
    await bulk.close()


class _OnePeer:
    pipelines = True

    def __init__(self) -> None:
        self.later: list[Callable[[], None]] = []
        self.soon = self.later.append

    def free(self, connection: object) -> None: ...

    def lost(self, connection: object) -> None: ...


@given(st.lists(st.integers(0, 200), max_size=8), st.randoms(use_true_random=False))
def test_answers_of_a_peer_are_the_same_in_any_split(cuts, rng: random.Random):
    from polybus.protocols.rmb.peers import _Request

    connection = _Connection(_OnePeer())  # type: ignore[arg-type]
    connection.connection_made(Wire())
    found: list[Any] = []
    for _ in range(2):
        connection.send(_Request(b"", found.append, 0.0, 100))
    data = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
    data += b"HTTP/1.1 400 Bad Request\r\nContent-Length: 3\r\n\r\nbad"
    at = 0
    for cut in [*sorted(cuts), len(data)]:
        if at < cut <= len(data):
            connection.data_received(data[at:cut])
            at = cut
    assert [(a.status, a.body) for a in found] == [(202, b""), (400, b"bad")]


def test_requests_of_one_turn_leave_in_one_write():
    from polybus.protocols.rmb.peers import _Request

    peer = _OnePeer()
    connection, wire = _Connection(peer), Wire()  # type: ignore[arg-type]
    connection.connection_made(wire)
    for text in (b"one ", b"two ", b"three"):
        connection.send(_Request(text, lambda answer: None, 0.0, 100))
    assert wire.written == b""
    (flush,) = peer.later
    flush()
    assert wire.written == b"one two three"


def test_heads_of_answers():
    assert _parse_head(b"HTTP/1.1 202 Accepted\r\nserver: polybus\r\ncontent-length: 0").pipelines
    assert not _parse_head(b"HTTP/1.0 200 OK\r\ncontent-length: 0").keep
    assert _parse_head(b"HTTP/1.1 204 No Content").length == 0
    assert _parse_head(b"SSH-2.0-OpenSSH").status == 0
    for digits in (b"\xb2\xb2\xb2", b"2" * 5000, b"20"):
        assert _parse_head(b"HTTP/1.1 " + digits + b" OK").status == 0
    assert _parse_head(b"HTTP/1.1 200 OK\r\ncontent-length: \xb2").length is None


async def test_what_left_a_queue_is_kept_though_the_first_pop_of_the_batch_was_refused():
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            refused = b"-LOADING for a moment\r\n*1\r\n$4\r\nkept\r\n"
            commands = f"\r\n{data.decode()}".count("\r\n*")
            writer.write(refused if b"POP" in data else b"+OK\r\n" * commands)
        writer.close()

    taken: asyncio.Queue[list[bytes]] = asyncio.Queue()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = RedisUrl("127.0.0.1", server.sockets[0].getsockname()[1])
        intake = Intake(url, "test", Layout("rs", "left"), {"queue": taken.put_nowait})
        running = asyncio.create_task(intake.run())
        try:
            assert await asyncio.wait_for(taken.get(), 10) == [b"kept"]
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
