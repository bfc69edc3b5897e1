"""Who may do what."""

from __future__ import annotations

import pytest

from polybus.core.endpoint import Identity
from polybus.core.policy import (
    MAX_CACHED,
    NEIGHBOUR,
    STRANGER,
    OpenPolicy,
    Rule,
    RulePolicy,
    may_see,
)
from polybus.errors import ConfigError

ALICE = Identity("token", "alice")
BOB = Identity("token", "bob")


def test_without_rules_this_machine_is_open_and_strangers_are_shut_out():
    policy = RulePolicy()
    for identity in (NEIGHBOUR, Identity("uid", "1000"), Identity("certificate", "x"), ALICE):
        assert policy.may(identity, "admin", "a/b")
    assert not policy.may(STRANGER, "call", "a/b")


def test_the_switch_restores_the_originals_openness():
    assert RulePolicy(allow_anonymous=True).may(STRANGER, "register", "a")


def test_with_rules_what_none_of_them_allows_is_refused():
    policy = RulePolicy(
        [Rule("token:alice", ("call", "publish"), ("wallet/**",))], allow_anonymous=True
    )
    assert policy.may(ALICE, "call", "wallet/stellar")
    assert not policy.may(ALICE, "register", "wallet/stellar")
    assert not policy.may(ALICE, "call", "other")
    assert not policy.may(BOB, "call", "wallet/stellar")
    assert not policy.may(NEIGHBOUR, "call", "wallet/stellar")
    assert policy.may(Identity("local"), "admin", "anything")


@pytest.mark.parametrize(
    ("identity", "who", "allowed"),
    [
        ("*", STRANGER, True),
        ("token", ALICE, True),
        ("token:alice", BOB, False),
        ("anonymous", NEIGHBOUR, True),
        ("anonymous:loopback", NEIGHBOUR, True),
        ("anonymous:loopback", STRANGER, False),
        ("uid:1000", Identity("uid", "1000"), True),
        ("twin", Identity("twin", "12"), True),
    ],
)
def test_a_rule_names_everybody_a_kind_or_one_identity(identity, who, allowed):
    assert RulePolicy([Rule(identity, ("*",))]).may(who, "call", "a") is allowed


@pytest.mark.parametrize(
    ("rule", "asked", "allowed"),
    [
        ("price/**", "price/**", True),
        ("price/**", "price/*/eur", True),
        ("price/*", "price/**", False),
        ("price/eur", "price/*", False),
        ("**", "**", True),
        ("price/**", "**", False),
    ],
)
def test_a_pattern_is_allowed_only_where_a_rule_covers_it_entirely(rule, asked, allowed):
    assert (
        RulePolicy([Rule("*", ("subscribe",), (rule,))]).may(ALICE, "subscribe", asked) is allowed
    )


def test_new_rules_count_at_once_and_raise_the_epoch():
    policy = RulePolicy([Rule("*", ("call",), ("a",))])
    assert policy.may(ALICE, "call", "a")
    epoch = policy.epoch
    policy.replace([Rule("*", ("call",), ("b",))])
    assert policy.epoch > epoch
    assert not policy.may(ALICE, "call", "a")
    assert policy.may(ALICE, "call", "b")


@pytest.mark.parametrize(
    ("rule", "error", "text"),
    [
        (Rule("nobody", ("call",)), ConfigError, "no such kind"),
        (Rule("*", ("fly",)), ConfigError, "no such verb 'fly'"),
        (Rule("*", ("call",), ("a//b",)), ConfigError, "segment is empty"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_and_the_old_ones_stay(rule, error, text):
    policy = RulePolicy([Rule("*", ("call",), ("a",))])
    with pytest.raises(error) as refused:
        policy.replace([rule])
    assert text in refused.value.text
    assert policy.may(ALICE, "call", "a")


def test_remembered_verdicts_are_bounded():
    policy = RulePolicy([Rule("*", ("call",))])
    for number in range(MAX_CACHED + 10):
        assert policy.may(ALICE, "call", str(number))
    assert len(policy._verdicts) <= MAX_CACHED


def test_the_open_policy_refuses_nothing():
    assert OpenPolicy().may(STRANGER, "admin", "**")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("token:alice may call", Rule("token:alice", ("call",))),
        ("uid may *", Rule("uid", ("*",))),
        ("* may call, publish on a/**, b", Rule("*", ("call", "publish"), ("a/**", "b"))),
        ("twin:12 may call publish on a b/*", Rule("twin:12", ("call", "publish"), ("a", "b/*"))),
        ("certificate:Jo Doe may admin", Rule("certificate:Jo Doe", ("admin",))),
    ],
)
def test_a_rule_reads_as_a_sentence(text, rule):
    assert Rule.parse(text) == rule


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("token:alice call a", "is no rule"),
        (" may call", "is no rule"),
        ("token:alice may on a", "no such verb 'on'"),
        ("token:alice may  on a", "is no rule"),
        ("token:alice may call on ", "is no rule"),
        ("alice may call", "no such kind"),
        ("* may fly", "no such verb 'fly'"),
        ("* may call on /a", "segment is empty"),
    ],
)
def test_a_text_that_is_no_rule_is_refused_with_its_reason(text, problem):
    with pytest.raises(ConfigError, match=problem):
        Rule.parse(text)


@pytest.mark.parametrize(
    ("rule", "name", "seen"),
    [
        (Rule("token:alice", ("call",), ("calc/plus",)), "calc", True),
        (Rule("token:alice", ("call",), ("calc/**",)), "calc", True),
        (Rule("token:alice", ("consume",), ("calc",)), "calc", True),
        (Rule("token:alice", ("consume",), ("calculate",)), "calc", False),
        (Rule("token:bob", ("*",)), "calc", False),
    ],
)
def test_a_name_is_seen_by_whom_a_rule_lets_do_anything_with_it_or_below_it(rule, name, seen):
    assert may_see(RulePolicy([rule]), ALICE, name) is seen


def test_without_rules_names_are_seen_by_all_but_strangers():
    assert may_see(RulePolicy(), NEIGHBOUR, "a")
    assert not may_see(RulePolicy(), STRANGER, "a")
    assert may_see(OpenPolicy(), STRANGER, "a")
    assert may_see(RulePolicy([Rule("uid", ("call",))]), Identity("local"), "a")


def test_a_text_too_long_for_a_name_is_allowed_only_to_those_who_may_do_it_with_everything():
    policy = RulePolicy(
        [Rule("token:alice", ("call",)), Rule("token:bob", ("call",), ("**/x/**", "*/**"))]
    )
    long = "/" * 1_000_000
    assert policy.may(ALICE, "call", long)
    assert not policy.may(BOB, "call", long)
    assert policy.may(BOB, "call", "/" * 4096)
