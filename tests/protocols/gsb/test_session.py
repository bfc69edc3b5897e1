"""What the router does for its clients, rule by rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polybus.core.chores import SLICE
from polybus.core.endpoint import Identity
from polybus.core.policy import Verb
from polybus.protocols.gsb import party
from polybus.protocols.gsb.room import GsbOptions
from polybus.protocols.gsb.session import GsbSession
from polybus.protocols.gsb.wire import (
    BAD_REQUEST,
    CONFLICT,
    CURRENT,
    LEGACY,
    NOT_FOUND,
    OK,
    SERVICE_FAILURE,
    CallReply,
    CallRequest,
    Kind,
    encode_broadcast,
    encode_call,
    encode_hello,
    encode_name,
    encode_reply,
    parse_broadcast,
    parse_call,
    parse_code,
    parse_reply,
)
from polybus.transports.outbox import Bounds
from tests.core.party import Turns
from tests.protocols.gsb.conftest import Bus, Client


def register(client: Client, name: str) -> int:
    client.say(Kind.REGISTER_REQUEST, encode_name(name))
    ((kind, body),) = client.frames()
    assert kind == Kind.REGISTER_REPLY
    return parse_code(body)[0]


def call(client: Client, address: str, request_id: str = "1", data: bytes = b"ask", **more) -> None:
    client.say(Kind.CALL_REQUEST, encode_call(CallRequest("me", address, request_id, data, **more)))


def requests(client: Client) -> list[CallRequest]:
    frames = client.frames()
    assert all(kind == Kind.CALL_REQUEST for kind, _ in frames)
    return [parse_call(body) for _, body in frames]


def replies(client: Client) -> list[CallReply]:
    frames = client.frames()
    assert all(kind == Kind.CALL_REPLY for kind, _ in frames)
    return [parse_reply(body) for _, body in frames]


def answer(
    client: Client, request_id: str, data: bytes = b"", code: int = OK, partial=False
) -> None:
    client.say(Kind.CALL_REPLY, encode_reply(request_id, code, data, partial))


@pytest.fixture
def service(bus: Bus) -> Client:
    client = bus.client()
    assert register(client, "/svc") == OK
    return client


# -- names --


@pytest.mark.parametrize(
    ("registered", "address", "found"),
    [
        ("foo", "foo", True),
        ("foo", "foo/bar", True),
        ("foo", "foo/", True),
        ("foo", "foo//x", True),
        ("foo", "foobar", False),
        ("/a/b/", "/a/b/", True),
        ("/a/b/", "/a/b//x", True),
        ("/a/b/", "/a/b", False),
        ("/a/b/", "/a/b/x", False),
        ("", "", False),
        ("", "/", False),
        ("", "/x", False),
        ("/", "/x", False),
        ("a", "/a", False),
        ("/a", "a", False),
        ("ünï", "ünï/x", True),
    ],
)
def test_an_address_is_answered_by_the_longest_registered_prefix(bus, registered, address, found):
    service, caller = bus.client(), bus.client()
    assert register(service, registered) == OK
    call(caller, address)
    assert [r.address for r in requests(service)] == ([address] if found else [])
    assert [r.code for r in replies(caller)] == ([] if found else [BAD_REQUEST])


def test_the_longest_name_wins(bus):
    near, far, caller = bus.client(), bus.client(), bus.client()
    register(far, "/a")
    register(near, "/a/b")
    call(caller, "/a/b/c")
    assert len(requests(near)) == 1
    assert requests(far) == []


def test_a_name_is_given_once_even_to_its_owner(bus, service):
    assert register(bus.client(), "/svc") == CONFLICT
    assert register(service, "/svc") == CONFLICT


def test_a_stranger_cannot_unregister_a_name(bus, service):
    stranger = bus.client()
    stranger.say(Kind.UNREGISTER_REQUEST, encode_name("/svc"))
    assert parse_code(stranger.frames()[0][1])[0] == NOT_FOUND
    call(stranger, "/svc")
    assert len(requests(service)) == 1


def test_names_of_a_client_that_never_said_hello_go_with_it(bus, service):
    service.hang_up()
    assert register(bus.client(), "/svc") == OK


def test_a_route_learnt_earlier_is_not_used_after_its_service_left(bus, service):
    caller, heir = bus.client(), bus.client()
    call(caller, "/svc", "1")
    call(caller, "/svc", "2")
    service.hang_up()
    call(caller, "/svc", "3")
    register(heir, "/svc")
    call(caller, "/svc", "4")
    assert [r.request_id for r in requests(heir)] == ["4"]
    codes = {r.request_id: r.code for r in replies(caller)}
    assert codes == {"1": SERVICE_FAILURE, "2": SERVICE_FAILURE, "3": BAD_REQUEST}


# -- calls --


def test_a_call_to_an_unknown_address_is_refused_with_the_original_text(bus):
    caller = bus.client()
    call(caller, "/nobody", "7")
    assert replies(caller) == [CallReply("7", BAD_REQUEST, False, b"endpoint address not found")]


def test_partial_replies_pass_until_the_full_one(bus, service):
    caller = bus.client()
    call(caller, "/svc", "9")
    for part in (b"a", b"b"):
        answer(service, "9", part, partial=True)
    answer(service, "9", b"end")
    answer(service, "9", b"late")
    assert [(r.data, r.partial) for r in replies(caller)] == [
        (b"a", True),
        (b"b", True),
        (b"end", False),
    ]


def test_a_partial_reply_with_an_error_code_leaves_the_call_open(bus, service):
    caller = bus.client()
    call(caller, "/svc", "9")
    answer(service, "9", b"oops", SERVICE_FAILURE, partial=True)
    answer(service, "9", b"end")
    assert [r.data for r in replies(caller)] == [b"oops", b"end"]


def test_a_reply_from_somebody_who_was_not_asked_is_ignored(bus, service):
    caller, stranger = bus.client(), bus.client()
    call(caller, "/svc", "9")
    answer(stranger, "9", b"forged")
    assert replies(caller) == []
    answer(service, "9", b"true")
    assert [r.data for r in replies(caller)] == [b"true"]


def test_a_push_is_passed_on_and_never_answered(bus, service):
    caller = bus.client()
    call(caller, "/svc", "1", no_reply=True)
    call(caller, "/nobody", "2", no_reply=True)
    assert [r.no_reply for r in requests(service)] == [True]
    answer(service, "1", b"unwanted")
    service.hang_up()
    assert replies(caller) == []


def test_a_connection_may_call_itself(service):
    call(service, "/svc", "5", b"me")
    assert [r.data for r in requests(service)] == [b"me"]
    answer(service, "5", b"again")
    assert [r.data for r in replies(service)] == [b"again"]


def test_unregistering_does_not_touch_calls_in_progress(bus, service):
    caller = bus.client()
    call(caller, "/svc", "5")
    service.say(Kind.UNREGISTER_REQUEST, encode_name("/svc"))
    answer(service, "5", b"still")
    assert [r.data for r in replies(caller)] == [b"still"]


def test_every_pending_caller_is_told_when_the_service_goes(bus, service):
    callers = [bus.client() for _ in range(3)]
    for number, caller in enumerate(callers):
        call(caller, "/svc", f"a{number}")
        call(caller, "/svc", f"b{number}")
    service.hang_up()
    for number, caller in enumerate(callers):
        told = replies(caller)
        assert [r.request_id for r in told] == [f"a{number}", f"b{number}"]
        assert {r.code for r in told} == {SERVICE_FAILURE}


def test_an_id_pending_from_another_client_is_rewritten_and_restored(bus, service):
    first, second = bus.client(), bus.client()
    call(first, "/svc", "same", b"one")
    call(second, "/svc", "same", b"two")
    one, two = requests(service)
    assert one.request_id == "same"
    assert two.request_id != "same"
    answer(service, two.request_id, b"part", partial=True)
    answer(service, two.request_id, b"for two")
    answer(service, one.request_id, b"for one")
    assert [(r.request_id, r.data) for r in replies(first)] == [("same", b"for one")]
    assert [(r.request_id, r.data) for r in replies(second)] == [
        ("same", b"part"),
        ("same", b"for two"),
    ]


def test_a_caller_of_a_rewritten_call_is_told_when_the_service_goes(bus, service):
    first, second = bus.client(), bus.client()
    call(first, "/svc", "same")
    call(second, "/svc", "same")
    service.hang_up()
    assert [r.request_id for r in replies(second)] == ["same"]


def test_entries_of_callers_that_left_are_forgotten(bus, service):
    first, second = bus.client(), bus.client()
    call(first, "/svc", "1")
    call(second, "/svc", "1")
    assert service.connection.session.in_flight == 2
    first.hang_up()
    second.hang_up()
    bus.pass_time(1)
    assert service.connection.session.in_flight == 0


def test_calls_to_many_services_in_one_batch_reach_each_in_one_write(bus):
    services = [bus.client() for _ in range(4)]
    for number, service in enumerate(services):
        register(service, f"/s{number}")
    caller = bus.client()
    caller.send(
        b"".join(
            CURRENT.encode(
                Kind.CALL_REQUEST, encode_call(CallRequest("me", f"/s{n % 4}", str(n), b"x"))
            )
            for n in range(40)
        )
    )
    for number, service in enumerate(services):
        writes = service.tap.writes
        assert [r.request_id for r in requests(service)] == [str(n) for n in range(number, 40, 4)]
        assert (
            writes == 2
        )  # Hello with the reply to the registration came in one, this batch in another


# -- broadcasts --


def subscribe(client: Client, topic: str) -> int:
    client.say(Kind.SUBSCRIBE_REQUEST, encode_name(topic))
    ((kind, body),) = client.frames()
    assert kind == Kind.SUBSCRIBE_REPLY
    return parse_code(body)[0]


def test_a_broadcast_reaches_each_subscriber_once_the_publisher_included(bus):
    first, second, outsider = bus.client(), bus.client(), bus.client()
    subscribe(first, "t")
    subscribe(first, "t")
    subscribe(second, "t")
    subscribe(outsider, "other")
    first.say(Kind.BROADCAST_REQUEST, encode_broadcast("me", "t", b"news"))
    kinds = [kind for kind, _ in first.frames()]
    assert sorted(kinds) == [Kind.BROADCAST_REQUEST, Kind.BROADCAST_REPLY]
    ((kind, body),) = second.frames()
    assert kind == Kind.BROADCAST_REQUEST
    assert parse_broadcast(body).data == b"news"
    assert outsider.frames() == []


def test_a_thousand_broadcasts_in_one_burst_all_arrive_in_order(bus):
    subscriber, publisher = bus.client(), bus.client()
    subscribe(subscriber, "t")
    publisher.send(
        b"".join(
            CURRENT.encode(Kind.BROADCAST_REQUEST, encode_broadcast("me", "t", str(n).encode()))
            for n in range(1000)
        )
    )
    got = [parse_broadcast(body).data for _, body in subscriber.frames()]
    assert got == [str(n).encode() for n in range(1000)]
    assert len(publisher.frames()) == 1000


def test_a_subscription_of_a_moment_ago_counts(bus):
    subscriber, publisher = bus.client(), bus.client()
    publisher.say(Kind.BROADCAST_REQUEST, encode_broadcast("me", "t", b"early"))
    subscribe(subscriber, "t")
    publisher.say(Kind.BROADCAST_REQUEST, encode_broadcast("me", "t", b"now"))
    assert [parse_broadcast(body).data for _, body in subscriber.frames()] == [b"now"]


# -- hello, pings, ends --


def hello(client: Client, instance_id: bytes) -> None:
    client.say(Kind.HELLO, encode_hello("test", "1", instance_id))


def test_the_router_is_silent_until_the_first_frame_then_says_hello_once(bus):
    client = bus.client()
    assert client.received() == b""
    hello(client, b"x")
    assert client.received() == bus.room.hello
    client.say(Kind.PING)
    assert bus.room.hello not in client.received()


def test_a_client_that_comes_back_takes_its_names_over(bus):
    old, new = bus.client(), bus.client()
    hello(old, b"same")
    register(old, "/svc")
    new.send(
        CURRENT.encode(Kind.HELLO, encode_hello("t", "1", b"same"))
        + CURRENT.encode(Kind.REGISTER_REQUEST, encode_name("/svc"))
    )
    assert old.closed
    assert parse_code(new.frames()[0][1])[0] == OK
    old.settle()
    call(bus.client(), "/svc")
    assert len(requests(new)) == 1


def test_pending_calls_of_a_connection_that_was_taken_over_fail(bus):
    old, new, caller = bus.client(), bus.client(), bus.client()
    hello(old, b"same")
    register(old, "/svc")
    call(caller, "/svc", "1")
    hello(new, b"same")
    assert [r.code for r in replies(caller)] == [SERVICE_FAILURE]


def test_a_silent_client_is_pinged_after_the_timeout_and_closed_after_twice_as_long(make_bus):
    bus = make_bus(options=GsbOptions(ping_timeout=10))
    client = bus.client()
    hello(client, b"x")
    client.received()
    bus.pass_time(10)
    assert client.frames() == []
    bus.pass_time(1)
    assert client.frames() == [(Kind.PING, b"")]
    bus.pass_time(9)
    assert not client.closed
    bus.pass_time(1)
    assert client.closed


def test_any_frame_is_a_sign_of_life(make_bus):
    bus = make_bus(options=GsbOptions(ping_timeout=10))
    client = bus.client()
    for _ in range(10):
        client.say(Kind.PONG)
        bus.pass_time(9)
    assert not client.closed
    assert client.frames() == []


def test_a_ping_is_answered_with_a_ping_because_the_real_client_faults_on_pong(bus):
    client = bus.client()
    client.say(Kind.PING)
    assert client.frames() == [(Kind.PING, b"")]


# -- bad input --


@pytest.mark.parametrize(
    "frame",
    [
        bytes(4),
        bytes.fromhex("00000003820100"),
        bytes.fromhex("000000020a7f"),
        bytes.fromhex("0000000512030a01ff"),
        CURRENT.encode(Kind.REGISTER_REPLY, b""),
        CURRENT.encode(Kind.UNREGISTER_REPLY, b""),
        CURRENT.encode(Kind.SUBSCRIBE_REPLY, b""),
        CURRENT.encode(Kind.UNSUBSCRIBE_REPLY, b""),
        CURRENT.encode(Kind.BROADCAST_REPLY, b""),
        CURRENT.encode(Kind.CALL_REQUEST, bytes.fromhex("0a01ff12012f1a0131")),
        CURRENT.encode(Kind.CALL_REQUEST, bytes.fromhex("0a016112042f7376631a02ff31")),
        CURRENT.encode(Kind.CALL_REQUEST, bytes.fromhex("0a01ff12042f7376631a0131")),
        CURRENT.encode(Kind.CALL_REPLY, bytes.fromhex("0a01ff")),
        CURRENT.encode(Kind.BROADCAST_REQUEST, bytes.fromhex("0a01ff1a0174")),
        CURRENT.encode(Kind.BROADCAST_REQUEST, bytes.fromhex("1a01ff")),
        CURRENT.encode(Kind.REGISTER_REQUEST, bytes.fromhex("0801")),
        CURRENT.encode(Kind.REGISTER_REQUEST, bytes.fromhex("0b")),
        (64 * 1024 * 1024 + 1).to_bytes(4) + b"\x0a",
        b"\xff\xff\xff\xff",
        bytes.fromhex("0000000108"),
    ],
    ids=lambda frame: frame[:12].hex(),
)
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_bad_input_closes_that_connection_and_nobody_else_notices(
    bus, service, frame, warm, caplog
):
    bad, other = bus.client(), bus.client()
    hello(bad, b"bad")
    if warm:
        call(bad, "/svc", "w1")
        call(bad, "/svc", "w2")
        service.frames()
    bad.send(frame)
    assert bad.closed
    bad.settle()
    assert bus.connections.ended["protocol error"] == 1
    assert len([r for r in caplog.records if "closed" in r.getMessage()]) == 1
    assert not any(record.exc_info for record in caplog.records)
    call(other, "/svc", "1")
    answer(service, "1", b"fine")
    assert [r.data for r in replies(other)] == [b"fine"]


def test_what_came_before_the_bad_frame_is_still_answered(bus):
    client = bus.client()
    client.send(CURRENT.encode(Kind.REGISTER_REQUEST, encode_name("/a")) + bytes(4))
    assert [kind for kind, _ in client.frames()] == [Kind.REGISTER_REPLY]
    assert client.closed


def test_a_giant_length_is_refused_from_the_header_alone(bus):
    client = bus.client()
    hello(client, b"x")
    client.send((64 * 1024 * 1024 + 1).to_bytes(4))
    assert client.closed


def test_a_large_frame_in_many_pieces_arrives_whole(bus, service):
    caller = bus.client()
    data = bytes(range(256)) * 4096
    frame = CURRENT.encode(Kind.CALL_REQUEST, encode_call(CallRequest("me", "/svc", "1", data)))
    caller.send(frame, range(0, len(frame), 4093))
    assert [r.data == data for r in requests(service)] == [True]


# -- the legacy framing --


class LegacyClient(Client):
    framing = LEGACY


@pytest.fixture
def legacy(bus: Bus) -> LegacyClient:
    from polybus.protocols.gsb.session import GsbSession

    return LegacyClient(bus.connections, lambda connection: GsbSession(bus.room))


def test_a_legacy_client_never_sees_a_hello(bus, legacy):
    legacy.say(Kind.REGISTER_REQUEST, encode_name("/old"))
    assert legacy.received() == bytes.fromhex("0000000100000000")


@pytest.mark.parametrize("partial", [False, True])
def test_old_and_new_clients_call_each_other(bus, legacy, service, partial):
    legacy.say(Kind.REGISTER_REQUEST, encode_name("/old"))
    legacy.received()
    caller = bus.client()
    call(caller, "/old/x", "1", b"new to old")
    (request,) = requests(legacy)
    assert (request.address, request.data) == ("/old/x", b"new to old")
    if partial:
        answer(legacy, request.request_id, b"p", partial=True)
    answer(legacy, request.request_id, b"thanks")
    assert [(r.request_id, r.data) for r in replies(caller)][-1] == ("1", b"thanks")
    call(legacy, "/svc", "2", b"old to new")
    (request,) = requests(service)
    answer(service, request.request_id, b"welcome")
    assert [(r.request_id, r.data) for r in replies(legacy)] == [("2", b"welcome")]


def test_two_legacy_clients_exchange_frames_verbatim(bus, legacy):
    from polybus.protocols.gsb.session import GsbSession

    legacy.say(Kind.REGISTER_REQUEST, encode_name("/old"))
    legacy.received()
    caller = LegacyClient(bus.connections, lambda connection: GsbSession(bus.room))
    frame = LEGACY.encode(Kind.CALL_REQUEST, encode_call(CallRequest("me", "/old", "1", b"x")))
    caller.send(frame, range(1, len(frame)))
    assert legacy.received() == frame


def test_broadcasts_cross_the_framings(bus, legacy):
    subscriber = bus.client()
    subscribe(subscriber, "t")
    subscribe(legacy, "t")
    legacy.say(Kind.BROADCAST_REQUEST, encode_broadcast("me", "t", b"x"))
    assert [k for k, _ in subscriber.frames()] == [Kind.BROADCAST_REQUEST]
    assert len(legacy.frames()) == 2
    subscriber.say(Kind.BROADCAST_REQUEST, encode_broadcast("me", "t", b"y"))
    ((_, body),) = legacy.frames()
    assert parse_broadcast(body).data == b"y"


@pytest.mark.parametrize("frame", ["ffffffff00000000", "0000000e00000000", "000000010000000100"])
def test_bad_legacy_frames_close_the_connection(bus, legacy, frame):
    legacy.say(Kind.PING)
    legacy.send(bytes.fromhex(frame))
    assert legacy.closed


# -- full queues --

SMALL = Bounds(pending_bytes=3000, share_bytes=1000, high_water=500)


def test_a_stalled_service_does_not_block_its_callers_other_traffic(make_bus):
    bus = make_bus(bounds=SMALL, options=GsbOptions(forward_timeout=5))
    stalled, prompt, caller = bus.client(), bus.client(), bus.client()
    register(stalled, "/stalled")
    register(prompt, "/prompt")
    stalled.tap.stuck = True
    for number in range(10):
        call(caller, "/stalled", f"s{number}", bytes(400))
    call(caller, "/prompt", "p", b"x")
    assert [r.request_id for r in requests(prompt)] == ["p"]
    assert caller.tap.reading
    assert replies(caller) == []
    bus.pass_time(4)
    assert replies(caller) == []
    bus.pass_time(1)
    failed = replies(caller)
    assert {(r.code, r.data) for r in failed} == {(SERVICE_FAILURE, b"stalled connection")}
    # What had room is still on its way and is answered when the service reads again.
    stalled.tap.unstick()
    arrived = [r.request_id for r in requests(stalled)]
    assert arrived + [r.request_id for r in failed] == [f"s{n}" for n in range(10)]
    for request_id in arrived:
        answer(stalled, request_id, b"at last")
    assert [r.request_id for r in replies(caller)] == arrived


def test_one_caller_cannot_use_up_a_stalled_service_for_the_others(make_bus):
    bus = make_bus(bounds=SMALL)
    stalled, greedy, modest = bus.client(), bus.client(), bus.client()
    register(stalled, "/stalled")
    stalled.tap.stuck = True
    for number in range(20):
        call(greedy, "/stalled", f"g{number}", bytes(400))
    call(modest, "/stalled", "m", bytes(400))
    stalled.tap.unstick()
    arrived = [r.request_id for r in requests(stalled)]
    assert "m" in arrived
    assert "g19" not in arrived


def test_replies_are_never_held_for_a_congested_caller(make_bus):
    bus = make_bus(bounds=SMALL)
    service, caller = bus.client(), bus.client()
    register(service, "/svc")
    caller.tap.stuck = True
    for number in range(5):
        call(caller, "/svc", str(number))
    for number in range(5):
        answer(service, str(number), bytes(300))
    caller.tap.unstick()
    assert [r.request_id for r in replies(caller)] == ["0", "1", "2", "3", "4"]


def test_a_client_that_does_not_read_its_replies_is_first_paused_then_cut(make_bus):
    bus = make_bus(bounds=SMALL)
    service, caller = bus.client(), bus.client()
    register(service, "/svc")
    caller.tap.stuck = True
    for number in range(40):
        call(caller, "/svc", str(number))
    for number in range(6):
        answer(service, str(number), bytes(300))
    assert not caller.tap.reading
    assert not caller.closed
    for number in range(6, 40):
        answer(service, str(number), bytes(300))
    assert caller.closed


def test_a_peer_that_takes_nothing_for_the_write_timeout_is_cut(make_bus):
    bus = make_bus(
        bounds=Bounds(pending_bytes=3000, share_bytes=1000, high_water=500, write_timeout=5)
    )
    service, caller = bus.client(), bus.client()
    register(service, "/svc")
    service.tap.stuck = True
    for number in range(3):
        call(caller, "/svc", str(number), bytes(400))
    bus.pass_time(5)
    assert not service.closed
    bus.pass_time(2)
    assert service.closed
    service.settle()
    assert [r.code for r in replies(caller)] == [SERVICE_FAILURE] * 3


def test_a_slow_subscriber_loses_broadcasts_which_are_counted_and_the_others_lose_none(make_bus):
    bus = make_bus(bounds=SMALL)
    slow, quick, publisher = bus.client(), bus.client(), bus.client()
    subscribe(slow, "t")
    subscribe(quick, "t")
    slow.tap.stuck = True
    for number in range(20):
        publisher.say(
            Kind.BROADCAST_REQUEST, encode_broadcast("me", "t", str(number).encode() * 100)
        )
    assert len(quick.frames()) == 20
    slow.tap.unstick()
    got = [parse_broadcast(body).data for _, body in slow.frames()]
    assert got == [str(n).encode() * 100 for n in range(len(got))]
    assert slow.connection.session.traffic.dropped == 20 - len(got) > 0
    assert len(publisher.frames()) == 20


def test_a_slow_subscriber_is_disconnected_where_the_operator_says_so(make_bus):
    bus = make_bus(bounds=replace(SMALL, slow_subscriber="disconnect"))
    slow, publisher = bus.client(), bus.client()
    subscribe(slow, "t")
    slow.tap.stuck = True
    for _ in range(20):
        publisher.say(Kind.BROADCAST_REQUEST, encode_broadcast("me", "t", bytes(300)))
    assert slow.closed


# -- permissions and drain --


class Deny:
    """Refuses one verb to everybody."""

    epoch = 0

    def __init__(self, verb: Verb) -> None:
        self.verb = verb

    def may(self, identity: Identity, verb: Verb, name: str) -> bool:
        return verb != self.verb


@pytest.mark.parametrize(
    ("verb", "kind", "body"),
    [
        ("register", Kind.REGISTER_REQUEST, encode_name("/x")),
        ("subscribe", Kind.SUBSCRIBE_REQUEST, encode_name("/x")),
        ("publish", Kind.BROADCAST_REQUEST, encode_broadcast("me", "/x", b"")),
        ("call", Kind.CALL_REQUEST, encode_call(CallRequest("me", "/svc", "1", b""))),
    ],
)
def test_what_the_policy_forbids_is_a_bad_request(bus, service, verb, kind, body):
    bus.router.policy = Deny(verb)
    client = bus.client()
    client.say(kind, body)
    ((_, answered),) = client.frames()
    code = parse_reply(answered).code if kind == Kind.CALL_REQUEST else parse_code(answered)[0]
    assert code == BAD_REQUEST
    assert service.frames() == []


def test_a_draining_node_ends_what_is_open_and_takes_nothing_new(bus, service):
    caller = bus.client()
    call(caller, "/svc", "old")
    bus.router.drain()
    call(caller, "/svc", "new")
    answer(service, "old", b"done")
    assert [(r.request_id, r.code) for r in replies(caller)] == [
        ("new", SERVICE_FAILURE),
        ("old", OK),
    ]
    assert register(bus.client(), "/other") == BAD_REQUEST


def test_an_address_of_unusual_length_is_routed_and_not_kept(bus):
    service, caller = bus.client(), bus.client()
    service.say(Kind.REGISTER_REQUEST, encode_name("/a"))
    service.frames()
    long = "/a/" + "x" * 2000
    for number in range(3):
        call = CallRequest("me", long, str(number), b"")
        caller.say(Kind.CALL_REQUEST, encode_call(call))
        assert service.frames() == [(Kind.CALL_REQUEST, encode_call(call))]
    for topic in (long, "short"):
        caller.say(Kind.BROADCAST_REQUEST, encode_broadcast("me", topic, b""))
        assert caller.frames() == [(Kind.BROADCAST_REPLY, b"")]
    session = caller.connection.session
    assert isinstance(session, GsbSession)
    assert not session.call_templates
    assert [*session._recipients] == [b"short"]


def test_names_and_ids_that_would_fill_the_memory_are_refused(bus, service):
    client = bus.client()
    assert register(client, "/n" * 2048) == OK
    assert register(client, "/n" * 2048 + "x") == BAD_REQUEST
    client.say(Kind.SUBSCRIBE_REQUEST, encode_name("t" * 4097))
    ((kind, body),) = client.frames()
    assert (kind, parse_code(body)[0]) == (Kind.SUBSCRIBE_REPLY, BAD_REQUEST)
    call(client, "/svc", "i" * 1024)
    assert [r.request_id for r in requests(service)] == ["i" * 1024]
    for size in (1025, 1025):
        client = bus.client()
        call(client, "/svc", "i" * size)
        assert client.closed
    assert requests(service) == []
    greeted = bus.client()
    greeted.say(Kind.HELLO, encode_hello("me", "1", bytes(1024)))
    assert not greeted.closed
    greedy = bus.client()
    greedy.say(Kind.HELLO, encode_hello("me", "1", bytes(1025)))
    assert greedy.closed


def test_an_address_of_many_segments_does_not_hold_the_node(bus, service):
    caller = bus.client()
    call(caller, "/svc" + "/" * 1_000_000, "1")
    assert len(requests(service)) == 1
    call(caller, "/" * 1_000_000, "2")
    ((reply),) = replies(caller)
    assert (reply.request_id, reply.code) == ("2", BAD_REQUEST)


def test_a_service_that_never_answers_does_not_fill_the_memory(bus, service, monkeypatch):
    monkeypatch.setattr(party, "MAX_SERVING", 3)
    caller, other = bus.client(), bus.client()
    for number in range(5):
        call(caller, "/svc", str(number))
    bus.pass_time(1)
    assert [(r.request_id, r.code, r.data) for r in replies(caller)] == [
        (str(number), SERVICE_FAILURE, party.OVERLOADED) for number in range(2)
    ]
    call(other, "/svc", "4")
    assert [(r.request_id, r.data) for r in replies(other)] == [("4", party.OVERLOADED)]
    answer(service, "4", b"late but fine")
    assert [r.data for r in replies(caller)] == [b"late but fine"]


# -- parties that leave much behind --


def test_pending_calls_of_a_service_that_goes_fail_in_slices_and_each_once(bus, service):
    turns = Turns(bus.router.chores)
    stays, leaves = bus.client(), bus.client()
    for n in range(2 * SLICE):
        call(stays, "/svc", f"s{n}")
        call(leaves, "/svc", f"l{n}")
        call(leaves, "/svc", f"s{n}")  # an id that is in use: it goes out under one of ours
    service.hang_up()
    failed = [r.request_id for r in replies(stays)]
    assert 0 < len(failed) < SLICE
    assert register(bus.client(), "/svc") == OK
    leaves.hang_up()
    turns.all()
    failed += [r.request_id for r in replies(stays)]
    assert sorted(failed) == sorted(f"s{n}" for n in range(2 * SLICE))
    assert not service.connection.session.in_flight


def test_calls_of_a_caller_that_goes_are_forgotten_in_slices(bus, service):
    turns = Turns(bus.router.chores)
    stays, leaves = bus.client(), bus.client()
    for n in range(2 * SLICE):
        call(leaves, "/svc", f"l{n}")
        call(stays, "/svc", f"l{n}" if n % 2 else f"s{n}")
    requests(service)
    leaves.hang_up()
    bus.pass_time(2)
    answer(service, "l0", b"late")
    answer(service, f"l{2 * SLICE - 2}", b"late")
    turns.all()
    assert service.connection.session.in_flight == 2 * SLICE
    assert replies(stays) == []
