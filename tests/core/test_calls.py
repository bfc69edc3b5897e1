"""Every call ends exactly once."""

from __future__ import annotations

import pytest

from polybus.core.router import Router
from polybus.errors import Draining, NoSuchService, NotAuthorized
from polybus.model.clock import ManualClock
from polybus.model.message import Call, Reply, Status
from tests.core.party import Party


@pytest.fixture
def router(clock: ManualClock) -> Router:
    return Router(clock)


@pytest.fixture
def service(router: Router) -> Party:
    party = Party("s")
    router.attach(party)
    router.register(party, "svc", "svc")
    return party


@pytest.fixture
def caller(router: Router) -> Party:
    party = Party("c")
    router.attach(party)
    return party


def ask(router: Router, caller: Party, **more) -> Call:
    call = Call(caller, "svc", b"?", **more)
    router.call(call)
    return call


def test_a_call_reaches_the_service_and_its_reply_the_caller(router, service, caller):
    call = ask(router, caller, token="mine")
    assert service.calls == [call]
    assert call.registration.name == "svc"
    assert router.reply(Reply(call, b"!"))
    (reply,) = caller.replies
    assert (reply.payload, reply.status, reply.call.token) == (b"!", Status.OK, "mine")
    assert router.calls.pending == 0
    assert call.registration.traffic.calls == 1


def test_parts_come_in_order_and_the_last_one_ends_the_call(router, service, caller):
    call = ask(router, caller)
    for part in (b"1", b"2"):
        assert router.reply(Reply(call, part, final=False))
    assert router.calls.pending == 1
    router.reply(Reply(call, b"3"))
    assert [reply.payload for reply in caller.replies] == [b"1", b"2", b"3"]


def test_a_late_or_second_reply_is_ignored(router, service, caller):
    call = ask(router, caller)
    router.reply(Reply(call, b"first"))
    assert not router.reply(Reply(call, b"second"))
    assert len(caller.replies) == 1


def test_pending_calls_fail_when_the_service_goes(router, service, caller):
    ask(router, caller)
    ask(router, caller)
    router.detach(service)
    assert [reply.status for reply in caller.replies] == [Status.GONE, Status.GONE]
    with pytest.raises(NoSuchService):
        ask(router, caller)


def test_a_caller_that_vanishes_cancels_its_calls(router, service, caller):
    call = ask(router, caller)
    router.detach(caller)
    assert service.cancelled == [call]
    assert not router.reply(Reply(call, b"late"))
    assert caller.replies == []


def test_a_caller_may_cancel_by_itself(router, service, caller):
    call = ask(router, caller)
    router.cancel(call)
    router.cancel(call)
    assert service.cancelled == [call]
    assert caller.replies == []


def test_a_call_past_its_deadline_ends_with_a_timeout_and_the_service_is_told(
    router, service, caller, clock
):
    call = ask(router, caller, deadline=clock.monotonic() + 5)
    router.tick(clock.advance(4.9))
    assert caller.replies == []
    router.tick(clock.advance(0.2))
    assert [reply.status for reply in caller.replies] == [Status.TIMED_OUT]
    assert caller.replies[0].text
    assert service.cancelled == [call]


def test_answered_calls_leave_nothing_behind_however_far_their_deadline(
    router, service, caller, clock
):
    first = ask(router, caller, deadline=clock.monotonic() + 1e6)
    for _ in range(3000):
        router.reply(Reply(ask(router, caller, deadline=clock.monotonic() + 2e6), b""))
    router.tick(clock.monotonic())
    assert [entry[2] for entry in router.calls._deadlines] == [first]
    assert not service.calls_taken - {first}
    assert caller.calls_made == {first}


def test_a_call_that_wants_no_reply_is_not_waited_for(router, service, caller):
    call = ask(router, caller, wants_reply=False)
    assert router.calls.pending == 0
    assert not router.reply(Reply(call, b"unwanted"))
    router.detach(service)
    assert caller.replies == []


def test_an_endpoint_that_cannot_pass_a_call_on_fails_it(router, service, caller):
    call = ask(router, caller)
    router.fail(call, Status.TOO_LARGE, b"too large")
    router.fail(call, Status.GONE)
    assert [(reply.status, reply.text) for reply in caller.replies] == [
        (Status.TOO_LARGE, "too large")
    ]


def test_a_draining_router_refuses_new_calls_and_names_and_ends_the_open_ones(
    router, service, caller
):
    call = ask(router, caller)
    router.drain()
    with pytest.raises(Draining):
        ask(router, caller)
    with pytest.raises(Draining):
        router.register(caller, "x", "x")
    router.reply(Reply(call, b"done"))
    assert [reply.payload for reply in caller.replies] == [b"done"]


def test_in_flight_counts_what_a_party_was_asked(router, service, caller):
    assert service.in_flight == 0
    ask(router, caller)
    assert service.in_flight == 1


class OnlyLocal:
    epoch = 0

    def may(self, identity, verb, name):
        return identity.kind == "local"


def test_the_policy_is_asked_with_identity_verb_and_shared_name(clock):
    router, stranger = Router(clock, OnlyLocal()), Party("c")
    router.attach(stranger)
    with pytest.raises(NotAuthorized) as refused:
        router.register(stranger, "/own/spelling", "own/spelling")
    assert (refused.value.verb, refused.value.name) == ("register", "own/spelling")
    with pytest.raises(NotAuthorized):
        router.call(Call(stranger, "x", b""))


def test_a_detached_party_is_closed_and_may_be_detached_again(router, service):
    router.detach(service)
    router.detach(service)
    assert service.closed
