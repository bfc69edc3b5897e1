"""The client's side of the native wire against a node that the test plays by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from polybus.core.endpoint import ANONYMOUS, Identity
from polybus.errors import (
    CallTimeout,
    ConnectionLost,
    Draining,
    LimitExceeded,
    NoSuchService,
    NotAuthorized,
    PeerUnavailable,
    PolybusError,
    Refused,
    RemoteProtocolError,
    ServiceFailed,
)
from polybus.model.clock import SystemClock
from polybus.model.message import Status
from polybus.model.record import NewRecord
from polybus.protocols.native import wire
from polybus.protocols.native.client import CLIENT_BOUNDS, NativeClient
from polybus.protocols.native.metas import encode_offset
from polybus.protocols.native.peer import LOST_AFTER, PING_AFTER
from polybus.protocols.native.replies import error_of, failure_of
from polybus.protocols.native.settings import identify_by_transport
from polybus.protocols.native.wire import Frame
from polybus.transports.connection import Connection, Connections, SessionFactory
from polybus.transports.memory import connect_memory
from polybus.transports.outbox import Outbox

HELLO = wire.PREFACE + wire.encode(
    wire.HELLO, 1, meta=wire.encode_meta(wire.Hello(versions=[1], max_frame=100_000))
)


class PlayedNode:
    """A node that answers what the test tells it to."""

    def __init__(self, greeting: bytes = HELLO) -> None:
        self.greeting = greeting
        self.outbox: Outbox
        self.got: asyncio.Queue[Frame] = asyncio.Queue()
        self.connected = 0
        self._frames = wire.Frames()
        self._head = b""
        self._connections = Connections(SystemClock())

    async def dial(self, connections: Connections, factory: SessionFactory) -> Connection:
        near, _far = connect_memory(self._connections, lambda _: self, connections, factory)
        return near

    def connection_made(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.connected += 1
        self._head = b""
        self._frames = wire.Frames()
        outbox.write(self.greeting)

    def data_received(self, data: bytes) -> None:
        if len(self._head) < 5:
            self._head += data
            assert self._head.startswith(wire.PREFACE)
            data = self._head[5:]
        for frame in self._frames.feed(data):
            self.got.put_nowait(wire.parse(frame))

    def eof_received(self) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        pass

    def tick(self, now: float) -> None:
        pass

    async def expect(self, kind: int) -> Frame:
        frame = await self.got.get()
        assert frame.kind == kind, f"{frame.kind:#x}"
        return frame

    def say(self, kind: int, ident: int = 0, payload: bytes = b"", **rest: int) -> None:
        self.outbox.write(wire.encode(kind, ident, "", payload, **rest))  # type: ignore[arg-type]


@pytest.fixture
async def node() -> PlayedNode:
    return PlayedNode()


@pytest.fixture
async def client(node: PlayedNode) -> AsyncIterator[NativeClient]:
    opened = NativeClient(node.dial, token="secret")
    await opened.open()
    hello = wire.parse_meta((await node.expect(wire.HELLO)).meta, wire.Hello)
    assert (hello.versions, hello.token) == ([1], "secret")
    yield opened
    await opened.close()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_pings_are_answered_and_goodbyes_and_pongs_taken(node, client):
    node.say(wire.PING, 9)
    assert (await node.expect(wire.PONG)).id == 9
    node.say(wire.PONG)
    node.say(wire.GOODBYE, 0, b"the node is stopping")
    node.say(wire.PING, 10)
    assert (await node.expect(wire.PONG)).id == 10
    assert client.connected


@pytest.mark.parametrize(
    "data",
    [
        wire.encode(0x7E, 1),
        wire.encode(wire.REGISTER, 1, "a"),
        b"\xff\xff\xff\xff",
        wire.encode(wire.PING, 1, "a").replace(b"\x02\x00\x00\x01", b"\x02\x00\x00\x09"),
        wire.encode(wire.CALL, 1, "a", meta=b"\x01"),
        wire.encode(wire.PUBLICATION, 0, "a", meta=b"\x01"),
    ],
)
async def test_a_node_that_breaks_the_rules_is_left_and_calls_fail(node, client, data: bytes):
    client._serving.add("a", lambda name, payload, headers: b"")
    call = asyncio.create_task(client.call("x", b""))
    await node.expect(wire.CALL)
    node.outbox.write(data)
    with pytest.raises(ConnectionLost):
        await call


async def test_the_reason_a_node_gives_before_it_closes_is_the_error(node, client):
    call = asyncio.create_task(client.call("x", b""))
    await node.expect(wire.CALL)
    node.outbox.write(wire.encode_error(0, RemoteProtocolError("you said something odd")))
    node.outbox.close("test")
    with pytest.raises(RemoteProtocolError, match="something odd"):
        await call


async def test_a_call_that_is_answered_by_another_kind_ends_the_connection(node, client):
    call = asyncio.create_task(client.call("x", b""))
    frame = await node.expect(wire.CALL)
    node.say(wire.OK, frame.id)
    with pytest.raises(RemoteProtocolError, match="kind 0x05"):
        await call


@pytest.mark.parametrize("verb", ["publish", "produce"])
async def test_a_request_that_is_answered_in_parts_ends_the_connection(node, client, verb: str):
    work = client.publish("x", b"") if verb == "publish" else client.produce("x", NewRecord(b""))
    task = asyncio.ensure_future(work)
    frame = await node.got.get()
    node.say(wire.REPLY, frame.id, b"", flags=wire.MORE)
    with pytest.raises(ConnectionLost):
        await task


async def test_answers_to_nobody_are_ignored(node, client):
    node.say(wire.REPLY, 77, b"late")
    node.say(wire.REPLY, 77, b"late", flags=wire.MORE)
    node.say(wire.OK, 78)
    node.outbox.write(wire.encode_error(79, NoSuchService("x")))
    node.say(wire.DELIVERY, 80, wire.encode_list([]))
    node.say(wire.CANCEL, 81)
    await settle()
    assert client.connected


async def test_a_call_for_a_name_that_is_not_served_is_answered(node, client):
    node.outbox.write(wire.encode(wire.CALL, 5, "nobody"))
    reply = await node.expect(wire.REPLY)
    assert (reply.id, reply.arg) == (5, Status.NOT_FOUND)
    node.outbox.write(wire.encode(wire.CALL, 6, "nobody", flags=wire.NO_REPLY))
    node.say(wire.PING, 7)
    await node.expect(wire.PONG)


async def test_a_reply_that_does_not_fit_the_nodes_frames_is_told_as_too_large(node, client):
    client._serving.add("big", lambda name, payload, headers: bytes(200_000))
    node.outbox.write(wire.encode(wire.CALL, 5, "big"))
    reply = await node.expect(wire.REPLY)
    assert reply.arg == Status.TOO_LARGE
    with pytest.raises(LimitExceeded):
        await client.call("x", bytes(100_001))
    with pytest.raises(LimitExceeded):
        await client.produce("x", NewRecord(bytes(100_001)))


async def test_an_answer_that_comes_after_a_timeout_is_ignored(node, client):
    with pytest.raises(CallTimeout):
        await client.call("x", b"", timeout=0.01)
    frame = await node.expect(wire.CALL)
    assert (await node.expect(wire.CANCEL)).id == frame.id
    node.say(wire.REPLY, frame.id, b"late")
    await settle()
    assert client.connected


async def test_requests_wait_while_the_node_does_not_read(node, client):
    node.outbox.pause_reading()
    most = CLIENT_BOUNDS.high_water // 90_000 + 2
    tasks = [asyncio.ensure_future(client.call("x", bytes(90_000))) for _ in range(most)]
    await settle()
    waiting = [
        asyncio.ensure_future(work)
        for work in (
            client.call("x", b"one"),
            client.publish("x", b"two"),
            client.publish_nowait("x", b"three"),
            client.push("x", b"four"),
            client.produce("x", NewRecord(b"five")),
            client.produce_many("x", [NewRecord(b"six")]),
        )
    ]
    await settle()
    assert not waiting[2].done()
    node.outbox.resume_reading()
    kinds = [(await node.got.get()).kind for _ in range(most + len(waiting))]
    assert kinds[:most] == [wire.CALL] * most
    assert sorted(kinds[most:]) == sorted(
        [wire.CALL, wire.PUBLISH, wire.PUBLISH, wire.CALL, wire.PRODUCE, wire.PRODUCE]
    )
    for task in (*tasks, *waiting):
        task.cancel()
    await asyncio.gather(*tasks, *waiting, return_exceptions=True)


async def test_records_of_one_turn_share_a_frame_and_one_acknowledgement(node, client):
    tasks = [asyncio.ensure_future(client.produce("t", NewRecord(b"%d" % n))) for n in range(5)]
    tasks.append(asyncio.ensure_future(client.produce("u", NewRecord(b"u"))))
    tasks.append(asyncio.ensure_future(client.produce("t", NewRecord(b"with id", id="i"))))
    first, second, third = [await node.expect(wire.PRODUCE) for _ in range(3)]
    assert [r.payload for r in wire.parse_new_records(first.payload)] == [
        b"%d" % n for n in range(5)
    ]
    assert (second.name, third.name) == ("u", "t")
    tasks[2].cancel()
    node.say(wire.PRODUCED, first.id, encode_offset(10))
    node.say(wire.PRODUCED, second.id, encode_offset(0))
    node.say(wire.PRODUCED, third.id, encode_offset(3))
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [r for r in done if isinstance(r, int)] == [10, 11, 13, 14, 0, 3]


async def test_a_turn_with_much_to_produce_is_spread_over_frames(node, client, monkeypatch):
    monkeypatch.setattr("polybus.protocols.native.producing.BATCH_RECORDS", 2)
    tasks = [asyncio.ensure_future(client.produce("t", NewRecord(b"x"))) for _ in range(5)]
    sizes = [
        len(wire.parse_new_records((await node.expect(wire.PRODUCE)).payload)) for _ in range(3)
    ]
    assert sizes == [2, 2, 1]
    for task in tasks:
        task.cancel()


async def test_a_produced_without_an_offset_ends_the_connection(node, client):
    task = asyncio.ensure_future(client.produce("t", NewRecord(b"x")))
    frame = await node.expect(wire.PRODUCE)
    node.say(wire.PRODUCED, frame.id, b"\x00")
    with pytest.raises(RemoteProtocolError):
        await task


async def test_a_silent_node_is_pinged_and_then_given_up(node, client):
    peer = client._peer
    assert peer is not None
    peer.tick(1000.0)
    peer.tick(1000.0 + PING_AFTER - 1)
    assert node.got.empty()
    peer.tick(1000.0 + PING_AFTER + 1)
    await node.expect(wire.PING)
    peer.tick(1000.0 + LOST_AFTER + 1)
    await peer.ended.wait()


@pytest.mark.parametrize(
    ("greeting", "error"),
    [
        (b"HTTP/1.1 400", RemoteProtocolError),
        (b"PBUS\x09", RemoteProtocolError),
        (wire.PREFACE + wire.encode_error(1, NotAuthorized("a", "b", "c")), NotAuthorized),
        (wire.PREFACE + wire.encode(wire.HELLO, 1, meta=b"\x01"), RemoteProtocolError),
    ],
)
async def test_a_greeting_that_fails_leaves_nothing_behind(greeting: bytes, error):
    node = PlayedNode(greeting)
    client = NativeClient(node.dial)
    with pytest.raises(error):
        await client.open()
    assert not client.connected
    await client.close()


async def test_a_node_that_does_not_greet_is_unavailable(monkeypatch):
    monkeypatch.setattr("polybus.protocols.native.client.GREETING_TIMEOUT", 0.01)
    client = NativeClient(PlayedNode(wire.PREFACE[:3]).dial)
    with pytest.raises(PeerUnavailable, match="no greeting"):
        await client.open()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (Status.NOT_FOUND, NoSuchService),
        (Status.REFUSED, Refused),
        (Status.FAILED, ServiceFailed),
        (Status.GONE, ServiceFailed),
        (Status.TIMED_OUT, CallTimeout),
        (Status.STALLED, ServiceFailed),
        (Status.TOO_LARGE, LimitExceeded),
        (Status.DRAINING, Draining),
        (200, ServiceFailed),
    ],
)
def test_every_status_is_an_error_with_its_text(status: int, error: type[PolybusError]):
    found = error_of(status, "a/b", b"why \xff")
    assert type(found) is error
    assert "why" in found.text


@pytest.mark.parametrize(
    ("raised", "status", "text"),
    [
        (ServiceFailed("text", b"detail"), Status.FAILED, b"detail"),
        (ServiceFailed("text"), Status.FAILED, b"text"),
        (Refused("no"), Status.REFUSED, b"no"),
        (CallTimeout("slow"), Status.FAILED, b"slow"),
        (KeyError("k"), Status.FAILED, b"KeyError: 'k'"),
    ],
)
def test_every_exception_of_a_handler_has_a_status(raised: Exception, status: Status, text: bytes):
    assert failure_of(raised) == (status, text)


class Seen:
    """What a connection knows of its peer."""

    def __init__(self, kind: str, certificate: dict[str, object] | None, uid: int | None) -> None:
        self.transport_kind = kind
        self.peer_certificate = certificate
        self.peer_uid = uid


CERTIFICATE: dict[str, object] = {"subject": ((("countryName", "CH"),), (("commonName", "ann"),))}


@pytest.mark.parametrize(
    ("seen", "identity"),
    [
        (Seen("tls", CERTIFICATE, None), Identity("certificate", "ann")),
        (Seen("unix", None, 1000), Identity("uid", "1000")),
        (Seen("tcp", None, None), ANONYMOUS),
        (Seen("memory", None, None), Identity("local")),
    ],
)
def test_who_a_client_is_comes_from_its_transport(seen: Seen, identity: Identity):
    check: Callable[[Seen, str], Identity] = identify_by_transport  # type: ignore[assignment]
    assert check(seen, "a claim that nobody checks") == identity
