"""Signatures of messages, both schemes (protocol page §3.5).

Invariant: what is signed and what is verified is the MD5 of the same text; the type byte alone tells the scheme. The
two libraries are imported when a key is first used, so that a node without a twin needs neither.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final, Literal

from polybus.errors import Refused
from polybus.protocols.rmb.message import Message

KeyType = Literal["sr25519", "ed25519"]
ED25519: Final = b"e"
SR25519: Final = b"s"
SIGNATURE_BYTES: Final = 65  # the type byte and 64 of signature


class BadSignature(Refused):
    """The signature is absent, unreadable or of another key; the text is what the peer is told."""


def challenge(m: Message) -> bytes:
    """The text that a signature covers; `exp`, `try`, `tag`, `shm` and `err` are not in it."""
    dst = "".join(map(str, m.dst))
    pxy = "true" if m.pxy else "false"
    return f"{m.ver}{m.uid}{m.cmd}{m.dat}{m.src}{dst}{m.ret}{m.now}{pxy}".encode(
        "utf-8", "surrogatepass"
    )


def digest(m: Message) -> bytes:
    """The 16 bytes that are signed."""
    return hashlib.md5(challenge(m), usedforsecurity=False).digest()


def upload_digest(timestamp: int, source: int) -> bytes:
    """The 16 bytes that are signed for a file upload."""
    return hashlib.md5(f"{timestamp}{source}".encode(), usedforsecurity=False).digest()


class Signer:
    """Signs with one secret key."""

    def __init__(self, key_type: KeyType, seed: bytes) -> None:
        self.key_type = key_type
        self.public_key, self._sign = (_sr25519 if key_type == "sr25519" else _ed25519)(seed)

    def sign(self, digest: bytes) -> str:
        """The signature as it stands in a message."""
        return self._sign(digest).hex()


def _ed25519(seed: bytes) -> tuple[bytes, Callable[[bytes], bytes]]:
    from nacl.bindings import crypto_sign, crypto_sign_seed_keypair

    public, secret = crypto_sign_seed_keypair(seed)
    return public, lambda digest: ED25519 + crypto_sign(digest, secret)[:64]


def _sr25519(seed: bytes) -> tuple[bytes, Callable[[bytes], bytes]]:
    import sr25519

    pair = sr25519.pair_from_seed(seed)
    return pair[0], lambda digest: SR25519 + sr25519.sign(pair, digest)


def parse_signature(text: str | None) -> bytes:
    """The 65 bytes of a signature, in hex of either case.

    Raises:
        BadSignature: with the words of the second generation's daemon.
    """
    if text is None:
        raise BadSignature("message is not signed")
    try:
        raw = bytes.fromhex(text) if text.isalnum() or not text else b""
    except ValueError:
        raw = b""
    if text and len(raw) * 2 != len(text):
        raise BadSignature(f"failed to decode signature: {_why_no_hex(text)}")
    if len(raw) != SIGNATURE_BYTES:
        raise BadSignature(
            f"invalid signature length, expected: {SIGNATURE_BYTES}, found: {len(raw)}"
        )
    if raw[:1] not in (ED25519, SR25519):
        raise BadSignature("invalid signature type (expected either sr25519 or ed25519)")
    return raw


def _why_no_hex(text: str) -> str:
    if len(text) % 2:
        return "Odd number of digits"
    position = next(i for i, c in enumerate(text) if c not in "0123456789abcdefABCDEF")
    return f"Invalid character {text[position]!r} at position {position}"


def verify(signature: bytes, digest: bytes, public_key: bytes) -> str:
    """Why a signature of 65 bytes is not the key's, or "" when it is."""
    if signature[:1] == ED25519:
        return "" if _verify_ed25519(signature[1:], digest, public_key) else ED25519_FAILED
    return "" if _verify_sr25519(signature[1:], digest, public_key) else SR25519_FAILED


ED25519_FAILED: Final = "ed25519 signature verification failed"
SR25519_FAILED: Final = "sr25519 signature verification failed"


def _verify_ed25519(signature: bytes, digest: bytes, public_key: bytes) -> bool:
    from nacl.bindings import crypto_sign_open
    from nacl.exceptions import BadSignatureError

    try:
        crypto_sign_open(signature + digest, public_key)
    except (BadSignatureError, ValueError):
        return False
    return True


def _verify_sr25519(signature: bytes, digest: bytes, public_key: bytes) -> bool:
    import sr25519

    try:
        return bool(sr25519.verify(signature, digest, public_key))
    except (ValueError, TypeError):  # a key that is no point of the curve
        return False
