"""Who answers which name, within a wire and across them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.core.services import Services
from polybus.errors import LimitExceeded, NameTaken
from tests.core.party import Party, all_steps


def leave(services: Services, party: Party) -> int:
    party.closed = True
    return all_steps(services.leave(party))


def test_a_name_is_exclusive_within_its_wire_and_free_on_the_others():
    services, first, second, other = Services(), Party("a"), Party("a"), Party("b")
    services.register(first, "x", "x")
    with pytest.raises(NameTaken) as taken:
        services.register(second, "x", "x")
    assert taken.value.name == "x"
    services.register(other, "x", "x")
    assert len(services) == 2
    assert services.counts() == {"a": 1, "b": 1}
    services.unregister(other, "x")
    assert services.counts() == {"a": 1}


def test_a_wire_asks_its_own_namespace_first_even_for_a_shorter_match():
    services, own, foreign, caller = Services(), Party("a"), Party("b"), Party("a")
    services.register(own, "/x", "x", prefix=True)
    services.register(foreign, "x/y", "x/y")
    found = services.find("a", "/x/y", "x/y")
    assert found is not None
    assert found.endpoint is own
    assert services.find(caller.wire, "/z", "z") is None


def test_the_shared_namespace_gives_the_longest_then_the_oldest_and_the_next_inherits():
    services, old, young, longer = Services(), Party("a"), Party("b"), Party("a")
    services.register(old, "/x", "x", prefix=True)
    services.register(young, "x", "x")
    services.register(longer, "/x/y", "x/y", prefix=True)

    def answers(name: str) -> object:
        found = services.find("c", name, name)
        return found and found.endpoint

    assert answers("x") is old
    assert answers("x/y/z") is longer
    assert answers("x/q") is old
    leave(services, old)
    assert answers("x") is young
    assert answers("x/q") is None, "an exact registration answers its own name only"
    assert services.unregister(young, "x")
    assert answers("x") is None


def test_a_wire_does_not_find_its_own_under_another_spelling():
    services, service = Services(), Party("a")
    services.register(service, "/x", "x", prefix=True)
    assert services.find("a", "x", "x") is None
    assert services.find("b", "x", "x") is not None


def test_a_name_that_only_its_wire_can_spell_is_not_shared():
    services, service = Services(), Party("a")
    services.register(service, "/x/", None, prefix=True)
    assert services.find("b", "x/", None) is None
    assert services.find("a", "/x/", None) is not None
    leave(services, service)
    assert services.find("a", "/x/", None) is None


def test_only_the_owner_gives_a_name_up():
    services, owner, stranger = Services(), Party("a"), Party("a")
    services.register(owner, "x", "x")
    assert not services.unregister(stranger, "x")
    assert services.owner("a", "x") is not None
    assert services.unregister(owner, "x")
    assert services.owner("a", "x") is None


def test_every_change_raises_the_epoch():
    services, party, epochs = Services(), Party("a"), [0]
    services.register(party, "x", "x")
    epochs.append(services.epoch)
    services.unregister(party, "x")
    epochs.append(services.epoch)
    services.register(party, "y", None)
    leave(services, party)
    epochs.append(services.epoch)
    assert epochs == sorted(set(epochs))


NAMES = st.sampled_from(["a", "a/b", "a/b/c", "b", "b/a"])


@given(
    st.lists(
        st.tuples(st.sampled_from("rud"), st.integers(0, 3), NAMES, st.booleans()), max_size=30
    ),
    NAMES,
)
def test_finding_equals_looking_at_every_registration(script, asked):
    services = Services()
    parties = [Party("p"), Party("p"), Party("q"), Party("q")]
    for action, number, name, prefix in script:
        party = parties[number]
        if action == "r":
            try:
                services.register(party, name, name, prefix=prefix)
            except NameTaken:
                assert services.owner(party.wire, name) is not None
        elif action == "u":
            services.unregister(party, name)
        else:
            leave(services, party)
            party.closed = False
    fitting = [
        r for r in services if r.name == asked or (r.prefix and asked.startswith(r.name + "/"))
    ]
    fitting.sort(key=lambda r: (-len(r.name), r.age))
    assert services.find("other", asked, asked) is (fitting[0] if fitting else None)
    own = [r for r in fitting if r.wire == "p"]
    foreign = [r for r in fitting if r.wire == "q"]
    expected = own[0] if own else foreign[0] if foreign else None
    assert services.find("p", asked, asked) is expected


def test_a_name_longer_than_a_name_may_be_is_not_registered():
    services, party = Services(), Party("a")
    services.register(party, "x" * 4096, None, prefix=True)
    with pytest.raises(LimitExceeded) as refused:
        services.register(party, "x" * 4097, None)
    assert (refused.value.limit, refused.value.actual) == (4096, 4097)
    found = services.find("a", "x" * 4096 + "/y", None)
    assert found is not None
    assert found.name == "x" * 4096


def test_who_leaves_with_many_names_changes_the_namespace_once():
    services, party, other = Services(), Party("a"), Party("a")
    for number in range(10):
        services.register(party, f"x/{number}", f"x/{number}")
    changes: list[int] = []
    services.on_change.append(lambda: changes.append(len(list(services))))
    assert leave(services, party) == 10
    assert leave(services, other) == 0
    assert changes == [0]
    assert len(services) == 0


def test_names_of_who_is_leaving_lead_nowhere_and_may_be_taken():
    services, gone, heir, prefixed = Services(), Party("a"), Party("a"), Party("b")
    services.register(gone, "x", "x", prefix=True)
    services.register(gone, "x/y", "x/y")
    services.register(gone, "z", "z")
    late = services.register(prefixed, "x", "x", prefix=True)
    gone.closed = True
    work = services.leave(gone)
    for wire in ("a", "b", "c"):
        found = services.find(wire, "x/y", "x/y")
        assert found is not None
        assert found.endpoint is prefixed
        assert services.find(wire, "z", "z") is None
    assert services.owner("a", "z") is None
    assert services.answers(late)
    assert [found.endpoint for found in services] == [prefixed]
    assert len(list(services.all())) == 4
    taken = services.register(heir, "z", "z")
    assert all_steps(work) == 2
    assert services.find("c", "z", "z") is taken
    assert {found.name for found in services.all()} == {"x", "z"}
    assert services.past["a"].calls == 0
