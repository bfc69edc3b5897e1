"""Signatures and keys are the real daemon's, vector by vector."""

from __future__ import annotations

import json

import pytest

from polybus.errors import ConfigError
from polybus.protocols.rmb import keys
from polybus.protocols.rmb.message import Message, parse_lenient, parse_strict
from polybus.protocols.rmb.signature import (
    BadSignature,
    Signer,
    challenge,
    digest,
    parse_signature,
    upload_digest,
    verify,
)
from tests.protocols.rmb.vectors import SIGNATURES, VECTORS

IDS = [
    f"{v['name']}-{v['key_type']}-{'hex' if v['secret'][:2] == '0x' else 'phrase'}"
    for v in SIGNATURES
]


def message_of(vector) -> Message:
    return parse_strict(json.dumps(vector["message"]).encode())


@pytest.mark.parametrize("vector", SIGNATURES, ids=IDS)
def test_every_captured_signature_is_verified_over_the_same_text(vector):
    m = message_of(vector)
    if "pxy-true" in vector["name"]:
        m.pxy = True
    assert challenge(m).hex() == vector["challenge_hex"]
    assert digest(m).hex() == vector["md5_hex"]
    key = bytes.fromhex(vector["public_key_hex"])
    assert verify(parse_signature(vector["sig"]), digest(m), key) == ""
    m.dat += "x"
    assert verify(parse_signature(vector["sig"]), digest(m), key).endswith("verification failed")


@pytest.mark.parametrize("vector", SIGNATURES, ids=IDS)
def test_a_secret_gives_the_same_seed_key_and_signature(vector):
    seed = keys.parse_secret(vector["secret"])
    assert seed.hex() == vector["seed_hex"]
    signer = Signer(vector["key_type"], seed)
    assert signer.public_key.hex() == vector["public_key_hex"]
    assert keys.parse_account(vector["ss58"]) == signer.public_key
    assert keys.encode_account(signer.public_key) == vector["ss58"]
    made = signer.sign(bytes.fromhex(vector["md5_hex"]))
    if vector["deterministic"]:
        assert made == vector["sig"]
    raw = parse_signature(made)
    assert verify(raw, bytes.fromhex(vector["md5_hex"]), signer.public_key) == ""


def test_upload_headers_are_signed_as_captured():
    vector = VECTORS["signatures"]["upload"]
    signed = upload_digest(vector["rmb-timestamp"], vector["rmb-source-id"])
    assert signed.hex() == vector["md5_hex"]
    signer = Signer(vector["key_type"], keys.parse_secret(vector["secret"]))
    assert signer.sign(signed) == vector["rmb-signature"]


def test_the_forwarded_request_of_the_real_daemon_is_verified():
    vector = VECTORS["rs"]["forwarded_http"]
    m = parse_strict(vector["body"].encode())
    assert challenge(m).decode() == vector["challenge"]
    key = bytes.fromhex(vector["public_key_hex"])
    assert verify(parse_signature(m.sig), digest(m), key) == ""
    seed = bytes.fromhex(vector["seed_hex"])
    assert Signer("sr25519", seed).public_key == key


def test_a_message_of_the_http_client_is_signed_with_the_proxy_mark():
    for request in VECTORS["clients"]["ts_http_client"]:
        if request["body"]:
            m = parse_lenient(request["body"].encode())
            assert m.pxy
            assert challenge(m).endswith(b"true")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "message is not signed"),
        ("", "invalid signature length, expected: 65, found: 0"),
        ("6566", "invalid signature length, expected: 65, found: 2"),
        ("zz", "failed to decode signature: Invalid character 'z' at position 0"),
        ("65 6", "failed to decode signature: Invalid character ' ' at position 2"),
        ("656", "failed to decode signature: Odd number of digits"),
        ("00" * 65, "invalid signature type (expected either sr25519 or ed25519)"),
    ],
)
def test_a_signature_that_cannot_be_one_is_refused_in_the_daemons_words(text, why):
    with pytest.raises(BadSignature) as caught:
        parse_signature(text)
    assert caught.value.text == why


@pytest.mark.parametrize("kind", [b"e", b"s"])
def test_a_key_that_is_no_point_of_the_curve_verifies_nothing(kind):
    assert verify(kind + b"\1" * 64, b"x" * 16, b"\xff" * 32).endswith("verification failed")


@pytest.mark.parametrize(
    "secret", ["", "0x12", "0x" + "zz" * 32, "these are not words", "0x" + "ab" * 33]
)
def test_a_secret_that_is_none_is_refused_without_being_repeated(secret):
    with pytest.raises(ConfigError) as caught:
        keys.parse_secret(secret)
    assert not secret or secret not in caught.value.text


def test_a_key_file_holds_hex_or_words(tmp_path):
    file = tmp_path / "key"
    for secret in {v["secret"] for v in SIGNATURES}:
        file.write_text(f"  {secret}\n")
        assert keys.read_seed(file) == keys.parse_secret(secret)
    with pytest.raises(ConfigError, match="No such file"):
        keys.read_seed(tmp_path / "absent")
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="it is no text"):
        keys.read_seed(file)
    file.write_text("0x00")
    with pytest.raises(ConfigError, match="64 digits"):
        keys.read_seed(file)


@pytest.mark.parametrize(
    "text", ["", "0OIl", "5EGtD8gtMcKPupQ187AY8VMx3SP6489nnFUv7b9cC2eRKiqx", "111"]
)
def test_an_account_with_an_error_in_it_is_refused(text):
    with pytest.raises(ConfigError):
        keys.parse_account(text)


@pytest.mark.parametrize("text", ["", "0x", "ab" * 31, "zz" * 32, "ab cd"])
def test_a_public_key_is_64_hex_digits(text):
    with pytest.raises(ConfigError):
        keys.parse_public_key(text)
    assert keys.parse_public_key("0x" + "ab" * 32) == bytes.fromhex("ab" * 32)
