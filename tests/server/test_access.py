"""The section [policy] as it is read, and who somebody is by the transport."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import pytest

from polybus.core.endpoint import Identity
from polybus.core.policy import NEIGHBOUR, STRANGER
from polybus.errors import ConfigError, NotAuthorized
from polybus.server.access import Access, read_tokens
from polybus.server.config import Policy
from polybus.server.identity import identity_of
from polybus.transports.connection import is_loopback
from polybus.transports.url import parse_address

SECRET = "s3cret"
HASH = hashlib.sha256(SECRET.encode()).hexdigest()
HERE = [parse_address("tcp://127.0.0.1:1"), parse_address("unix:/run/a.sock")]
EVERYWHERE = [*HERE, parse_address("tcp://0.0.0.0:1")]


def peer_at(
    peer: str = "",
    kind: str = "tcp",
    uid: int | None = None,
    certificate: dict[str, Any] | None = None,
) -> Any:
    """What `identity_of` looks at of a connection."""
    return SimpleNamespace(
        peer=peer, transport_kind=kind, peer_uid=uid, peer_certificate=certificate
    )


SUBJECT = ((("organizationName", "x"),), (("commonName", "alice"),))


@pytest.mark.parametrize(
    ("peer", "identity"),
    [
        (peer_at(kind="memory"), Identity("local")),
        (peer_at("127.0.0.1:5"), NEIGHBOUR),
        (peer_at("[::1]:5"), NEIGHBOUR),
        (peer_at("192.0.2.7:5"), STRANGER),
        (peer_at("[2001:db8::1]:5"), STRANGER),
        (peer_at("unix", "unix", uid=1000), Identity("uid", "1000")),
        (peer_at("unix", "unix", uid=0), Identity("uid", "0")),
        (
            peer_at("192.0.2.7:5", "tls", certificate={"subject": SUBJECT}),
            Identity("certificate", "alice"),
        ),
        (
            peer_at("192.0.2.7:5", "tls", certificate={"subjectAltName": (("DNS", "a.example"),)}),
            Identity("certificate", "a.example"),
        ),
        (peer_at("127.0.0.1:5", "tls", certificate={"serialNumber": "1"}), Identity("certificate")),
    ],
)
def test_the_transport_tells_who_somebody_is(peer, identity):
    assert identity_of(peer) == identity


@pytest.mark.parametrize(
    ("peer", "here"),
    [
        ("127.0.0.1:1", True),
        ("127.8.9.1:1", True),
        ("[::ffff:127.0.0.1]:1", True),
        ("[fe80::1%eth0]:1", False),
        ("10.0.0.1:1", False),
        ("unix", False),
        ("", False),
    ],
)
def test_this_machine_is_told_by_the_address(peer, here):
    assert is_loopback(peer) is here


def test_a_token_is_known_by_its_hash_or_from_a_file(tmp_path):
    (tmp_path / "bob").write_text("other\n")
    access = Access(Policy(tokens=(f"alice sha256:{HASH.upper()}", f"bob file:{tmp_path / 'bob'}")))
    assert access.bearer(SECRET) == Identity("token", "alice")
    assert access.bearer("other") == Identity("token", "bob")
    assert access.bearer("") is None
    assert access.bearer(HASH) is None
    with pytest.raises(NotAuthorized, match="a token that nobody has"):
        access.identify(peer_at("127.0.0.1:1"), "guess")
    assert access.identify(peer_at("127.0.0.1:1"), "") == NEIGHBOUR


def test_without_tokens_what_a_client_calls_one_means_nothing():
    assert Access(Policy()).identify(peer_at("127.0.0.1:1"), "whatever") == NEIGHBOUR


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"alice {SECRET}", "begins with 'alice'"),
        (f"alice=sha256:{HASH}", "neither"),
        (f"sha256:{HASH}", "neither"),
        ("alice sha256:12", "64 hexadecimal digits"),
        ("alice file:/nowhere/at/all", "cannot read"),
        ("", "neither"),
    ],
)
def test_a_token_that_cannot_be_read_is_refused_and_never_shown(text, problem):
    with pytest.raises(ConfigError, match=problem) as refused:
        read_tokens([text])
    assert SECRET not in refused.value.text


def test_an_empty_secret_and_one_that_two_share_are_refused(tmp_path):
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        read_tokens([f"alice file:{tmp_path / 'empty'}"])
    with pytest.raises(ConfigError, match="alice and bob have one secret"):
        read_tokens([f"alice sha256:{HASH}", f"bob sha256:{HASH}"])


@pytest.mark.parametrize(
    "wrong",
    [
        Policy(rules=("nonsense",)),
        Policy(limits=("nonsense",)),
        Policy(tokens=("nonsense",)),
        Policy(rules=("* may call",), allow_anonymous=True),
    ],
)
def test_a_section_that_is_wrong_in_any_part_changes_nothing(wrong):
    access = Access(Policy(rules=("token:alice may call on a",), tokens=(f"alice sha256:{HASH}",)))
    epoch = access.policy.epoch
    with pytest.raises(ConfigError):
        access.replace(wrong)
    assert access.bearer(SECRET) == Identity("token", "alice")
    assert access.policy.may(Identity("token", "alice"), "call", "a")
    assert access.policy.epoch == epoch


def test_the_start_says_who_is_let_in_and_names_the_switch():
    assert Access(Policy()).note(HERE) == ""
    assert "allow_anonymous = true" in Access(Policy()).note(EVERYWHERE)
    assert "closed to strangers" in Access(Policy()).note(EVERYWHERE)
    assert "open to everybody" in Access(Policy(allow_anonymous=True)).note(EVERYWHERE)
    assert "1 rules decide" in Access(Policy(rules=("* may *",))).note(HERE)
