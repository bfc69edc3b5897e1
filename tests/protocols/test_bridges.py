"""Calls and publications between clients of different wires on one router, told in the bytes of each wire."""

from __future__ import annotations

import pytest

from polybus.core.router import Router
from polybus.core.subscriptions import PATTERNS
from polybus.model.clock import ManualClock
from polybus.model.message import Status
from polybus.protocols.gsb.room import GsbRoom
from polybus.protocols.gsb.session import GsbSession
from polybus.protocols.gsb.wire import (
    BAD_REQUEST,
    OK,
    SERVICE_FAILURE,
    CallReply,
    CallRequest,
    Kind,
    encode_broadcast,
    encode_call,
    encode_name,
    encode_reply,
    parse_broadcast,
    parse_call,
    parse_reply,
)
from polybus.protocols.native import wire as native
from polybus.protocols.native.session import NativeSession
from polybus.protocols.t2.room import T2Room
from polybus.protocols.t2.session import T2Session
from polybus.protocols.t2.wire import Message
from polybus.transports.connection import Connections
from tests.protocols.gsb.conftest import Client as GsbClient
from tests.protocols.t2.conftest import Client as T2Client
from tests.protocols.wiretap import Peer

MIB = 1 << 20


class NativeClient(Peer):
    """A client of the native wire that has said its Hello."""

    def greet(self) -> NativeClient:
        hello = native.encode_meta(native.Hello(versions=[native.VERSION]))
        self.send(native.PREFACE + native.encode(native.HELLO, 1, meta=hello))
        assert self.received().startswith(native.PREFACE)
        return self

    def say(self, kind: int, ident: int = 0, name: str = "", payload: bytes = b"") -> None:
        self.send(native.encode(kind, ident, name, payload))

    def frames(self) -> list[native.Frame]:
        return [native.parse(frame) for frame in native.Frames().feed(self.received())]


class Town:
    """One router with the three rooms."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.router = Router(clock)
        self.router.add_wire(NativeSession.wire, PATTERNS)
        self._gsb = GsbRoom(self.router)
        self._t2 = T2Room(self.router)
        self._connections = Connections(clock)

    def gsb(self) -> GsbClient:
        return GsbClient(self._connections, lambda _connection: GsbSession(self._gsb))

    def t2(self) -> T2Client:
        return T2Client(self._connections, lambda _connection: T2Session(self._t2))

    def native(self) -> NativeClient:
        client = NativeClient(self._connections, lambda c: NativeSession(c, self.router))
        return client.greet()

    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            now = self.clock.advance(1)
            self.router.tick(now)
            self._connections.tick(now)


@pytest.fixture
def town(clock: ManualClock) -> Town:
    return Town(clock)


def serve_gsb(town: Town, name: str = "/calc") -> GsbClient:
    service = town.gsb()
    service.say(Kind.REGISTER_REQUEST, encode_name(name))
    assert service.frames() == [(Kind.REGISTER_REPLY, b"")]
    return service


def serve_t2(town: Town, name: str = "calc") -> T2Client:
    service = town.t2()
    service.topic("Srv", name)
    assert [m.error for m in service.messages()] == [None]
    return service


def asked_of_gsb(service: GsbClient) -> CallRequest:
    ((kind, body),) = service.frames()
    assert kind == Kind.CALL_REQUEST
    return parse_call(body)


def asked_of_t2(service: T2Client) -> Message:
    (message,) = service.messages()
    assert message.kind == "Req"
    return message


def answer_to_gsb(caller: GsbClient) -> CallReply:
    ((kind, body),) = caller.frames()
    assert kind == Kind.CALL_REPLY
    return parse_reply(body)


def call_of_gsb(caller: GsbClient, address: str, data: bytes, no_reply: bool = False) -> None:
    caller.say(Kind.CALL_REQUEST, encode_call(CallRequest("me", address, "7", data, no_reply)))


def responses(client: T2Client) -> list[tuple[int, str, bytes]]:
    return [(m.req_id, m.status, m.payload()) for m in client.messages() if m.kind == "Rsp"]


# -- T2 asks --


def test_a_t2_request_is_answered_by_a_gsb_service(town):
    service, caller = serve_gsb(town), town.t2()
    number = caller.payload("Req", "calc/add", b"1+1")
    request = asked_of_gsb(service)
    assert (request.address, request.data) == ("/calc/add", b"1+1")
    service.say(Kind.CALL_REPLY, encode_reply(request.request_id, OK, b"2"))
    assert responses(caller) == [(number, "Ok", b"2")]


def test_a_t2_requester_gets_the_text_of_a_failed_gsb_service(town):
    service, caller = serve_gsb(town), town.t2()
    number = caller.payload("Req", "calc", b"1/0")
    request = asked_of_gsb(service)
    service.say(
        Kind.CALL_REPLY, encode_reply(request.request_id, SERVICE_FAILURE, b"division by zero")
    )
    assert responses(caller) == [(number, "Timeout", b"division by zero")]


def test_a_t2_requester_gets_one_response_though_a_part_says_failure(town):
    service, caller = serve_gsb(town), town.t2()
    number = caller.payload("Req", "calc", b"x")
    request = asked_of_gsb(service)
    for code, partial in ((SERVICE_FAILURE, True), (OK, True), (OK, False)):
        body = encode_reply(request.request_id, code, b"text", partial)
        service.say(Kind.CALL_REPLY, body)
    assert responses(caller) == [(number, "Timeout", b"text")]


def test_a_streamed_reply_reaches_a_t2_requester_in_one_piece(town):
    service, caller = serve_gsb(town), town.t2()
    number = caller.payload("Req", "calc", b"x")
    request = asked_of_gsb(service)
    for part, partial in ((b"a", True), (b"b", True), (b"", False)):
        service.say(Kind.CALL_REPLY, encode_reply(request.request_id, OK, part, partial))
    assert responses(caller) == [(number, "Ok", b"ab")]


@pytest.mark.parametrize("partial", [False, True])
def test_a_reply_too_large_for_t2_is_a_failure_that_says_so(town, partial):
    service, caller = serve_gsb(town), town.t2()
    number = caller.payload("Req", "calc", b"x")
    request = asked_of_gsb(service)
    body = encode_reply(request.request_id, OK, bytes(MIB + 1), partial)
    service.say(Kind.CALL_REPLY, body)
    service.say(Kind.CALL_REPLY, encode_reply(request.request_id, OK, b"more"))
    assert responses(caller) == [(number, "Timeout", b"the reply is larger than a T2 frame")]


def test_a_t2_requester_hears_that_a_gsb_service_left(town):
    service, caller = serve_gsb(town), town.t2()
    number = caller.payload("Req", "calc", b"x")
    service.hang_up()
    ((ident, status, text),) = responses(caller)
    assert (ident, status) == (number, "Timeout")
    assert b"disconnected" in text


def test_a_gsb_service_that_never_answers_times_out_for_t2(town):
    service, caller = serve_gsb(town), town.t2()
    number = caller.payload("Req", "calc", b"x")
    caller.received()
    request = asked_of_gsb(service)
    town.pass_time(31)
    assert responses(caller) == [(number, "Timeout", b"")]
    service.say(Kind.CALL_REPLY, encode_reply(request.request_id, OK, b"late"))
    assert responses(caller) == []


# -- GSB asks --


def test_a_gsb_call_is_answered_by_a_t2_service(town):
    service, caller = serve_t2(town), town.gsb()
    call_of_gsb(caller, "/calc", b"1+1")
    request = asked_of_t2(service)
    assert (request.topic, request.payload()) == ("calc", b"1+1")
    service.respond(request.id, b"2")
    assert answer_to_gsb(caller) == CallReply("7", OK, False, b"2")


def test_a_gsb_caller_gets_the_text_of_a_failed_t2_service(town):
    service, caller = serve_t2(town), town.gsb()
    call_of_gsb(caller, "/calc", b"1/0")
    service.respond(asked_of_t2(service).id, b"division by zero", "Timeout")
    assert answer_to_gsb(caller) == CallReply("7", SERVICE_FAILURE, False, b"division by zero")


def test_a_gsb_call_larger_than_a_t2_frame_is_refused_and_never_seen_there(town):
    service, caller = serve_t2(town), town.gsb()
    call_of_gsb(caller, "/calc", bytes(MIB))
    reply = answer_to_gsb(caller)
    assert reply.code == BAD_REQUEST
    assert b"larger" in reply.data
    assert service.messages() == []


def test_a_gsb_push_reaches_a_t2_service_and_its_answer_nobody(town):
    service, caller = serve_t2(town), town.gsb()
    call_of_gsb(caller, "/calc", b"x", no_reply=True)
    request = asked_of_t2(service)
    service.respond(request.id, b"y")
    (ack,) = service.messages()
    assert ack.error is not None
    assert caller.frames() == []


def test_a_gsb_caller_hears_that_a_t2_service_left(town):
    service, caller = serve_t2(town), town.gsb()
    call_of_gsb(caller, "/calc", b"x")
    service.hang_up()
    assert answer_to_gsb(caller).code == SERVICE_FAILURE


# -- the native wire --


def test_the_native_wire_reaches_both_and_keeps_their_texts(town):
    gsb, t2, caller = serve_gsb(town, "/one"), serve_t2(town, "two"), town.native()
    caller.say(native.CALL, 1, "one/x", b"a")
    caller.say(native.CALL, 2, "two", b"b")
    request = asked_of_gsb(gsb)
    gsb.say(Kind.CALL_REPLY, encode_reply(request.request_id, SERVICE_FAILURE, b"no"))
    t2.respond(asked_of_t2(t2).id, b"yes")
    assert [(f.id, f.arg, f.payload) for f in caller.frames()] == [
        (1, Status.FAILED, b"no"),
        (2, Status.OK, b"yes"),
    ]


def test_both_reach_the_native_wire_and_get_its_texts(town):
    service, gsb, t2 = town.native(), town.gsb(), town.t2()
    service.say(native.REGISTER, 5, "calc")
    service.received()
    call_of_gsb(gsb, "/calc", b"a")
    number = t2.payload("Req", "calc", b"b")
    for call in service.frames():
        frame = native.encode(native.REPLY, call.id, "", b"no", arg=Status.FAILED)
        service.send(frame)
    assert answer_to_gsb(gsb) == CallReply("7", SERVICE_FAILURE, False, b"no")
    assert responses(t2) == [(number, "Timeout", b"no")]


def test_a_caller_that_leaves_is_no_trouble_for_the_service_of_another_wire(town):
    service = serve_gsb(town)
    for caller in (town.t2(), town.native(), town.gsb()):
        if isinstance(caller, T2Client):
            caller.payload("Req", "calc", b"x")
        elif isinstance(caller, NativeClient):
            caller.say(native.CALL, 1, "calc", b"x")
        else:
            call_of_gsb(caller, "/calc", b"x")
        request = asked_of_gsb(service)
        caller.hang_up()
        service.say(Kind.CALL_REPLY, encode_reply(request.request_id, OK, b"late"))
        assert not service.closed


# -- publications --


def broadcasts(client: GsbClient) -> list[tuple[str, bytes]]:
    found = [parse_broadcast(body) for kind, body in client.frames() if kind == 12]
    return [(each.topic, each.data) for each in found]


def test_a_publication_reaches_every_wire_once(town):
    gsb, t2, sdk, publisher = town.gsb(), town.t2(), town.native(), town.gsb()
    gsb.say(Kind.SUBSCRIBE_REQUEST, encode_name("/price/btc"))
    t2.topic("Sub", "price/*")
    t2.topic("Sub", "price/btc")
    sdk.say(native.SUBSCRIBE, 3, "**")
    for client in (gsb, t2, sdk):
        client.received()
    publisher.say(Kind.BROADCAST_REQUEST, encode_broadcast("me", "/price/btc", b"9"))
    assert broadcasts(gsb) == [("/price/btc", b"9")]
    assert [(m.topic, m.payload()) for m in t2.messages()] == [("price/btc", b"9")]
    assert [(f.name, f.payload) for f in sdk.frames()] == [("price/btc", b"9")]


def test_a_publication_with_wildcards_reaches_gsb_under_the_topics_it_asked_for(town):
    gsb, publisher = town.gsb(), town.t2()
    for topic in ("/price/btc", "price/eth", "/weather/oslo"):
        gsb.say(Kind.SUBSCRIBE_REQUEST, encode_name(topic))
    gsb.received()
    publisher.payload("Pub", "price/*", b"halt")
    assert broadcasts(gsb) == [("/price/btc", b"halt"), ("price/eth", b"halt")]
    assert [m.recipients for m in publisher.messages()] == [1]


def test_two_spellings_of_one_name_are_two_topics_of_gsb(town):
    gsb, t2 = town.gsb(), town.t2()
    for topic in ("price/btc", "/price/btc"):
        gsb.say(Kind.SUBSCRIBE_REQUEST, encode_name(topic))
    gsb.frames()
    t2.payload("Pub", "price/btc", b"a")
    assert broadcasts(gsb) == [("price/btc", b"a"), ("/price/btc", b"a")]
    gsb.say(Kind.UNSUBSCRIBE_REQUEST, encode_name("price/btc"))
    gsb.frames()
    t2.payload("Pub", "price/btc", b"b")
    assert broadcasts(gsb) == [("/price/btc", b"b")]
    gsb.say(Kind.UNSUBSCRIBE_REQUEST, encode_name("/price/btc"))
    gsb.frames()
    t2.payload("Pub", "price/btc", b"c")
    assert broadcasts(gsb) == []


def test_a_publication_that_t2_cannot_spell_or_hold_passes_it_by(town):
    t2, sdk = town.t2(), town.native()
    t2.topic("Sub", "**")
    t2.topic("Sub", "a")
    t2.received()
    sdk.say(native.PUBLISH, 3, "Größe/x", b"1")
    sdk.say(native.PUBLISH, 4, "a", bytes(MIB))
    sdk.say(native.PUBLISH, 5, "a", b"2")
    assert [(m.topic, m.payload()) for m in t2.messages()] == [("a", b"2")]
    assert not t2.closed
