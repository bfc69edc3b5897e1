"""Publications within a wire and across wires."""

from __future__ import annotations

import pytest

from polybus.core import router as module
from polybus.core.router import Router
from polybus.core.subscriptions import EXACT, PATTERNS
from polybus.errors import NotAuthorized
from polybus.model.clock import ManualClock
from polybus.model.message import Call, Publication, Reply, Status
from tests.core.party import Party


@pytest.fixture
def router(clock: ManualClock) -> Router:
    router = Router(clock)
    router.add_wire("exact", EXACT)
    router.add_wire("wild", PATTERNS)
    return router


def join(router: Router, wire: str) -> Party:
    party = Party(wire)
    router.attach(party)
    return party


def publish(router: Router, publisher: Party, topic: str, name: str | None) -> int:
    return router.publish(Publication(publisher, topic, name, b"x", wire=publisher.wire))


def test_own_subscribers_are_matched_by_the_wires_own_spelling_and_rules(router):
    subscriber, publisher = join(router, "exact"), join(router, "exact")
    router.subscribe(subscriber, "/a/*", "a/*")
    assert publish(router, publisher, "/a/b", "a/b") == 0, "an exact wire knows no wildcards"
    assert publish(router, publisher, "/a/*", "a/*") == 1


def test_other_wires_are_reached_by_the_shared_name_and_patterns(router):
    subscriber, publisher = join(router, "wild"), join(router, "exact")
    router.subscribe(subscriber, "a/**", "a/**")
    assert publish(router, publisher, "/a/b/c", "a/b/c") == 1
    assert publish(router, publisher, "/b", "b") == 0
    assert publish(router, publisher, "/a/", None) == 0, (
        "a topic without a shared name stays at home"
    )


def test_each_endpoint_gets_one_copy_the_publisher_included(router):
    party = join(router, "wild")
    assert router.subscribe(party, "a/*", "a/*")
    assert router.subscribe(party, "**", "**")
    assert not router.subscribe(party, "**", "**")
    assert publish(router, party, "a/b", "a/b") == 1
    assert len(party.publications) == 1


def test_a_subscriber_without_room_is_not_counted(router):
    full, empty = join(router, "wild"), join(router, "wild")
    for party in (full, empty):
        router.subscribe(party, "a", "a")
    full.full = True
    assert publish(router, empty, "a", "a") == 1


def test_nothing_comes_after_unsubscribing_or_leaving(router):
    stays, leaves, publisher = join(router, "wild"), join(router, "wild"), join(router, "exact")
    for party in (stays, leaves):
        router.subscribe(party, "a", "a")
    epoch = router.subscription_epoch
    assert router.unsubscribe(stays, "a", "a")
    assert not router.unsubscribe(stays, "a", "a")
    router.detach(leaves)
    assert router.subscription_epoch > epoch
    assert publish(router, publisher, "a", "a") == 0


class Mute:
    epoch = 0

    def may(self, identity, verb, name):
        return verb != "publish"


def test_who_may_not_publish_reaches_nobody(router):
    subscriber, publisher = join(router, "wild"), join(router, "wild")
    router.subscribe(subscriber, "a", "a")
    router.policy = Mute()
    with pytest.raises(NotAuthorized):
        publish(router, publisher, "a", "a")
    assert subscriber.publications == []


def test_a_caller_may_not_let_calls_without_number_wait(router, monkeypatch):
    monkeypatch.setattr(module, "MAX_OPEN_CALLS", 2)
    service, caller = join(router, "wild"), join(router, "exact")
    router.register(service, "a", "a")
    for _ in range(3):
        router.call(Call(caller, "a", b""))
    assert len(service.calls) == 2
    assert [reply.status for reply in caller.replies] == [Status.REFUSED]
    router.reply(Reply(service.calls[0], b""))
    router.call(Call(caller, "a", b""))
    assert len(service.calls) == 3
