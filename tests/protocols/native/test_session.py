"""The node's side of the native wire, fed with bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polybus.core import toll
from polybus.core.chores import SLICE
from polybus.core.endpoint import Identity
from polybus.core.subscriptions import PATTERNS
from polybus.errors import (
    Draining,
    InvalidName,
    LimitExceeded,
    LocalProtocolError,
    NameTaken,
    NoSuchService,
    NotAuthorized,
    RemoteProtocolError,
)
from polybus.model.message import Call, Publication, Reply, Status
from polybus.protocols.native import wire
from polybus.protocols.native.questions import MAX_LISTS
from polybus.protocols.native.settings import Settings
from polybus.transports.connection import Connection
from polybus.transports.outbox import Bounds
from tests.core.party import Party, Turns
from tests.protocols.native.room import HELLO, Client, Room


def error_in(frame: wire.Frame) -> type:
    assert frame.kind == wire.ERROR
    return type(wire.parse_error(frame))


def meta_of(frame: wire.Frame) -> dict[str, object]:
    return wire.parse_meta(frame.meta, dict[str, object])


# -- greeting --


def test_a_greeting_is_answered_with_preface_version_limit_and_identity():
    client = Room().client()
    client.send(HELLO)
    data = client.received()
    assert data.startswith(wire.PREFACE)
    (frame,) = wire.Frames().feed(data[len(wire.PREFACE) :])
    hello = wire.parse_meta(wire.parse(frame).meta, wire.Hello)
    assert hello.versions == [1]
    assert hello.identity == "local"
    assert hello.max_frame == wire.MAX_FRAME
    assert hello.features == []


def test_requests_may_follow_the_greeting_without_waiting_for_it():
    client = Room().client()
    client.send(HELLO + wire.encode(wire.PING, 5))
    frames = list(wire.Frames().feed(client.received()[len(wire.PREFACE) :]))
    assert [wire.parse(f).kind for f in frames] == [wire.HELLO, wire.PONG]


def test_another_framing_version_gets_our_preface_and_the_end():
    client = Room().client()
    client.send(b"PBUS\x07")
    assert client.received().startswith(wire.PREFACE)
    assert client.closed


def test_no_version_in_common_is_said_and_ends_the_connection():
    client = Room().client()
    meta = wire.encode_meta(wire.Hello(versions=[7, 8]))
    client.send(wire.PREFACE + wire.encode(wire.HELLO, 1, meta=meta))
    assert b"no version in common" in client.received()
    assert client.closed


@pytest.mark.parametrize("kind", [wire.CALL, wire.PING, wire.PRODUCE])
def test_the_first_frame_must_be_a_hello(kind: int):
    client = Room().client()
    client.send(wire.PREFACE + wire.encode(kind, 1, "a"))
    assert client.closed


def test_a_second_hello_is_refused():
    client = Room().connect()
    client.say(wire.HELLO, 2, meta={"versions": [1]})
    assert client.closed


def test_a_client_that_does_not_greet_is_closed_after_a_while():
    room = Room()
    client = room.client()
    client.send(wire.PREFACE)
    room.pass_time(9)
    assert not client.closed
    room.pass_time(2)
    assert client.closed


def test_a_token_decides_who_a_client_is():
    def identify(connection: Connection, token: str) -> Identity:
        if token != "secret":
            raise NotAuthorized("anonymous", "connect", "this node")
        return Identity("token", "ann")

    room = Room(settings=Settings(identify=identify))
    good, bad = room.client(), room.client()
    for client, token in ((good, "secret"), (bad, "guess")):
        meta = wire.encode_meta(wire.Hello(versions=[1], token=token))
        client.send(wire.PREFACE + wire.encode(wire.HELLO, 1, meta=meta))
    assert b"token:ann" in good.received()
    assert not good.closed
    assert b"may not connect" in bad.received()
    assert bad.closed


# -- services and calls --


def test_a_call_reaches_its_service_and_the_reply_its_caller_with_only_the_id_changed():
    room = Room()
    service, caller = room.connect(), room.connect()
    service.serve("calc/add")
    meta = {"headers": {"trace": "x"}, "of the future": 1}
    caller.say(wire.CALL, 77, "calc/add", b"[1,2]", arg=5000, meta=meta)
    call = service.one()
    assert call.id != 77
    assert (call.kind, call.name, call.payload, call.arg) == (wire.CALL, "calc/add", b"[1,2]", 5000)
    assert meta_of(call) == meta
    service.say(wire.REPLY, call.id, "", b"3", meta={"headers": {"a": "b"}})
    reply = caller.one()
    assert (reply.kind, reply.id, reply.payload, reply.arg) == (wire.REPLY, 77, b"3", Status.OK)
    assert meta_of(reply) == {"headers": {"a": "b"}}
    assert room.router.calls.pending == 0


def test_frames_of_one_read_for_one_peer_go_out_in_one_write_and_in_order():
    room = Room()
    service, caller = room.connect(), room.connect()
    service.serve("s")
    before = service.tap.writes
    calls = [wire.encode(wire.CALL, ident, "s", b"%d" % ident) for ident in range(1, 6)]
    caller.send(b"".join(calls) + wire.encode(wire.CANCEL, 2))
    assert service.tap.writes == before + 1
    frames = service.heard()
    assert [frame.kind for frame in frames] == [wire.CALL] * 5 + [wire.CANCEL]
    assert frames[5].id == frames[1].id
    before = caller.tap.writes
    replies = [wire.encode(wire.REPLY, frame.id, "", frame.payload) for frame in frames[:5]]
    service.send(b"".join(replies))
    assert caller.tap.writes == before + 1
    assert [frame.payload for frame in caller.heard()] == [b"1", b"3", b"4", b"5"]


def test_callers_may_use_the_same_ids():
    room = Room()
    service, one, other = room.connect(), room.connect(), room.connect()
    service.serve("echo")
    one.say(wire.CALL, 1, "echo", b"one")
    other.say(wire.CALL, 1, "echo", b"other")
    for call in service.heard():
        service.say(wire.REPLY, call.id, "", call.payload)
    assert one.one().payload == b"one"
    assert other.one().payload == b"other"


def test_a_streamed_reply_comes_in_parts_and_in_order():
    room = Room()
    service, caller = room.connect(), room.connect()
    service.serve("s")
    caller.say(wire.CALL, 1, "s")
    ident = service.one().id
    for number in b"123":
        service.say(wire.REPLY, ident, "", bytes((number,)), flags=wire.MORE)
    service.say(wire.REPLY, ident)
    parts = caller.heard()
    assert [part.payload for part in parts] == [b"1", b"2", b"3", b""]
    assert [part.flags for part in parts] == [wire.MORE, wire.MORE, wire.MORE, 0]


def test_late_and_second_replies_are_ignored():
    room = Room()
    service, caller = room.connect(), room.connect()
    service.serve("s")
    caller.say(wire.CALL, 1, "s")
    ident = service.one().id
    service.say(wire.REPLY, ident, "", b"first")
    service.say(wire.REPLY, ident, "", b"second")
    service.say(wire.REPLY, 999999, "", b"never asked")
    assert caller.one().payload == b"first"
    assert not service.closed


def test_a_call_to_nobody_is_an_error_with_the_name():
    client = Room().connect()
    answer = client.ask(wire.CALL, 3, "no/body")
    error = wire.parse_error(answer)
    assert isinstance(error, NoSuchService)
    assert error.name == "no/body"
    assert answer.id == 3


def test_a_call_without_a_reply_gets_none_whatever_happens():
    room = Room()
    service, caller = room.connect(), room.connect()
    service.serve("log")
    caller.say(wire.CALL, 1, "log", b"x", flags=wire.NO_REPLY)
    caller.say(wire.CALL, 2, "nobody", b"x", flags=wire.NO_REPLY)
    ident = service.one().id
    service.say(wire.REPLY, ident, "", b"not wanted")
    assert caller.heard() == []
    assert room.router.calls.pending == 0


def test_an_id_that_is_still_in_use_is_a_protocol_error():
    room = Room()
    service, caller = room.connect(), room.connect()
    service.serve("s")
    caller.say(wire.CALL, 1, "s")
    caller.say(wire.CALL, 1, "s")
    assert caller.closed
    assert not service.closed


def test_a_service_that_goes_fails_its_pending_calls():
    room = Room()
    service, caller = room.connect(), room.connect()
    service.serve("s")
    caller.say(wire.CALL, 4, "s")
    service.hang_up()
    reply = caller.one()
    assert (reply.id, reply.arg) == (4, Status.GONE)
    assert error_in(caller.ask(wire.CALL, 5, "s")) is NoSuchService


def test_a_caller_that_goes_cancels_at_the_service():
    room = Room()
    service, caller = room.connect(), room.connect()
    service.serve("s")
    caller.say(wire.CALL, 4, "s")
    ident = service.one().id
    caller.hang_up()
    cancel = service.one()
    assert (cancel.kind, cancel.id) == (wire.CANCEL, ident)


def test_a_cancel_reaches_the_service_and_its_answer_nobody():
    room = Room()
    service, caller = room.connect(), room.connect()
    service.serve("s")
    caller.say(wire.CALL, 4, "s")
    ident = service.one().id
    caller.say(wire.CANCEL, 4)
    caller.say(wire.CANCEL, 12345)
    assert service.one().kind == wire.CANCEL
    service.say(wire.REPLY, ident, "", b"too late")
    assert caller.heard() == []
    caller.say(wire.CALL, 4, "s")
    assert service.one().kind == wire.CALL


def test_a_deadline_ends_the_call_on_both_sides():
    room = Room()
    service, caller = room.connect(), room.connect()
    service.serve("s")
    caller.say(wire.CALL, 4, "s", arg=1500)
    assert service.one().arg == 1500
    room.pass_time(1.4)
    assert caller.heard() == []
    room.pass_time(0.2)
    assert caller.one().arg == Status.TIMED_OUT
    assert service.one().kind == wire.CANCEL


def test_a_name_has_one_owner_until_it_is_given_up():
    room = Room()
    one, other = room.connect(), room.connect()
    one.serve("s")
    assert error_in(other.ask(wire.REGISTER, 2, "s")) is NameTaken
    assert meta_of(other.ask(wire.UNREGISTER, 3, "s")) == {"removed": False}
    assert meta_of(one.ask(wire.UNREGISTER, 2, "s")) == {"removed": True}
    assert other.ask(wire.REGISTER, 4, "s").kind == wire.OK


@pytest.mark.parametrize("name", ["", "a//b", "a/*", "a/\x00b", "x" * 5000])
def test_an_illegal_name_cannot_be_registered(name: str):
    client = Room().connect()
    assert error_in(client.ask(wire.REGISTER, 2, name)) is InvalidName


def test_a_stopping_node_says_goodbye_and_takes_nothing_new():
    room = Room()
    service, caller = room.connect(), room.connect()
    service.serve("s")
    caller.say(wire.CALL, 1, "s")
    ident = service.one().id
    room.router.drain()
    room.pass_time(1)
    room.pass_time(1)
    assert [frame.kind for frame in caller.heard()] == [wire.GOODBYE]
    assert error_in(caller.ask(wire.CALL, 2, "s")) is Draining
    assert error_in(caller.ask(wire.REGISTER, 3, "t")) is Draining
    service.say(wire.REPLY, ident, "", b"finished")
    assert caller.one().payload == b"finished"


def test_a_client_that_says_goodbye_loses_its_names_and_finishes_its_calls():
    room = Room()
    service, caller = room.connect(), room.connect()
    service.serve("s")
    caller.say(wire.CALL, 1, "s")
    ident = service.one().id
    assert service.ask(wire.GOODBYE, 9).kind == wire.OK
    assert error_in(caller.ask(wire.CALL, 2, "s")) is NoSuchService
    service.say(wire.REPLY, ident, "", b"finished")
    assert caller.one().payload == b"finished"


# -- other wires --


def test_a_goodbye_with_many_names_takes_some_turns_and_is_answered_after_the_last():
    room = Room()
    client, other = room.connect(), room.connect()
    for n in range(3 * SLICE):
        client.say(wire.REGISTER, 0, f"x{n}")
    turns = Turns(room.router.chores)
    client.say(wire.GOODBYE, 9)
    client.say(wire.GOODBYE, 10)
    assert client.heard() == []
    turns.all()
    assert [frame.id for frame in client.heard()] == [9, 10]
    assert len(room.router.services) == 0
    other.serve("x0")


def test_a_call_from_another_wire_is_translated_and_its_answer_too():
    room = Room()
    service, party = room.connect(), Party("other")
    room.router.attach(party)
    service.serve("s")
    deadline = room.clock.monotonic() + 2
    call = Call(party, "s", b"body", deadline=deadline, headers={"h": "v"})
    room.router.call(call)
    frame = service.one()
    assert (frame.name, frame.payload, frame.arg) == ("s", b"body", 2000)
    assert meta_of(frame) == {"headers": {"h": "v"}}
    service.say(wire.REPLY, frame.id, "", b"no", arg=Status.FAILED)
    (reply,) = party.replies
    assert (reply.status, reply.payload, reply.final) == (Status.FAILED, b"no", True)


def test_a_reply_from_another_wire_is_translated():
    room = Room()
    caller, party = room.connect(), Party("other")
    room.router.attach(party)
    room.router.register(party, "s", "s")
    caller.say(wire.CALL, 8, "s", b"body", meta={"headers": {"h": "v"}})
    (call,) = party.calls
    assert (call.name, call.payload, call.headers) == ("s", b"body", {"h": "v"})
    room.router.reply(Reply(call, b"one", final=False, headers={"p": "1"}))
    room.router.reply(Reply(call, b"two"))
    one, two = caller.heard()
    assert (one.id, one.payload, one.flags) == (8, b"one", wire.MORE)
    assert meta_of(one) == {"headers": {"p": "1"}}
    assert (two.id, two.payload, two.flags) == (8, b"two", 0)


def test_publications_cross_to_and_from_another_wire():
    room = Room()
    client, party = room.connect(), Party("other")
    room.router.add_wire("other", PATTERNS)
    room.router.attach(party)
    room.router.subscribe(party, "price/*", "price/*")
    client.say(wire.SUBSCRIBE, 1, "price/**")
    client.heard()
    client.say(wire.PUBLISH, 2, "price/eth", b"1", meta={"headers": {"a": "b"}})
    answers = {frame.kind: frame for frame in client.heard()}
    assert set(answers) == {wire.OK, wire.PUBLICATION}
    assert meta_of(answers[wire.OK]) == {"receivers": 2}
    (publication,) = party.publications
    assert (publication.name, publication.payload) == ("price/eth", b"1")
    assert publication.headers == {"a": "b"}
    room.router.publish(Publication(party, "price.btc", "price/btc", b"2", headers={"c": "d"}))
    frame = client.one()
    assert (frame.kind, frame.name, frame.payload) == (wire.PUBLICATION, "price/btc", b"2")
    assert meta_of(frame) == {"headers": {"c": "d"}}


# -- publications --


def test_a_publication_comes_once_however_many_patterns_match():
    room = Room()
    reader, writer = room.connect(), room.connect()
    for number, pattern in enumerate(("a/*", "a/**", "a/b"), 1):
        assert reader.ask(wire.SUBSCRIBE, number, pattern).kind == wire.OK
    assert meta_of(writer.ask(wire.PUBLISH, 1, "a/b", b"x")) == {"receivers": 1}
    frame = reader.one()
    assert (frame.kind, frame.id, frame.name, frame.payload) == (wire.PUBLICATION, 0, "a/b", b"x")


def test_publishing_with_wildcards_reaches_all_that_could_match():
    room = Room()
    reader, writer = room.connect(), room.connect()
    reader.ask(wire.SUBSCRIBE, 1, "a/b")
    assert meta_of(writer.ask(wire.PUBLISH, 1, "a/**", b"x")) == {"receivers": 1}
    assert reader.one().name == "a/**"


def test_a_publish_with_id_zero_is_not_answered():
    room = Room()
    writer = room.connect()
    writer.say(wire.PUBLISH, 0, "a/b", b"x")
    writer.say(wire.PUBLISH, 0, "a//b", b"x")
    assert writer.heard() == []
    assert not writer.closed


def test_after_unsubscribing_nothing_comes():
    room = Room()
    client = room.connect()
    client.ask(wire.SUBSCRIBE, 1, "a/**")
    assert meta_of(client.ask(wire.UNSUBSCRIBE, 2, "a/**")) == {"removed": True}
    assert meta_of(client.ask(wire.UNSUBSCRIBE, 3, "a/**")) == {"removed": False}
    assert meta_of(client.ask(wire.PUBLISH, 4, "a/b")) == {"receivers": 0}


@pytest.mark.parametrize("topic", ["", "a//b", "a/b*", "/".join(["*"] * 20)])
def test_an_illegal_pattern_is_refused(topic: str):
    client = Room().connect()
    assert error_in(client.ask(wire.SUBSCRIBE, 1, topic)) is InvalidName
    assert error_in(client.ask(wire.PUBLISH, 2, topic)) is InvalidName


# -- policy --


class Denying:
    epoch = 0

    def may(self, identity: Identity, verb: str, name: str) -> bool:
        return name == "allowed"


@pytest.mark.parametrize("kind", [wire.REGISTER, wire.CALL, wire.SUBSCRIBE, wire.PUBLISH])
def test_what_the_policy_refuses_is_an_error_with_verb_and_name(kind: int):
    client = Room(policy=Denying()).connect()
    error = wire.parse_error(client.ask(kind, 1, "forbidden"))
    assert isinstance(error, NotAuthorized)
    assert (error.name, error.identity) == ("forbidden", "local")
    assert client.ask(wire.REGISTER, 2, "allowed").kind == wire.OK


# -- bad input --


@pytest.mark.parametrize(
    "data",
    [
        bytes(4),
        b"\xff\xff\xff\xff",
        wire.encode(0x7F, 1),
        wire.encode(wire.OK, 1),
        wire.encode(wire.DELIVERY, 1),
        wire.encode(wire.REPLY, 1, arg=99),
        wire.encode(wire.CALL, 1, "a", meta=b"\xc1"),
        wire.encode(wire.CALL, 1).replace(b"\x12\x00\x00\x00", b"\x12\x00\x00\x09", 1),
        wire.encode(wire.CALL, 1, "aa").replace(b"aa", b"\xff\xfe"),
        wire.encode(wire.REGISTER, 1, "aa").replace(b"aa", b"\xff\xfe"),
        wire.encode(wire.PUBLISH, 1, "aa").replace(b"aa", b"\xff\xfe"),
        wire.encode(wire.ASK, 1, "topic/list", meta=b"\x01"),
    ],
)
def test_bad_input_is_said_and_ends_that_connection_only(data: bytes):
    room = Room()
    service, bad = room.connect(), room.connect()
    service.serve("s")
    bad.send(data)
    complaint = bad.one()
    assert (complaint.kind, complaint.id) == (wire.ERROR, 0)
    assert error_in(complaint) is RemoteProtocolError
    assert bad.closed
    bad.settle()
    assert room.connections.ended["protocol error"] == 1
    caller = room.connect()
    caller.say(wire.CALL, 1, "s")
    assert service.one().kind == wire.CALL


def test_an_unknown_question_is_an_error_and_not_the_end():
    client = Room().connect()
    assert error_in(client.ask(wire.ASK, 1, "weather")) is LocalProtocolError
    assert not client.closed


@pytest.mark.parametrize("kind", [wire.PRODUCE, wire.CONSUME, wire.FETCH, wire.ACK])
def test_a_node_without_topics_refuses_durable_verbs(kind: int):
    client = Room().connect()
    assert error_in(client.ask(kind, 1, "t")) is LocalProtocolError
    assert not client.closed


def scenario(room: Room, splits: list[int]) -> list[bytes]:
    """Everything a service and a caller hear when the caller's bytes are cut anywhere."""
    service, caller = room.connect(), room.connect()
    service.serve("s")
    service.ask(wire.SUBSCRIBE, 2, "p/**")
    data = b"".join(
        (
            wire.encode(wire.CALL, 1, "s", b"one"),
            wire.encode(wire.PUBLISH, 2, "p/q", b"two"),
            wire.encode(wire.CALL, 3, "nobody"),
            wire.encode(wire.PING, 4),
            wire.encode(wire.CALL, 5, "s", b"three" * 50),
            wire.encode(0x7F, 6),
            wire.encode(wire.PING, 7),
        )
    )
    caller.send(data, [min(cut, len(data)) for cut in splits])
    assert room.router.calls.pending == 2
    return [_without_ids(service.received()), caller.received()]


def _without_ids(data: bytes) -> bytes:
    # The ids that services see are the node's own count, which goes on from run to run.
    return b"".join(wire.with_id(frame, 0) for frame in wire.Frames().feed(data))


@settings(max_examples=40)
@given(st.lists(st.integers(0, 600), max_size=10))
def test_any_split_of_the_input_gives_the_same_output(cuts: list[int]):
    assert scenario(Room(), cuts) == scenario(Room(), [])


def test_byte_by_byte_gives_the_same_output():
    assert scenario(Room(), list(range(600))) == scenario(Room(), [])


# -- life and bounds --


def test_a_silent_client_is_pinged_and_then_closed():
    room = Room()
    client = room.connect()
    room.pass_time(1)
    room.pass_time(61)
    assert client.one().kind == wire.PING
    client.say(wire.PONG)
    room.pass_time(1)
    room.pass_time(179)
    assert not client.closed
    room.pass_time(2)
    assert client.closed


def test_a_ping_is_answered():
    assert Room().connect().ask(wire.PING, 9).kind == wire.PONG


def test_a_call_with_the_id_0_wants_no_answer():
    room = Room()
    service, caller = room.connect(), room.connect()
    service.serve("s")
    for _ in range(2):
        caller.say(wire.CALL, 0, "s", b"x")
    caller.say(wire.CALL, 0, "nobody")
    for call in service.heard():
        assert call.payload == b"x"
        service.say(wire.REPLY, call.id)
    assert caller.heard() == []
    assert not caller.closed
    assert room.router.calls.pending == 0


SMALL = Bounds(pending_bytes=3000, share_bytes=1000, high_water=500)


def stalled(room: Room) -> tuple[Client, Client]:
    """A service that does not read, with its queue full for this caller."""
    service, caller = room.connect(), room.connect()
    service.serve("s")
    service.tap.stuck = True
    for ident in range(1, 4):
        caller.say(wire.CALL, ident, "s", b"x" * 700)
    return service, caller


def test_a_call_that_finds_no_room_waits_and_goes_when_there_is_some():
    room = Room(bounds=SMALL)
    service, caller = stalled(room)
    caller.say(wire.CALL, 9, "s", b"last" * 100)
    assert caller.ask(wire.PING, 1).kind == wire.PONG
    service.tap.unstick()
    assert service.heard()[-1].payload == b"last" * 100


def test_a_call_that_finds_no_room_in_time_is_told_so():
    room = Room(bounds=SMALL, settings=Settings(forward_timeout=5))
    service, caller = stalled(room)
    room.pass_time(4)
    assert caller.heard() == []
    room.pass_time(2)
    replies = caller.heard()
    assert replies
    assert {reply.arg for reply in replies} == {Status.STALLED}
    delivered = 3 - len(replies)
    service.tap.unstick()
    assert len([f for f in service.heard() if f.kind == wire.CALL]) == delivered


def test_a_held_call_that_was_cancelled_is_not_sent():
    room = Room(bounds=SMALL)
    service, caller = stalled(room)
    caller.say(wire.CALL, 9, "s", b"given up" * 50)
    caller.say(wire.CANCEL, 9)
    service.tap.unstick()
    assert all(frame.payload != b"given up" * 50 for frame in service.heard())


def test_what_waits_for_room_is_bounded(monkeypatch):
    monkeypatch.setattr("polybus.protocols.native.held.MAX_HELD_BYTES", 1000)
    room = Room(bounds=SMALL)
    service, caller = stalled(room)
    caller.heard()
    for ident in range(10, 14):
        caller.say(wire.CALL, ident, "s", b"x" * 400)
    assert Status.STALLED in {frame.arg for frame in caller.heard()}
    assert not service.closed


def test_what_waits_for_room_counts_as_held_by_the_connection_until_it_is_gone():
    room = Room(bounds=SMALL, settings=Settings(forward_timeout=5))
    service, _caller = stalled(room)
    outbox = service.connection.outbox
    assert outbox.held_bytes > outbox.pending_bytes + 700
    room.pass_time(1)
    assert room.connections.budget.held == outbox.held_bytes
    room.pass_time(5)
    assert outbox.held_bytes == outbox.pending_bytes


def test_small_calls_that_wait_count_for_more_than_their_frames(monkeypatch):
    monkeypatch.setattr("polybus.protocols.native.held.MAX_HELD_BYTES", 100_000)
    room = Room(bounds=SMALL)
    _service, caller = stalled(room)
    caller.heard()
    for ident in range(10, 1010):  # all their frames together have a quarter of those bytes
        caller.say(wire.CALL, ident, "s")
    refused = [frame for frame in caller.heard() if frame.arg == Status.STALLED]
    assert 800 < len(refused) < 1000


def test_headers_of_a_call_are_not_kept_while_its_answer_is_awaited():
    room = Room()
    service, caller = room.connect(), room.connect()
    service.serve("s")
    caller.say(wire.CALL, 1, "s", meta={"headers": {"k": "v"}})
    assert wire.parse_headers(service.one().meta) == {"k": "v"}
    (call,) = next(e.calls_made for e in room.router.endpoints if e.calls_made)
    assert (call.headers, call.payload) == ({}, b"")


def test_a_subscriber_that_does_not_read_is_cut_where_the_operator_says_so():
    room = Room(bounds=replace(SMALL, slow_subscriber="disconnect"))
    reader, writer = room.connect(), room.connect()
    reader.ask(wire.SUBSCRIBE, 1, "a")
    reader.tap.stuck = True
    for ident in range(1, 12):
        writer.ask(wire.PUBLISH, ident, "a", b"x" * 400)
    assert reader.closed


def test_a_subscriber_that_does_not_read_loses_and_is_counted():
    room = Room(bounds=SMALL)
    reader, writer = room.connect(), room.connect()
    reader.ask(wire.SUBSCRIBE, 1, "a")
    reader.tap.stuck = True
    taken = [
        meta_of(writer.ask(wire.PUBLISH, ident, "a", b"x" * 400))["receivers"]
        for ident in range(1, 9)
    ]
    assert taken[0] == 1
    assert taken[-1] == 0
    session = next(e for e in room.router.endpoints if e.traffic.dropped)
    assert session.traffic.dropped == taken.count(0)


def test_a_peer_never_gets_a_frame_larger_than_it_said_it_takes():
    room = Room()
    service, caller = room.client(), room.connect()
    meta = wire.encode_meta(wire.Hello(versions=[1], max_frame=200))
    service.send(wire.PREFACE + wire.encode(wire.HELLO, 1, meta=meta))
    service.received()
    service.serve("s")
    service.ask(wire.SUBSCRIBE, 2, "a")
    answer = caller.ask(wire.CALL, 1, "s", b"x" * 300)
    assert answer.arg == Status.TOO_LARGE
    assert meta_of(caller.ask(wire.PUBLISH, 2, "a", b"x" * 300)) == {"receivers": 0}
    caller.serve("big")
    service.say(wire.CALL, 3, "big")
    call = caller.one()
    caller.say(wire.REPLY, call.id, "", b"x" * 300, flags=wire.MORE)
    reply = service.one()
    assert (reply.id, reply.arg, reply.flags) == (3, Status.TOO_LARGE, 0)
    assert caller.one().kind == wire.CANCEL


def test_the_list_of_services_names_wire_and_owner():
    room = Room()
    client, party = room.connect(), Party("other")
    room.router.attach(party)
    room.router.register(party, "/x/y", "x/y", prefix=True)
    client.serve("s")
    listed = meta_of(client.ask(wire.ASK, 1, "services"))["services"]
    assert isinstance(listed, list)
    found = {entry["name"]: entry for entry in listed}
    assert found["s"]["wire"] == "native"
    assert found["s"]["owner"] == "local"
    assert (found["/x/y"]["shared"], found["/x/y"]["prefix"]) == ("x/y", True)


def test_a_long_list_of_services_is_made_in_slices_and_ends_with_its_client():
    room = Room()
    client, gone, party = room.connect(), room.connect(), Party("other")
    room.router.attach(party)
    for n in range(5 * SLICE):
        room.router.register(party, f"x{n}", f"x{n}")
    turns = Turns(room.router.chores)
    client.say(wire.ASK, 1, "services")
    gone.say(wire.ASK, 1, "services")
    assert client.heard() == []
    gone.hang_up()
    room.router.unregister(party, "x7")
    assert turns.all() > 4
    listed = meta_of(client.one())["services"]
    assert isinstance(listed, list)
    assert len(listed) == 5 * SLICE
    assert gone.received() == b""


def test_lists_of_services_that_one_client_asks_for_are_made_one_by_one_and_few_wait():
    room = Room()
    client, party = room.connect(), Party("other")
    room.router.attach(party)
    for n in range(5 * SLICE):
        room.router.register(party, f"x{n}", f"x{n}")
    turns = Turns(room.router.chores)
    client.send(b"".join(wire.encode(wire.ASK, n + 1, "services") for n in range(MAX_LISTS + 2)))
    assert [(frame.id, error_in(frame)) for frame in client.heard()] == [
        (MAX_LISTS + 1, LimitExceeded),
        (MAX_LISTS + 2, LimitExceeded),
    ]
    for _ in range(5):
        turns.one()
    assert [frame.id for frame in client.heard()] == [1]
    turns.all()
    assert [frame.id for frame in client.heard()] == list(range(2, MAX_LISTS + 1))
    assert client.ask(wire.PING, 99).kind == wire.PONG
    client.say(wire.ASK, 100, "services")
    turns.all()
    assert client.one().kind == wire.OK


def test_a_list_of_services_that_fits_no_frame_is_an_error():
    room = Room()
    client, small = room.connect(), room.client()
    meta = wire.encode_meta(wire.Hello(versions=[1], max_frame=4096))
    small.send(wire.PREFACE + wire.encode(wire.HELLO, 1, meta=meta))
    small.received()
    for n in range(100):
        client.serve(f"x{n}")
    client.received()
    assert client.ask(wire.ASK, 1, "services").kind == wire.OK
    assert error_in(small.ask(wire.ASK, 1, "services")) is LimitExceeded


# -- publications that cost --


@pytest.fixture
def costly(monkeypatch):
    """A room with so many subscriptions that a `**` is a burden."""
    monkeypatch.setattr(toll, "VISITS_PER_S", 20_000)
    monkeypatch.setattr(toll, "MAX_DEBT", 60_000)
    room = Room()
    reader = room.connect()
    for n in range(40):
        for m in range(40):
            reader.say(wire.SUBSCRIBE, 1, f"r{n}/u{m}/x")
    reader.received()
    return room


def test_a_publisher_of_costly_topics_rests_and_nobody_else_does(costly):
    greedy, modest, service = costly.connect(), costly.connect(), costly.connect()
    service.serve("calc")
    frames = [wire.encode(wire.PUBLISH, n, f"**/no{n}") for n in range(1, 101)]
    frames[50:50] = [wire.encode(wire.CALL, 1000 + n, "calc", b"%d" % n) for n in range(3)]
    data = b"".join(frames)
    greedy.send(data[:-100])
    first = [frame.id for frame in greedy.heard()]
    assert 1 < len(first) < 50
    assert not greedy.tap.reading
    greedy.send(data[-100:])  # read before the pause took hold
    assert greedy.heard() == []
    assert modest.ask(wire.PUBLISH, 7, "r1/u1/x").id == 7
    answered, called = list(first), []
    for _ in range(300):
        costly.pass_time(1)
        heard = greedy.heard()
        assert len([f for f in heard if f.kind == wire.OK]) <= len(first) + 1
        answered += [f.id for f in heard if f.kind == wire.OK]
        called += [f.payload for f in service.heard() if f.kind == wire.CALL]
        if len(answered) == 100:
            break
    assert answered == list(range(1, 101))
    assert called == [b"0", b"1", b"2"]
    for _ in range(4):
        costly.pass_time(1)
    assert greedy.tap.reading
    assert not greedy.closed


def test_a_publisher_that_rests_for_long_is_told_that_the_node_lives(costly: Room):
    greedy = costly.connect()
    greedy.send(b"".join(wire.encode(wire.PUBLISH, 0, f"**/no{n}") for n in range(2000)))
    for _ in range(200):
        costly.pass_time(1)
    assert not greedy.tap.reading
    assert not greedy.closed
    pings = [frame for frame in greedy.heard() if frame.kind == wire.PING]
    assert len(pings) > 100


def test_bad_input_that_had_to_wait_closes_its_connection(costly: Room):
    client = costly.connect()
    client.send(b"".join(wire.encode(wire.PUBLISH, 0, f"**/no{n}") for n in range(20)) + bytes(30))
    assert not client.closed
    for _ in range(30):
        costly.pass_time(1)
    client.settle()
    assert costly.connections.ended["protocol error"] == 1


def test_topics_of_ordinary_cost_are_free(costly: Room):
    client = costly.connect()
    for n in range(1000):
        client.say(wire.PUBLISH, 0, f"r{n}/u{n}/x/{n}")
    assert client.tap.reading
