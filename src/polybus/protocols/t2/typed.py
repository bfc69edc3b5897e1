"""Typed protocols: a prefix and the types of what travels under it, written as CBOR the way serde writes them.

A struct is a map by field names (msgspec.Struct, dataclass), a newtype is its inner value, an enum without data is its
name. Invariant: what one side encodes the other side's type accepts, or decoding raises `RemoteProtocolError`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import cbor2
import msgspec

from polybus.errors import InvalidName, RemoteProtocolError
from polybus.protocols.t2.topics import is_word_topic, with_prefix

M = TypeVar("M")
Q = TypeVar("Q")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class PublishProtocol(Generic[M]):
    """Messages of one type that are published below one prefix."""

    prefix: str
    message: type[M]

    def __post_init__(self) -> None:
        _check(self.prefix)

    def topic(self, topic: str) -> str:
        """The topic on the wire; empty means the prefix itself."""
        return with_prefix(self.prefix, topic)


@dataclass(frozen=True, slots=True)
class RequestProtocol(Generic[Q, R]):
    """Requests of one type that are answered with another below one prefix."""

    prefix: str
    request: type[Q]
    response: type[R]

    def __post_init__(self) -> None:
        _check(self.prefix)

    def topic(self, topic: str) -> str:
        """The topic on the wire; empty means the prefix itself."""
        return with_prefix(self.prefix, topic)


def _check(prefix: str) -> None:
    if not is_word_topic(prefix):
        raise InvalidName(prefix, "a prefix is a topic without wildcards")


def encode(value: object) -> bytes:
    """A value as CBOR."""
    return cbor2.dumps(msgspec.to_builtins(value, builtin_types=(bytes, bytearray)))


def decode(payload: bytes, wanted: type[M], protocol: str) -> M:
    """A value of the wanted type.

    Raises:
        RemoteProtocolError: the payload is no CBOR, or not of that type.
    """
    try:
        value: Any = cbor2.loads(payload)
        return msgspec.convert(value, wanted)
    except (cbor2.CBORDecodeError, msgspec.ValidationError, ValueError) as exc:
        raise RemoteProtocolError(
            f"a message of the protocol {protocol} is malformed: {exc}"
        ) from exc
