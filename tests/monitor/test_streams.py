"""Answers that go on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec
import pytest

import polybus
from polybus.core.chores import SLICE
from polybus.http.request import Request
from polybus.monitor import streams
from polybus.monitor.nodes import GsbNodes
from polybus.protocols.gsb.wire import CURRENT, Kind, encode_hello, encode_name
from tests.http.serving import Served, serve
from tests.monitor.serving import watched


async def test_the_overview_comes_at_once_and_with_every_sample(bus):
    async with bus.events("/api/v1/stream") as events:
        assert (await events.next("overview"))["ready"] is True
        assert (await events.next("overview"))["connections"] >= 1


async def test_the_tail_shows_what_comes_and_passes_the_filters(bus):
    async with polybus.connect(bus.url) as client:
        await client.produce("log", b"before", create=True)
        async with bus.events("/api/v1/topics/log/tail?tag=a&q=yes") as events:
            await client.produce("log", b"yes but untagged")
            await client.produce("log", b"no", tag="a")
            await client.produce("log", b"yes", tag="a")
            found = await events.next("records")
    assert [record["payload"] for record in found["items"]] == ["yes"]


async def test_the_tail_of_a_removed_topic_says_so(bus):
    topics = bus.node.topics
    assert topics is not None
    await topics.declare("log")
    async with bus.events("/api/v1/topics/log/tail") as events:
        await topics.remove("log")
        assert "no such topic" in await events.next("gone")


async def test_a_tail_needs_a_topic_and_a_filter_that_parses(bus):
    assert (await bus.ask("/api/v1/topics/nothing/tail")).status == 404
    topics = bus.node.topics
    assert topics is not None
    await topics.declare("log")
    assert (await bus.ask("/api/v1/topics/log/tail?tag=a..b")).status == 400


async def test_a_stopped_node_leaves_no_stream_behind(tmp_path):
    async with watched(tmp_path) as bus, bus.events("/api/v1/stream") as events:
        await events.next("overview")
        await bus.node.stop()
        assert not bus.node.monitor._tasks


def opened() -> tuple[Served, streams.Viewers]:
    served = serve()
    viewers = streams.Viewers()

    def view(request: Request) -> None:
        viewers.add(request)

    served.site.add("/events", view)
    served.peer.send(b"GET /events HTTP/1.1\r\n\r\n")
    served.peer.received()
    return served, viewers


def test_a_viewer_is_kept_alive_by_what_it_is_sent():
    served, viewers = opened()
    for _ in range(1000):
        viewers.tell("x", 1)
        served.tick(1.0)
    assert served.peer.received().startswith(b"event: x\ndata: 1\n\n")
    assert len(viewers) == 1


def test_a_viewer_that_does_not_read_is_let_go():
    served, viewers = opened()
    outbox = served.peer.connection.outbox
    outbox.write(b"x" * (streams.MAX_BEHIND + 1))
    viewers.tell("x", 1)
    assert outbox.close_reason in (None, "it does not read its events")


def test_the_number_of_viewers_is_bounded(monkeypatch):
    monkeypatch.setattr(streams, "MAX_STREAMS", 1)
    served, viewers = opened()
    served.peer.send(b"GET /events HTTP/1.1\r\n\r\n")
    assert b"too many open streams" in served.peer.received()
    assert len(viewers) == 1


def test_a_stream_cannot_share_a_connection_with_answers_by_id():
    served, _viewers = opened()
    served.peer.send(b"GET /events HTTP/1.1\r\nid: 7\r\na: b\r\n\r\n")
    assert b"of its own" in served.peer.received()


@pytest.fixture
async def gsb(bus):
    _reader, writer = await asyncio.open_connection("127.0.0.1", bus.port)
    writer.write(CURRENT.encode(Kind.HELLO, encode_hello("me", "1", bytes(range(16)))))
    yield writer
    writer.close()
    await writer.wait_closed()


async def test_gsb_nodes_are_those_below_net_keyed_by_their_first_id(bus, gsb):
    async with bus.events("/events") as events:
        for name in ("/other/x", "/net/0xABCD01/a", "/net/0xabcd02/b"):
            gsb.write(CURRENT.encode(Kind.REGISTER_REQUEST, encode_name(name)))
        new = await events.next("new-node")
        assert new["identities"][0] == "0xabcd01"
        found = (await bus.ask("/nodes")).json
        assert found["count"] == 1
        node = found["nodes"]["0xabcd01"]
        assert node["identities"] == ["0xabcd01", "0xabcd02"]
        assert node["session_id"] == bytes(range(16)).hex()
        assert node["peer"].startswith("127.0.0.1:")
        assert (await bus.ask("/nodes/abc")).json["count"] == 1
        assert (await bus.ask("/nodes/12")).json["count"] == 0
        assert (await bus.ask("/nodes/xyz")).status == 400
        health = (await bus.ask("/health")).json
        assert (health["connections"], health["endpoints"], health["status"]) == (1, 3, "ok")
        gsb.close()
        assert (await events.next("lost-node"))["id"] == "0xabcd01"


async def test_many_gsb_names_are_looked_at_between_the_turns_of_others(bus, gsb):
    count = 4 * SLICE
    async with bus.events("/events") as events:
        for number in range(count):
            name = encode_name(f"/net/0xabcd01/{number}")
            gsb.write(CURRENT.encode(Kind.REGISTER_REQUEST, name))
        assert (await events.next("new-node"))["id"] == "0xabcd01"
    assert (await bus.ask("/health")).json["endpoints"] == count
    gsb.write(CURRENT.encode(Kind.REGISTER_REQUEST, encode_name("/net/0xabcd02/x")))
    while len(bus.node.router.services.of("gsb")) == count:  # noqa: ASYNC110
        await asyncio.sleep(0)
    found = (await bus.ask("/nodes")).json
    assert found["nodes"]["0xabcd01"]["identities"] == ["0xabcd01", "0xabcd02"]


async def test_who_asks_for_nodes_during_one_look_shares_the_next(bus, gsb, monkeypatch):
    count, asked = 4 * SLICE, 20
    for number in range(count):
        name = encode_name(f"/net/0xabcd{number:04x}/x")
        gsb.write(CURRENT.encode(Kind.REGISTER_REQUEST, name))
    while len(bus.node.router.services.of("gsb")) < count:  # noqa: ASYNC110
        await asyncio.sleep(0)
    looks, look = [], GsbNodes._look_again

    def counted(nodes: GsbNodes) -> Iterator[None]:
        looks.append(nodes)
        return look(nodes)

    monkeypatch.setattr(GsbNodes, "_look_again", counted)
    reader, writer = await asyncio.open_connection("127.0.0.1", bus.port)
    gsb.write(CURRENT.encode(Kind.REGISTER_REQUEST, encode_name("/net/0xabcdffff/x")))
    writer.write(b"GET /nodes HTTP/1.1\r\n\r\n" * asked)
    for _ in range(asked):
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        found = msgspec.json.decode(await reader.readexactly(size))["nodes"]["0xabcd0000"]
        assert len(found["identities"]) in (count, count + 1)
    writer.close()
    assert len(looks) <= 3
