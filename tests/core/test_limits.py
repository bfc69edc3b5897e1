"""What one identity may take of a node."""

from __future__ import annotations

import pytest

from polybus.core.endpoint import Endpoint, Identity
from polybus.core.limits import MAX_DEBT, Quota, Quotas, size_of_name
from polybus.core.router import Router
from polybus.core.services import Registration
from polybus.core.subscriptions import PATTERNS
from polybus.errors import ConfigError, LimitExceeded
from polybus.model.clock import ManualClock
from polybus.model.message import Call, Reply, Status

ALICE = Identity("token", "alice")
BOB = Identity("token", "bob")


class Party(Endpoint):
    """Notes what it is told."""

    wire = "test"
    __slots__ = ("calls", "held", "replies")

    def __init__(self, identity: Identity) -> None:
        super().__init__(identity)
        self.held: list[bool] = []
        self.calls: list[Call] = []
        self.replies: list[Reply] = []

    def hold_input(self, held: bool) -> None:
        self.held.append(held)

    def deliver_call(self, call: Call) -> None:
        self.calls.append(call)

    def deliver_reply(self, reply: Reply) -> None:
        self.replies.append(reply)

    def cancel_call(self, call: Call) -> None:
        pass


@pytest.mark.parametrize(
    ("text", "quota"),
    [
        ("token:alice at most 10 connections", Quota("token:alice", connections=10)),
        ("token at most 1 connection 2 calls", Quota("token", connections=1, calls=2)),
        ("* at most 1MiB/s, 5 topics", Quota("*", bytes_per_s=1 << 20, topics=5)),
        ("uid:1 at most 0 topics 1.5KB/s", Quota("uid:1", bytes_per_s=1500, topics=0)),
    ],
)
def test_a_limit_reads_as_a_sentence(text, quota):
    assert Quota.parse(text) == quota


@pytest.mark.parametrize(
    "text",
    [
        "token:alice 10 connections",
        "token:alice at most",
        "token:alice at most ten calls",
        "token:alice at most 10 calls and more",
        "alice at most 10 calls",
        " at most 10 calls",
        "token at most 1parsec/s",
    ],
)
def test_a_text_that_is_no_limit_is_refused(text):
    with pytest.raises(ConfigError):
        Quota.parse(text)


def test_the_first_limit_that_names_an_identity_counts_for_each_by_itself():
    quotas = Quotas([Quota("token:alice", connections=2), Quota("token", connections=1)])
    quotas.join(Party(ALICE))
    quotas.join(Party(ALICE))
    quotas.join(Party(BOB))
    with pytest.raises(LimitExceeded, match=r"too many connections of token:bob \(2 > 1\)"):
        quotas.join(Party(BOB))
    quotas.join(Party(Identity("token", "carol")))
    quotas.join(Party(Identity("uid", "1")))
    quotas.join(Party(Identity("local")))


def test_a_connection_that_goes_makes_room_for_another():
    quotas = Quotas([Quota("token", connections=1)])
    party = Party(ALICE)
    quotas.join(party)
    quotas.leave(party)
    quotas.leave(party)
    quotas.join(Party(ALICE))
    with pytest.raises(LimitExceeded):
        quotas.join(Party(ALICE))


def test_parties_that_were_there_before_the_limit_count():
    router = Router(ManualClock())
    router.attach(Party(ALICE))
    router.set_quotas([Quota("token", connections=1)])
    late = Party(ALICE)
    with pytest.raises(LimitExceeded):
        router.attach(late)
    assert late not in router.endpoints


def test_a_call_counts_until_it_ends_whatever_its_end():
    router, service, caller = calling([Quota("token", calls=1)])
    for end in (Status.OK, Status.GONE, None):
        call = Call(caller, "a", b"")
        router.call(call)
        with pytest.raises(LimitExceeded, match="too many calls of token:alice"):
            router.call(Call(caller, "a", b""))
        if end is None:
            router.cancel(call)
        elif end is Status.OK:
            router.reply(Reply(call, b""))
        else:
            router.fail(call, end)
    router.call(Call(caller, "a", b""))
    router.detach(caller)
    again = Party(ALICE)
    router.attach(again)
    router.call(Call(again, "a", b""))
    assert len(service.calls) == 5


def test_calls_that_want_no_answer_and_calls_of_others_are_not_counted():
    router, service, caller = calling([Quota("token:alice", calls=0)])
    router.call(Call(caller, "a", b"", wants_reply=False))
    other = Party(BOB)
    router.attach(other)
    router.call(Call(other, "a", b""))
    assert len(service.calls) == 2


def test_a_call_counts_for_whom_it_is_made():
    router, _service, caller = calling([Quota("token:bob", calls=0)])
    call = Call(caller, "a", b"")
    call.identity = BOB
    with pytest.raises(LimitExceeded, match="token:bob"):
        router.call(call)


def calling(quotas: list[Quota]) -> tuple[Router, Party, Party]:
    """A router with a service `a` of the program itself, and alice."""
    router = Router(ManualClock())
    router.add_wire("test", PATTERNS)
    service, caller = Party(Identity("local")), Party(ALICE)
    for party in (service, caller):
        router.attach(party)
    registration = router.register(service, "a", "a")
    assert isinstance(registration, Registration)
    router.set_quotas(quotas)
    return router, service, caller


def test_who_sends_too_much_is_held_until_that_is_made_up_for():
    quotas = Quotas([Quota("token", bytes_per_s=1000)])
    one, two = Party(ALICE), Party(ALICE)
    quotas.join(one)
    quotas.join(two)
    quotas.tick(10.0)
    one.traffic.bytes_in += 400
    two.traffic.bytes_in += 400
    quotas.tick(11.0)
    assert one.held == []
    one.traffic.bytes_in += 3000
    quotas.tick(12.0)
    assert (one.held, two.held) == ([True], [True])
    late = Party(ALICE)
    quotas.join(late)
    assert late.held == [True]
    quotas.tick(13.0)
    assert one.held == [True]
    quotas.tick(14.0)
    assert one.held == two.held == late.held == [True, False]


def test_nobody_is_held_for_longer_than_its_wire_bears():
    quotas = Quotas([Quota("token", bytes_per_s=1000)])
    party = Party(ALICE)
    quotas.join(party)
    quotas.tick(0.0)
    party.traffic.bytes_in += 10**9
    for second in range(int(MAX_DEBT) + 3):
        quotas.tick(1.0 + second)
    assert party.held == [True, False]


def test_a_new_set_of_limits_lets_go_of_those_whom_the_old_one_held():
    router = Router(ManualClock())
    party = Party(ALICE)
    router.attach(party)
    router.set_quotas([Quota("token", bytes_per_s=1000)])
    router.tick(0.0)
    party.traffic.bytes_in += 5000
    router.tick(1.0)
    router.set_quotas([])
    assert party.held == [True, False]


def test_one_connection_has_no_more_names_and_subscriptions_than_it_may():
    router = Router(ManualClock(), max_names=2)
    router.add_wire("test", PATTERNS)
    party = Party(ALICE)
    router.attach(party)
    for name in ("a", "b"):
        router.register(party, name, name)
        router.subscribe(party, name, name)
    with pytest.raises(LimitExceeded, match="too many services"):
        router.register(party, "c", "c")
    with pytest.raises(LimitExceeded, match="too many subscriptions"):
        router.subscribe(party, "c", "c")
    router.unregister(party, "a")
    router.unsubscribe(party, "a", "a")
    router.register(party, "c", "c")
    router.subscribe(party, "c", "c")


def test_the_names_of_one_connection_are_bounded_in_size_and_given_back(monkeypatch):
    small = 4 * size_of_name("a/b")
    monkeypatch.setattr("polybus.core.router.MAX_NAMES_SIZE", small)
    router = Router(ManualClock())
    router.add_wire("test", PATTERNS)
    party, other = Party(ALICE), Party(BOB)
    router.attach(party)
    router.attach(other)
    for n in range(2):
        router.register(party, f"s/{n}", f"s/{n}")
        router.subscribe(party, f"t/{n}", f"t/{n}")
    router.subscribe(other, "t/0", "t/0")
    with pytest.raises(LimitExceeded, match="names of one connection"):
        router.subscribe(party, "t/2", "t/2")
    with pytest.raises(LimitExceeded, match="names of one connection"):
        router.register(party, "s/2", "s/2")
    assert router.unsubscribe(party, "t/1", "t/1")
    assert not router.unsubscribe(party, "t/1", "t/1")
    router.register(party, "s/2", "s/2")
    assert router.unregister(party, "s/2")
    router.subscribe(party, "t/2", "t/2")
    with pytest.raises(LimitExceeded):
        router.subscribe(party, "x" * small, None)
    router.detach(party)
    assert party.names_size == 0
