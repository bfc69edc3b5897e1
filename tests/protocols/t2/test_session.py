from __future__ import annotations

import gzip
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polybus.core import toll
from polybus.core.chores import SLICE
from polybus.core.endpoint import ANONYMOUS, Endpoint, Identity
from polybus.core.policy import Verb
from polybus.core.router import Router
from polybus.core.subscriptions import PATTERNS
from polybus.model.clock import ManualClock
from polybus.model.message import Call, Publication, Reply, Status
from polybus.protocols.t2 import relay
from polybus.protocols.t2.room import T2Options
from polybus.protocols.t2.session import sniff
from polybus.protocols.t2.wire import (
    MAX_BODY,
    BusError,
    encode_data,
    encode_frame,
    encode_head,
    encode_uint,
    invalid_topic,
    payload_content,
    response_content,
    topic_content,
    unit_content,
)
from polybus.transports.outbox import Bounds
from tests.core.party import Turns
from tests.protocols.t2.conftest import Bus


def array_of(payload: bytes) -> bytes:
    return encode_head(4, len(payload)) + b"".join(encode_uint(b) for b in payload)


# -- publications --


def test_a_publication_reaches_every_matching_connection_once(bus):
    one, both, none, publisher = (bus.client() for _ in range(4))
    one.topic("Sub", "chat/*")
    both.topic("Sub", "chat/**")
    both.topic("Sub", "chat/lobby")
    none.topic("Sub", "other")
    for client in (one, both, none):
        client.received()
    publisher.payload("Pub", "chat/lobby", b"hello")
    assert publisher.ack().recipients == 2
    for client in (one, both):
        (message,) = client.messages()
        assert (message.topic, message.payload()) == ("chat/lobby", b"hello")
    assert none.messages() == []


def test_the_publisher_hears_itself_before_its_ack(bus):
    client = bus.client()
    client.topic("Sub", "a")
    client.payload("Pub", "a")
    assert client.kinds() == ["Ack", "Pub", "Ack"]


def test_a_subscription_made_in_the_same_batch_counts(bus):
    client = bus.client()
    sub = encode_frame(1, topic_content("Sub", "a"))
    pub = encode_frame(2, payload_content("Pub", "a", encode_data(b"x" * 30), False))
    unsub = encode_frame(3, topic_content("Unsub", "a"))
    client.send(pub + sub + pub + unsub + pub)
    assert [m.recipients for m in client.messages() if m.kind == "Ack"] == [0, None, 1, None, 0]


def test_many_recipients_are_counted_right(bus):
    for count in range(1, 31):
        bus.client().topic("Sub", "a")
        publisher = bus.client()
        publisher.payload("Pub", "a", b"x" * 20)
        assert publisher.ack().recipients == count


def test_bytes_and_arrays_are_relayed_as_they_came(bus):
    reader, writer = bus.client(), bus.client()
    reader.topic("Sub", "a")
    reader.received()
    payload = bytes(range(256)) * 3
    for data in (array_of(payload), encode_data(payload), b"\x9f\x18\xff\x01\xff", b"\xc1\x41x"):
        for compressed in (False, True):
            writer.say(payload_content("Pub", "a", data, compressed))
            (message,) = reader.messages()
            assert (message.data, message.compressed) == (data, compressed)


def test_server_ids_come_from_one_counter_and_grow_through_every_width(bus):
    reader, writer = bus.client(), bus.client()
    reader.topic("Sub", "a")
    reader.received()
    for start in (20, 250, 65_530, 2**32 - 3):
        bus.room.next_id = start
        seen = []
        for _ in range(6):
            writer.payload("Pub", "a", b"x" * 30)
            seen += [m.id for m in reader.messages()] + [m.id for m in writer.messages()]
        assert seen == [(start + n) % 2**32 for n in range(12)]


def test_a_topic_longer_than_a_head_byte_holds_works_too(bus):
    reader, writer = bus.client(), bus.client()
    for length in (1, 23, 24, 100, 255, 256, 3000):
        topic = "t" * length
        reader.topic("Sub", topic)
        writer.payload("Pub", topic, b"x" * 40)
        assert [m.topic for m in reader.messages() if m.kind == "Pub"] == [topic]
        assert writer.ack().recipients == 1


@pytest.mark.parametrize("kind", ["Sub", "Unsub", "Srv", "Unsrv", "Pub", "Req"])
@pytest.mark.parametrize("topic", ["", "A", "a//b", "é" * 30, "/".join("a" * 300), "*/" * 16 + "*"])
def test_a_bad_topic_is_refused_and_the_connection_goes_on(bus, kind, topic):
    client = bus.client()
    if kind in ("Pub", "Req"):
        client.payload(kind, topic, b"x" * 30)
    else:
        client.topic(kind, topic)
    assert client.ack().error == invalid_topic(topic)
    client.unit("KeepAlive")
    assert client.ack().error is None


def test_documented_matching_is_a_setting(make_bus):
    bus = make_bus(options=T2Options(matching="documented"))
    reader, writer = bus.client(), bus.client()
    reader.topic("Sub", "**")
    writer.payload("Pub", "*/alice")
    assert writer.ack().recipients == 1
    bus = make_bus()
    reader, writer = bus.client(), bus.client()
    reader.topic("Sub", "**")
    writer.payload("Pub", "*/alice")
    assert writer.ack().recipients == 0


def test_bus_kill_is_an_ordinary_topic(bus):
    reader, writer = bus.client(), bus.client()
    reader.topic("Sub", "bus/kill")
    for topic in ("bus/kill", "bus/*", "*/*", "**", "**/kill", "bus/**", "*/kill"):
        writer.payload("Pub", topic)
        assert writer.ack().recipients == 1


def test_a_frame_that_its_new_id_would_make_too_large_is_not_delivered(bus):
    reader, writer = bus.client(), bus.client()
    reader.topic("Sub", "a")
    reader.received()
    room = MAX_BODY - len(encode_frame(1, payload_content("Pub", "a", b"", False))[4:])
    largest = b"\x5a" + (room - 5).to_bytes(4, "big") + bytes(room - 5)
    writer.say(payload_content("Pub", "a", largest, False))
    assert writer.ack().error == BusError(
        "DeliveryFailed", (1, "the message is larger than a frame")
    )
    assert reader.messages() == []
    smaller = b"\x5a" + (room - 9).to_bytes(4, "big") + bytes(room - 9)
    bus.room.next_id = 2**32 - 2
    writer.say(payload_content("Pub", "a", smaller, False))
    assert writer.ack().recipients == 1
    assert len(reader.received()) <= MAX_BODY + 4


def test_a_slow_subscriber_loses_and_nobody_waits(make_bus):
    bus = make_bus(bounds=Bounds(pending_bytes=4000, share_bytes=2000, high_water=1000))
    slow, quick, writer = bus.client(), bus.client(), bus.client()
    for client in (slow, quick):
        client.topic("Sub", "a")
        client.received()
    slow.tap.stuck = True
    counts = []
    for _ in range(30):
        writer.payload("Pub", "a", b"x" * 400)
        counts.append(writer.ack().recipients)
    assert counts[0] == 2
    assert counts[-1] == 1
    assert len(quick.messages()) == 30
    slow.tap.unstick()
    assert len(slow.messages()) == counts.count(2)
    assert slow.connection.session.traffic.dropped == counts.count(1)


def test_a_slow_subscriber_is_disconnected_where_the_operator_says_so(make_bus):
    few = Bounds(pending_bytes=4000, share_bytes=2000, high_water=1000)
    bus = make_bus(bounds=replace(few, slow_subscriber="disconnect"))
    slow, quick, writer = bus.client(), bus.client(), bus.client()
    for client in (slow, quick):
        client.topic("Sub", "a")
        client.received()
    slow.tap.stuck = True
    for _ in range(30):
        writer.payload("Pub", "a", b"x" * 400)
    assert slow.closed
    assert not quick.closed
    assert len(quick.messages()) == 30


# -- requests --


def test_a_request_goes_to_the_owner_and_its_answer_back(bus):
    server, client = bus.client(), bus.client()
    server.topic("Srv", "echo")
    server.received()
    asked = client.payload("Req", "echo", b"PING" * 10)
    assert client.kinds() == ["Ack"]
    (request,) = server.messages()
    assert (request.kind, request.payload()) == ("Req", b"PING" * 10)
    server.respond(request.id, b"PONG" * 10)
    assert server.ack().error is None
    (response,) = client.messages()
    assert (response.req_id, response.status, response.payload()) == (asked, "Ok", b"PONG" * 10)


def test_an_answer_counts_once_and_only_from_the_asked(bus):
    server, client, stranger = bus.client(), bus.client(), bus.client()
    server.topic("Srv", "echo")
    client.payload("Req", "echo", b"x" * 30)
    request = server.messages()[-1]
    client.received()
    stranger.respond(request.id)
    assert stranger.ack().error == BusError("InvalidRequestId")
    server.respond(request.id, b"y" * 30)
    server.respond(request.id, b"z" * 30)
    assert [m.error for m in server.messages()] == [None, BusError("InvalidRequestId")]
    assert [m.payload() for m in client.messages()] == [b"y" * 30]


@pytest.mark.parametrize("status", ["Ok", "Timeout"])
@pytest.mark.parametrize("size", [0, 30, 3000])
def test_status_and_payload_of_an_answer_are_relayed_as_given(bus, status, size):
    server, client = bus.client(), bus.client()
    server.topic("Srv", "echo")
    client.payload("Req", "echo", b"x" * 30)
    request = server.messages()[-1]
    client.received()
    data = array_of(bytes(n % 256 for n in range(size)))
    server.say(response_content(encode_uint(request.id), status, data, True))
    (response,) = client.messages()
    assert (response.status, response.data, response.compressed) == (status, data, True)


def test_a_claim_is_exclusive_and_can_be_given_up(bus):
    first, second = bus.client(), bus.client()
    first.topic("Srv", "a")
    first.topic("Srv", "a")
    assert [m.error for m in first.messages()] == [None, None]
    second.topic("Srv", "a")
    assert second.ack().error == BusError("TopicAlreadyClaimed")
    second.topic("Unsrv", "a")
    second.topic("Srv", "a")
    assert [m.error for m in second.messages()] == [None, BusError("TopicAlreadyClaimed")]
    first.topic("Unsrv", "a")
    second.topic("Srv", "a")
    assert second.ack().error is None
    first.hang_up()
    second.hang_up()
    third = bus.client()
    third.topic("Srv", "a")
    assert third.ack().error is None


def test_nobody_answers_within_thirty_seconds(bus):
    server, client = bus.client(), bus.client()
    server.topic("Srv", "echo")
    asked = client.payload("Req", "echo", b"x" * 30)
    request = server.messages()[-1]
    client.received()
    bus.pass_time(29)
    assert client.messages() == []
    bus.pass_time(1)
    (response,) = client.messages()
    assert (response.req_id, response.status, response.payload()) == (asked, "Timeout", b"")
    server.respond(request.id)
    assert server.ack().error == BusError("InvalidRequestId")
    bus.pass_time(40)
    assert client.messages() == []
    assert not bus.room.in_flight()


def test_requests_of_a_vanished_server_are_answered_at_once(bus):
    server, client = bus.client(), bus.client()
    server.topic("Srv", "echo")
    for _ in range(3):
        client.payload("Req", "echo", b"x" * 30)
    client.received()
    server.hang_up()
    assert [m.status for m in client.messages()] == ["Timeout"] * 3
    assert not bus.room.in_flight()


def test_a_vanished_requester_is_forgotten(bus):
    server, client = bus.client(), bus.client()
    server.topic("Srv", "echo")
    client.payload("Req", "echo", b"x" * 30)
    request = server.messages()[-1]
    client.hang_up()
    server.respond(request.id, b"x" * 30)
    assert server.ack().error == BusError("InvalidRequestId")


def test_a_client_that_asks_itself_and_goes_leaves_nothing(bus):
    client = bus.client()
    client.topic("Srv", "echo")
    client.payload("Req", "echo", b"x" * 30)
    assert client.kinds() == ["Ack", "Req", "Ack"]
    client.hang_up()
    assert not bus.room.in_flight()


def test_ids_that_are_pending_are_not_given_again(bus):
    server, client = bus.client(), bus.client()
    server.topic("Srv", "echo")
    bus.room.next_id = 100
    client.payload("Req", "echo", b"x" * 30)
    bus.room.next_id = 100
    client.payload("Req", "echo", b"y" * 30)
    ids = [m.id for m in server.messages() if m.kind == "Req"]
    assert ids[0] == 100
    assert ids[1] != 100


@pytest.mark.parametrize("topic", ["nobody", "a/*", "**"])
def test_a_request_that_nobody_serves_is_refused_and_never_answered(bus, topic):
    client = bus.client()
    client.payload("Req", topic, b"x" * 30)
    assert client.ack().error == BusError("ServiceNotFound", (topic,))
    bus.pass_time(35)
    assert client.messages() == []


def test_a_stalled_server_does_not_hold_its_requesters(make_bus):
    bus = make_bus(
        bounds=Bounds(pending_bytes=3000, share_bytes=1500, high_water=500, write_timeout=99)
    )
    server, client = bus.client(), bus.client()
    server.topic("Srv", "echo")
    server.tap.stuck = True
    for _ in range(40):
        client.payload("Req", "echo", b"x" * 300)
    assert client.kinds() == ["Ack"] * 40
    client.payload("Pub", "other", b"x" * 30)
    assert client.ack().recipients == 0
    bus.pass_time(31)
    assert [m.status for m in client.messages()] == ["Timeout"] * 40


def test_answers_that_would_be_too_large_end_with_timeout(bus):
    server, client = bus.client(), bus.client()
    server.topic("Srv", "echo")
    client.next_id = 2**31
    client.payload("Req", "echo", b"x" * 30)
    request = server.messages()[-1]
    client.received()
    content = response_content(encode_uint(request.id), "Ok", b"", False)
    room = MAX_BODY - len(encode_frame(2, content)[4:])
    data = b"\x5a" + (room - 5).to_bytes(4, "big") + bytes(room - 5)
    server.say(response_content(encode_uint(request.id), "Ok", data, False))
    error = server.ack().error
    assert error is not None
    assert error.name == "DeliveryFailed"
    assert [m.status for m in client.messages()] == ["Timeout"]


# -- life --


def test_a_silent_connection_is_closed_after_ninety_seconds(bus):
    silent, dribbling, alive = bus.client(), bus.client(), bus.client()
    keep_alive = encode_frame(1, unit_content("KeepAlive"))
    for n in range(89):
        bus.pass_time(1)
        dribbling.send(keep_alive[:1] if n == 0 else b"")
        if n % 30 == 0:
            alive.unit("KeepAlive")
    assert not silent.closed
    bus.pass_time(2)
    assert silent.closed
    assert dribbling.closed
    assert not alive.closed
    assert alive.kinds() == ["Ack"] * 3


@pytest.mark.parametrize(
    ("setting", "identity", "peer", "allowed"),
    [
        ("local", ANONYMOUS, "127.0.0.1:5", True),
        ("local", ANONYMOUS, "[::1]:5", True),
        ("local", ANONYMOUS, "[::ffff:127.0.0.1]:5", True),
        ("local", ANONYMOUS, "unix", False),
        ("local", Identity("uid", "0"), "unix", True),
        ("local", Identity("local"), "memory", True),
        ("local", ANONYMOUS, "10.1.2.3:5", False),
        ("local", Identity("certificate", "ops"), "10.1.2.3:5", True),
        ("any", ANONYMOUS, "10.1.2.3:5", True),
        ("never", Identity("local"), "memory", False),
    ],
)
def test_stop_is_obeyed_from_those_who_may(make_bus, setting, identity, peer, allowed):
    stopped: list[bool] = []
    bus = make_bus(options=T2Options(stop=setting), on_stop=lambda: stopped.append(True))
    other, client = bus.client(), bus.client(identity, peer)
    client.unit("Stop")
    error = client.ack().error
    if allowed:
        assert error is None
        assert stopped == [True]
        assert client.closed
        assert other.closed
        assert bus.client().closed
    else:
        # A variant that the real client knows: it shows the text and goes on.
        assert error == BusError("RequestFailed", ("this client may not stop the bus",))
        assert not stopped
        assert not client.closed


def test_what_follows_a_stop_is_ignored(bus):
    client = bus.client()
    keep_alive = unit_content("KeepAlive")
    client.send(encode_frame(1, unit_content("Stop")) + encode_frame(2, keep_alive))
    assert client.kinds() == ["Ack"]


def test_bad_input_closes_its_connection_only_and_is_counted(bus):
    bad, good = bus.client(), bus.client()
    bad.send(encode_frame(1, unit_content("KeepAlive")) + b"\0\0\0\x01\0")
    assert bad.closed
    assert bad.kinds() == ["Ack"], "what came before is still answered"
    bad.settle()
    assert bus.connections.ended["protocol error"] == 1
    good.unit("KeepAlive")
    assert good.kinds() == ["Ack"]


@pytest.mark.parametrize("length", [MAX_BODY + 1, 1 << 24, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
@pytest.mark.parametrize("after", [b"", b"\xa2bid", b"\xa2bid\x01gcontent" * 20])
def test_a_frame_over_the_limit_is_refused_by_its_header(bus, length, after):
    client = bus.client()
    client.send(length.to_bytes(4, "big") + after)
    assert client.closed
    assert client.messages() == []


@pytest.mark.parametrize("body", [b"", b"\x00", b"\xa0", b"\xa2bi"])
@pytest.mark.parametrize("after", [b"", b"\0\0\0\x17", b"\0" * 30])
def test_a_frame_too_short_for_a_message_is_refused(bus, body, after):
    client = bus.client()
    client.send(len(body).to_bytes(4, "big") + body + after)
    assert client.closed


@settings(max_examples=300, deadline=None)
@given(st.binary(min_size=1, max_size=200), st.lists(st.integers(0, 200), max_size=4))
def test_any_bytes_behind_the_beginning_of_a_message_are_survived(data, cuts):
    bus = Bus(ManualClock())
    for start in (
        b"\xa2bid\x01gcontent\xa1cPub\xa2etopic",
        b"\xa2bid\x1agcontent\xa1cRsp\xa3freq_id",
    ):
        client, other = bus.client(), bus.client()
        other.topic("Sub", "**")
        body = start + data
        client.send(len(body).to_bytes(4, "big") + body + body, [c for c in cuts if c < len(body)])
        other.messages()
        assert not other.closed


def test_a_large_frame_in_small_pieces_is_held_once(bus):
    client = bus.client()
    frame = encode_frame(1, payload_content("Pub", "a", encode_data(bytes(900_000)), False))
    client.send(frame, range(0, len(frame), 4096))
    assert client.ack().recipients == 0
    assert len(client.connection.session._pieces) == 0


def test_traffic_is_counted(bus):
    reader, writer = bus.client(), bus.client()
    reader.topic("Sub", "a")
    for _ in range(3):
        writer.payload("Pub", "a", b"x" * 30)
    assert (writer.connection.session.traffic.messages_in) == 3
    assert (writer.connection.session.traffic.messages_out) == 3
    assert (reader.connection.session.traffic.messages_out) == 4
    assert reader.connection.session.traffic.bytes_out == len(reader.received())


@pytest.mark.parametrize(
    ("head", "verdict"),
    [
        (b"", False),
        (b"\0", None),
        (b"\0\0\0\x17", None),
        (b"\0\0\0\x17\xa2", True),
        (b"\0\0\0\x17\xbf", True),
        (b"\0\0\0\x17\xd9", True),
        (b"\0\0\0\x17\x0a", False),
        (b"\0\x11\0\0\xa2", False),
        (b"GET /", False),
        (b"PBUS\x01", False),
    ],
)
def test_the_first_bytes_tell(head, verdict):
    assert sniff(head) is verdict


# -- policy --


class Rules:
    """Anonymous clients may do nothing with names that begin with `secret`."""

    epoch = 1

    def may(self, identity: Identity, verb: Verb, name: str) -> bool:
        return identity != ANONYMOUS or not name.startswith("secret")


def test_the_policy_is_asked_and_its_refusal_told(clock):
    bus = Bus(clock, router=Router(clock, Rules()))
    owner, client = bus.client(Identity("token", "me")), bus.client()
    owner.topic("Srv", "secret/a")
    owner.topic("Sub", "secret/a")
    assert [m.error for m in owner.messages()] == [None, None]
    for kind in ("Sub", "Srv"):
        client.topic(kind, "secret/a")
    for kind in ("Pub", "Req"):
        client.payload(kind, "secret/a", b"x" * 30)
    errors = [m.error for m in client.messages()]
    assert [e.name for e in errors if e] == ["InvalidTopicString"] * 3 + ["ServiceNotFound"]
    assert owner.messages() == []


# -- other wires --


class Foreign(Endpoint):
    """A party of another wire, in this process."""

    wire = "test"

    def __init__(self, bus: Bus) -> None:
        super().__init__(Identity("local"))
        self.router = bus.router
        self.calls: list[Call] = []
        self.replies: list[Reply] = []
        self.publications: list[Publication] = []
        if "test" not in bus.router._subscriptions:
            bus.router.add_wire("test", PATTERNS)
        bus.router.attach(self)

    def deliver_call(self, call: Call) -> None:
        self.calls.append(call)

    def deliver_reply(self, reply: Reply) -> None:
        self.replies.append(reply)

    def deliver_publication(self, publication: Publication) -> bool:
        self.publications.append(publication)
        return True

    def close(self, reason: str) -> None:
        self.closed = True


def test_publications_cross_wires_in_both_directions(bus):
    foreign, client = Foreign(bus), bus.client()
    bus.router.subscribe(foreign, "price/**", "price/**")
    for data, compressed in [(array_of(b"12"), False), (encode_data(b"not gzip"), True)]:
        client.say(payload_content("Pub", "price/eth", data, compressed))
        assert client.ack().recipients == 1
    assert [p.payload for p in foreign.publications] == [b"12", b"not gzip"]
    assert [p.name for p in foreign.publications] == ["price/eth"] * 2
    client.topic("Sub", "news/**")
    client.received()
    for name in ("news/a", "news/Bad-Name", "other"):
        bus.router.publish(Publication(foreign, name, name, b"hello"))
    (message,) = client.messages()
    assert (message.kind, message.topic, message.payload()) == ("Pub", "news/a", b"hello")
    assert bus.router.publish(Publication(foreign, "news/a", "news/a", bytes(MAX_BODY))) == 0


def test_a_request_is_answered_by_another_wire(bus):
    foreign, client = Foreign(bus), bus.client()
    bus.router.register(foreign, "wallet/balance", "wallet/balance")
    asked = client.payload("Req", "wallet/balance", b"who")
    assert client.ack().error is None
    (call,) = foreign.calls
    assert (call.name, call.payload) == ("wallet/balance", b"who")
    assert call.deadline == pytest.approx(bus.clock.monotonic() + 30)
    bus.router.reply(Reply(call, b"4", final=False))
    bus.router.reply(Reply(call, b"2"))
    (response,) = client.messages()
    assert (response.req_id, response.status, response.payload()) == (asked, "Ok", b"42")


@pytest.mark.parametrize(
    ("end", "text"),
    [
        ("fail", b"broken"),
        ("gone", b"service disconnected before it answered"),
        ("late", b""),
        ("large", b"the reply is larger than a T2 frame"),
    ],
)
def test_a_request_that_another_wire_fails_gets_its_timeout_with_the_reason(bus, end, text):
    foreign, client = Foreign(bus), bus.client()
    bus.router.register(foreign, "a", "a")
    client.payload("Req", "a", b"x")
    client.received()
    (call,) = foreign.calls
    if end == "fail":
        bus.router.reply(Reply(call, b"broken", Status.FAILED))
    elif end == "gone":
        bus.router.detach(foreign)
    elif end == "late":
        bus.pass_time(31)
    else:
        bus.router.reply(Reply(call, bytes(MAX_BODY + 1), final=False))
        assert not bus.router.reply(Reply(call, b"x"))
    (response,) = client.messages()
    assert (response.status, response.payload()) == ("Timeout", text)


def test_a_call_from_another_wire_becomes_a_request(bus):
    foreign, server = Foreign(bus), bus.client()
    server.topic("Srv", "echo")
    server.received()

    def last() -> Status:
        return foreign.replies[-1].status

    def call(payload: bytes = b"hi") -> Call:
        made = Call(foreign, "echo", payload)
        bus.router.call(made)
        return made

    call()
    (request,) = server.messages()
    assert (request.kind, request.topic, request.payload()) == ("Req", "echo", b"hi")
    server.respond(request.id, b"ho")
    assert server.ack().error is None
    assert [(r.status, r.payload) for r in foreign.replies] == [(Status.OK, b"ho")]

    call()
    server.respond(server.messages()[0].id, status="Timeout")
    assert last() is Status.TIMED_OUT
    server.received()

    bus.router.cancel(call())
    server.respond(server.messages()[0].id)
    assert server.ack().error == BusError("InvalidRequestId")

    call(bytes(MAX_BODY))
    assert last() is Status.TOO_LARGE

    call()
    bus.pass_time(30)
    assert last() is Status.TIMED_OUT
    call()
    server.hang_up()
    assert last() is Status.GONE
    assert not bus.room.in_flight()


def test_a_draining_node_takes_no_new_requests(bus):
    server, client = bus.client(), bus.client()
    server.topic("Srv", "echo")
    client.payload("Req", "echo", b"x" * 30)
    client.received()
    request = server.messages()[-1]
    bus.router.drain()
    client.payload("Req", "echo", b"x" * 30)
    error = client.ack().error
    assert error == BusError("RequestFailed", ("the node is stopping",))
    server.respond(request.id, b"y" * 30)
    assert client.kinds() == ["Rsp"]


# -- the two ways give the same --

contents = st.one_of(
    st.sampled_from(["a", "b/c", "*", "a/**", "**", "B", "x" * 30]).flatmap(
        lambda topic: st.sampled_from(["Pub", "Req"]).map(
            lambda kind: payload_content(kind, topic, array_of(b"\x18hello\xff"), False)
        )
    ),
    st.sampled_from(["Sub", "Unsub", "Srv", "Unsrv"]).flatmap(
        lambda kind: st.sampled_from(["a", "b/c", "a/*", "**", "x" * 30]).map(
            lambda topic: topic_content(kind, topic)
        )
    ),
    st.integers(0, 40).map(
        lambda n: response_content(encode_uint(n), "Ok", encode_data(b"pong" * 8), False)
    ),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 70_000), contents), max_size=25))
def test_the_fast_way_and_the_full_way_give_the_same_bytes(script):
    """A tag in front of a frame is legal and sends it the full way."""

    def run(tag: bytes) -> list[bytes]:
        bus = Bus(ManualClock())
        clients = [bus.client() for _ in range(3)]
        for who, number, content in script:
            body = tag + encode_frame(number, content)[4:]
            clients[who].send(len(body).to_bytes(4, "big") + body)
        return [client.received() for client in clients]

    assert run(b"") == run(b"\xc1")


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_mutation_of_one_clients_bytes_harms_another(data):
    bus = Bus(ManualClock())
    bad, good = bus.client(), bus.client()
    good.topic("Sub", "**")
    good.topic("Srv", "a")
    good.received()
    body = bytearray(encode_frame(7, data.draw(contents)))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(4, len(body) - 1))] = data.draw(st.integers(0, 255))
    bad.send(bytes(body))
    # Whatever reached the other one is a message that a client of this wire can read.
    good.messages()
    good.unit("KeepAlive")
    assert good.kinds() == ["Ack"]
    assert not good.closed


def test_an_answer_in_an_unusual_form_is_passed_on_all_the_same(bus):
    server, client = bus.client(), bus.client()
    server.topic("Srv", "echo")
    asked = client.payload("Req", "echo", b"x" * 30)
    request = server.messages()[-1]
    client.received()
    content = response_content(encode_uint(request.id), "Ok", encode_data(b"pong"), False)
    body = b"\xc1" + encode_frame(9, content)[4:]
    server.send(len(body).to_bytes(4, "big") + body)
    assert server.ack().error is None
    (response,) = client.messages()
    assert (response.req_id, response.payload()) == (asked, b"pong")
    assert not bus.room.in_flight()


def test_a_request_that_its_new_id_would_make_too_large_is_refused(bus):
    server, client = bus.client(), bus.client()
    server.topic("Srv", "echo")
    server.received()
    room = MAX_BODY - len(encode_frame(1, payload_content("Req", "echo", b"", False))[4:])
    data = b"\x5a" + (room - 5).to_bytes(4, "big") + bytes(room - 5)
    client.say(payload_content("Req", "echo", data, False))
    error = client.ack().error
    assert error is not None
    assert error.name == "DeliveryFailed"
    assert server.messages() == []


def test_what_was_queued_for_a_peer_goes_out_before_what_finds_it_congested(make_bus):
    bus = make_bus(bounds=Bounds(pending_bytes=9000, share_bytes=4000, high_water=600))
    reader, writer = bus.client(), bus.client()
    reader.topic("Sub", "a")
    reader.received()
    reader.tap.stuck = True
    one = encode_frame(1, payload_content("Pub", "a", encode_data(b"1" * 500), False))
    two = encode_frame(2, payload_content("Pub", "a", encode_data(b"2" * 500), False))
    writer.send(one + two)
    reader.connection.session.enqueue(topic_content("Sub", "x"))
    reader.connection.session.room.flush()
    writer.send(two + one)
    reader.tap.unstick()
    kinds = reader.received()
    assert kinds.index(b"1" * 500) < kinds.index(b"2" * 500)


def test_a_call_for_a_service_that_does_not_read_fails(make_bus):
    bus = make_bus(bounds=Bounds(pending_bytes=900, share_bytes=500, high_water=100))
    foreign, server = Foreign(bus), bus.client()
    server.topic("Srv", "echo")
    server.tap.stuck = True
    for _ in range(8):
        bus.router.call(Call(foreign, "echo", b"x" * 300))
    assert {reply.status for reply in foreign.replies} == {Status.STALLED}
    assert bus.room.in_flight() + len(foreign.replies) == 8


def test_nothing_is_read_after_the_end(bus):
    client = bus.client()
    client.unit("Stop")
    client.received()
    client.connection.data_received(encode_frame(2, unit_content("KeepAlive")))
    assert client.messages() == []


def test_the_cache_of_routes_is_bounded_in_topics_and_in_recipients(bus, monkeypatch):
    monkeypatch.setattr("polybus.protocols.t2.room.MAX_ROUTES", 3)
    monkeypatch.setattr("polybus.protocols.t2.room.MAX_ROUTED", 10)
    client = bus.client()
    routes = client.connection.session.routes
    for number in range(10):
        client.payload("Pub", f"topic_{number}", b"x" * 30)
        assert client.ack().recipients == 0
        assert len(routes) <= 3
    for _ in range(6):
        bus.client().topic("Sub", "**")
    for number in range(10):
        client.payload("Pub", f"topic_{number}", b"x" * 30)
        assert client.ack().recipients == 6
        assert len(routes) == 1


@pytest.mark.parametrize(("kind", "letter"), [("Sub", "A"), ("Pub", "é"), ("Req", "a")])
def test_an_error_that_quotes_a_topic_of_a_whole_frame_fits_a_frame(bus, kind, letter):
    client = bus.client()
    topic = letter * ((MAX_BODY - 70) // len(letter.encode()))
    if kind == "Sub":
        client.topic(kind, topic)
    else:
        client.payload(kind, topic)
    data = client.received()
    assert MAX_BODY - 200 < len(data) <= MAX_BODY + 4


def test_a_client_waits_for_a_bounded_number_of_answers(bus, monkeypatch):
    if relay.COMPILED:
        # The bound is a constant of the compiled module.
        limit = relay.MAX_ASKED
    else:
        monkeypatch.setattr(relay, "MAX_ASKED", limit := 5)
    server, greedy, modest = bus.client(), bus.client(), bus.client()
    server.topic("Srv", "echo")
    frame = encode_frame(1, payload_content("Req", "echo", encode_data(b"x" * 30), False))
    greedy.send(frame * limit)
    greedy.received()
    greedy.payload("Req", "echo", b"x" * 30)
    assert greedy.ack().error == BusError(
        "RequestFailed", ("too many requests wait for their answers",)
    )
    modest.payload("Req", "echo", b"x" * 30)
    assert modest.ack().error is None
    server.respond(server.messages()[1].id)
    assert greedy.kinds() == ["Rsp"]
    greedy.payload("Req", "echo", b"x" * 30)
    assert greedy.ack().error is None


def test_requests_of_a_client_that_goes_are_forgotten_at_once(bus):
    server, other, client = bus.client(), bus.client(), bus.client()
    server.topic("Srv", "a")
    client.topic("Srv", "b")
    for _ in range(3):
        client.payload("Req", "a", b"x" * 30)
        other.payload("Req", "a", b"x" * 30)
        client.payload("Req", "b", b"x" * 30)
    client.hang_up()
    assert bus.room.in_flight() == 3
    assert len(other.connection.session.asked) == 3
    other.received()
    bus.pass_time(31)
    assert [m.status for m in other.messages()] == ["Timeout"] * 3
    assert not other.connection.session.asked


@pytest.fixture
def costly(bus):
    """A bus with so many subscriptions that a `**` is a burden."""
    for n in range(40):
        reader = bus.client()
        for m in range(40):
            reader.topic("Sub", f"r{n}/u{m}/x")
        reader.received()
    return bus


@pytest.mark.parametrize("tag", [b"", b"\xc1"], ids=["the fast way", "the full way"])
def test_a_publisher_of_costly_topics_rests_and_nobody_else_does(costly, monkeypatch, tag):
    monkeypatch.setattr(toll, "VISITS_PER_S", 20_000)
    monkeypatch.setattr(toll, "MAX_DEBT", 60_000)
    greedy, modest = costly.client(), costly.client()

    def frame(number: int) -> bytes:
        content = payload_content("Pub", f"**/no{number}", encode_data(b"x" * 30), False)
        body = tag + encode_frame(number, content)[4:]
        return bytes(len(body).to_bytes(4, "big") + body)

    frames = b"".join(frame(number) for number in range(1, 101))
    greedy.send(frames[:-10])
    first = len(greedy.messages())
    assert 1 < first < 100
    assert not greedy.tap.reading
    greedy.send(frames[-10:])  # read before the pause took hold
    assert greedy.messages() == []
    modest.payload("Pub", "r1/u1/x", b"x" * 30)
    assert modest.ack().recipients == 1
    seen = first
    for _ in range(200):
        costly.pass_time(1)
        acks = greedy.messages()
        assert len(acks) <= first
        seen += len(acks)
        if seen == 100:
            break
    assert seen == 100
    costly.pass_time(4)
    assert greedy.tap.reading
    assert not greedy.closed


def test_bad_input_that_had_to_wait_closes_its_connection(costly, monkeypatch):
    monkeypatch.setattr(toll, "VISITS_PER_S", 1000)
    monkeypatch.setattr(toll, "MAX_DEBT", 3000)
    client = costly.client()
    client.payload("Pub", "**/no", b"x" * 30)
    client.send(b"\xff" * 20)
    assert not client.closed
    costly.pass_time(4)
    client.settle()
    assert costly.connections.ended["protocol error"] == 1


def test_topics_of_ordinary_cost_are_free(costly):
    client = costly.client()
    for n in range(500):
        client.payload("Pub", f"r{n}/u{n}/x/{n}", b"x" * 30)
    assert client.connection.session._toll.debt == 0


def test_a_publisher_of_what_unpacks_to_very_much_rests(bus, monkeypatch):
    foreign, client = Foreign(bus), bus.client()
    foreign.deliver_publication = lambda publication: bool(publication.payload)  # type: ignore[method-assign]
    bus.router.subscribe(foreign, "a", "a")
    bomb = encode_data(gzip.compress(bytes(32 << 20)))
    frame = encode_frame(1, payload_content("Pub", "a", bomb, True))
    plain = encode_frame(2, payload_content("Pub", "a", encode_data(b"x" * 6000), False))
    client.send(plain * 100 + frame * 8)
    acks = 100 + 4  # 65,536 visits each: the fourth one is beyond the second's worth
    assert client.kinds() == ["Ack"] * acks
    assert not client.tap.reading
    bus.pass_time(3)
    assert client.kinds() == ["Ack"] * 4


def test_requests_of_and_to_clients_that_go_end_in_slices_and_each_once(bus):
    turns = Turns(bus.router.chores)
    owner, stays, leaves = bus.client(), bus.client(), bus.client()
    owner.topic("Srv", "a")
    for _ in range(2 * SLICE):
        stays.payload("Req", "a", b"x" * 30)
        leaves.payload("Req", "a", b"x" * 30)
    stays.received()
    leaves.hang_up()
    owner.hang_up()
    other = bus.client()
    assert other.topic("Srv", "a")
    assert other.ack().error is None
    stays.payload("Req", "a", b"again")
    assert [m.kind for m in other.messages()] == ["Req"]
    turns.all()
    statuses = [m.status for m in stays.messages() if m.kind == "Rsp"]
    assert statuses == ["Timeout"] * (2 * SLICE)
    assert bus.room.in_flight() == 1
    assert len(stays.connection.session.asked) == 1
    assert not leaves.connection.session.asked
    assert not owner.connection.session.serving
