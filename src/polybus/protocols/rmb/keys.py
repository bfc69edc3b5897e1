"""A twin's secret and the public keys of others: from the forms people have them in to bytes.

Invariant: a secret never appears in an error text. A phrase is turned into its seed as Substrate does it: from the
entropy, not from the words (protocol page §3.5).
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from polybus.errors import ConfigError

KEY_BYTES: Final = 32
_ALPHABET: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_INDEX: Final = {character: value for value, character in enumerate(_ALPHABET)}
_SS58_PREFIX: Final = b"SS58PRE"


def read_seed(path: Path) -> bytes:
    """The seed in a key file: `0x` and 64 hex digits, or a phrase of words.

    Raises:
        ConfigError: no such file, or its content is neither.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is no text"
        raise ConfigError(f"cannot read the key file {path}: {reason}") from exc
    try:
        return parse_secret(text)
    except ConfigError as exc:
        raise ConfigError(f"{path}: {exc.text}") from None


def parse_secret(text: str) -> bytes:
    """The seed that a secret stands for.

    Raises:
        ConfigError: neither hex nor a phrase; the secret is not repeated.
    """
    text = text.strip()
    if text.startswith("0x"):
        seed = _from_hex(text[2:])
        if seed is None or len(seed) != KEY_BYTES:
            raise ConfigError("a key in hex is 0x and 64 digits")
        return seed
    return _seed_of_phrase(" ".join(text.lower().split()))


def _seed_of_phrase(phrase: str) -> bytes:
    from mnemonic import Mnemonic

    try:
        entropy = bytes(Mnemonic("english").to_entropy(phrase))
    except (ValueError, LookupError):
        raise ConfigError(
            "a key is 0x and 64 hex digits, or a phrase of 12 to 24 English words"
        ) from None
    return hashlib.pbkdf2_hmac("sha512", entropy, b"mnemonic", 2048)[:KEY_BYTES]


def parse_public_key(text: str) -> bytes:
    """A public key in hex, with or without `0x`.

    Raises:
        ConfigError.
    """
    key = _from_hex(text.removeprefix("0x"))
    if key is None or len(key) != KEY_BYTES:
        raise ConfigError(f"{text[:80]!r} is no public key of 64 hex digits")
    return key


def _from_hex(text: str) -> bytes | None:
    try:
        return bytes.fromhex(text) if text.isalnum() else None
    except ValueError:
        return None


def parse_account(text: str) -> bytes:
    """The public key in an SS58 address of any network.

    Raises:
        ConfigError: other characters, another length, or the checksum is wrong.
    """
    raw = _from_base58(text)
    # One or two bytes of network, the key, two of checksum.
    if raw is None or len(raw) not in (KEY_BYTES + 3, KEY_BYTES + 4):
        raise ConfigError(f"{text[:80]!r} is no SS58 account of a key of {KEY_BYTES} bytes")
    body, checksum = raw[:-2], raw[-2:]
    if hashlib.blake2b(_SS58_PREFIX + body).digest()[:2] != checksum:
        raise ConfigError(f"{text[:80]!r} has a wrong checksum")
    return body[-KEY_BYTES:]


def encode_account(public_key: bytes, network: int = 42) -> str:
    """The SS58 address of a public key; 42 is the network that means none in particular."""
    body = bytes([network]) + public_key
    raw = body + hashlib.blake2b(_SS58_PREFIX + body).digest()[:2]
    number, text = int.from_bytes(raw), ""
    while number:
        number, digit = divmod(number, 58)
        text = _ALPHABET[digit] + text
    return "1" * (len(raw) - len(raw.lstrip(b"\0"))) + text


def _from_base58(text: str) -> bytes | None:
    if not text or len(text) > 64 or not _INDEX.keys() >= set(text):
        return None
    number = 0
    for character in text:
        number = number * 58 + _INDEX[character]
    leading = len(text) - len(text.lstrip("1"))
    return b"\0" * leading + number.to_bytes((number.bit_length() + 7) // 8)
