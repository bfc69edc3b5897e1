"""What a program sends and gets: bytes untouched, anything else as JSON.

Invariant: bytes are never re-encoded; what does not decode as the type asked for raises an error that names the type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar, overload

import msgspec

from polybus.errors import LocalProtocolError, RemoteProtocolError

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


class Message(msgspec.Struct, frozen=True):
    """A publication, or a call as its handler may ask for it."""

    name: str
    payload: bytes
    headers: Mapping[str, str] = {}

    def decode(self, type: type[T]) -> T:
        """The JSON payload as a value of `type`.

        Raises:
            RemoteProtocolError: it is none.
        """
        return decode_payload(self.payload, type, self.name)


def encode_payload(value: object) -> bytes:
    """Bytes as they are, nothing for None, JSON for the rest.

    Raises:
        LocalProtocolError: JSON has no form for it.
    """
    if isinstance(value, bytes):
        return value
    if value is None:
        return b""
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    try:
        return _encode(value)
    except (TypeError, ValueError, OverflowError) as exc:
        raise LocalProtocolError(
            f"a value of {type(value).__name__} cannot be sent: {exc}"
        ) from exc


@overload
def decode_payload(payload: bytes, kind: None, name: str) -> bytes: ...
@overload
def decode_payload(payload: bytes, kind: type[T], name: str) -> T: ...
def decode_payload(payload: bytes, kind: type[T] | None, name: str) -> T | bytes:
    """The payload as `kind`; bytes, or no kind at all, leave it as it is.

    Raises:
        RemoteProtocolError: it is no JSON of that shape.
    """
    if kind is None or kind is bytes:
        return payload
    try:
        value: T = _decoder(kind)(payload or b"null")  # type: ignore[arg-type]
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        shown = getattr(kind, "__name__", str(kind))
        raise RemoteProtocolError(f"{name} sent something that is no {shown}: {exc}") from exc
    return value


@lru_cache(maxsize=256)
def _decoder(kind: Any) -> Callable[[bytes], Any]:
    return msgspec.json.Decoder(kind).decode
