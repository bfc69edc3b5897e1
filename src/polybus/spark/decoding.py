"""Captured payloads as JSON text, one wire at a time; plain functions without Spark.

Invariant: a decoder returns JSON text or raises `ValueError` with a reason; it never returns half of a value, and
what a payload unpacks to is bounded.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import zlib
from collections.abc import Callable
from typing import Any, Final

MAX_UNPACKED: Final = 64 * 1024 * 1024  # the largest frame of any wire
GZIP: Final = b"\x1f\x8b"


def decode_json(payload: bytes) -> str:
    """JSON as it is, checked and made compact."""
    return to_json(_loads(payload))


def _loads(payload: bytes) -> Any:
    try:
        return json.loads(payload)
    except (ValueError, RecursionError) as exc:
        raise ValueError(f"no JSON: {exc}") from exc


def decode_t2(payload: bytes) -> str:
    """A T2 value: CBOR, under gzip when it is long (protocol page T2, section on payloads)."""
    import cbor2

    raw = unzip(payload, 31) if payload.startswith(GZIP) else payload
    if not raw:
        raise ValueError("no CBOR: it is empty")
    source = io.BytesIO(raw)
    try:
        text = to_json(cbor2.load(source))
    except (cbor2.CBORError, RecursionError) as exc:
        raise ValueError(f"no CBOR: {exc}") from exc
    if left := len(raw) - source.tell():
        # Most texts begin with a byte that is a small number in CBOR.
        raise ValueError(f"no CBOR: {left} bytes follow the value")
    return text


def decode_rmb(payload: bytes) -> str:
    """An RMB message: JSON whose `dat` (or `data`) is base64, decoded to JSON or text where it is one.

    Of a captured call only what was in `dat` is there: any JSON.
    """
    message = _loads(payload)
    for field in ("dat", "data") if isinstance(message, dict) else ():
        if isinstance(message.get(field), str):
            message[field] = _plain(message[field])
    return to_json(message)


def _plain(text: str) -> Any:
    try:
        raw = base64.b64decode(text, validate=True)
        inner = raw.decode()
    except (binascii.Error, ValueError):
        return text  # base64 is a convention that not every client keeps
    try:
        return json.loads(inner)
    except ValueError:
        return inner


def decode_zbus(payload: bytes) -> str:
    """A Zbus RPC request (`module`, `method`, `params`) or answer (`result`, `error`); a bare result stays as it is."""
    value = _loads(payload)
    if isinstance(value, dict):
        known = ("module", "method", "params", "result", "error")
        value = {key: value[key] for key in known if key in value} or value
    return to_json(value)


def decode_gsb(payload: bytes) -> str:
    """A GSB body: FlexBuffers, under zlib where the sender packed it."""
    from flatbuffers import flexbuffers

    raw = unzip(payload, 15) if _is_zlib(payload) else payload
    if len(raw) < 3:
        raise ValueError("no FlexBuffers: it is too short")
    try:
        return to_json(flexbuffers.Loads(raw))
    except Exception as exc:
        # The library trusts its input: noise ends in errors of any kind.
        raise ValueError(f"no FlexBuffers: {type(exc).__name__} {exc}") from exc


def _is_zlib(payload: bytes) -> bool:
    return len(payload) > 2 and payload[0] == 0x78 and (payload[0] * 256 + payload[1]) % 31 == 0


def unzip(payload: bytes, window: int) -> bytes:
    """Unpacked bytes, bounded.

    Raises:
        ValueError.
    """
    unpacker = zlib.decompressobj(window)
    try:
        raw = unpacker.decompress(payload, MAX_UNPACKED)
    except zlib.error as exc:
        raise ValueError(f"it does not unpack: {exc}") from exc
    if unpacker.unconsumed_tail:
        raise ValueError(f"it unpacks to more than {MAX_UNPACKED} bytes")
    if not unpacker.eof:
        raise ValueError("it does not unpack: it ends too early")
    return raw


def to_json(value: object) -> str:
    """Compact JSON; bytes become `{"$base64": …}`, as a bridge would send them."""
    return json.dumps(_jsonable(value), separators=(",", ":"), ensure_ascii=False, default=str)


def _jsonable(value: object) -> object:
    if isinstance(value, dict):
        return {_key(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_jsonable(item) for item in value]
    if isinstance(value, (bytes, bytearray)):
        return {"$base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)  # JSON has no word for it
    return value


def _key(key: object) -> str:
    return key if isinstance(key, str) else to_json(key)


DECODERS: Final[dict[str, Callable[[bytes], str]]] = {
    "json": decode_json,
    "t2": decode_t2,
    "rmb": decode_rmb,
    "zbus": decode_zbus,
    "gsb": decode_gsb,
}


# What comes by our own wire or by HTTP mostly is JSON; if it is not, the reason says so.
OTHER_NAMES: Final = {"native": "json", "http": "json"}


def decode(wire: str, payload: bytes | None) -> tuple[str | None, str | None]:
    """The JSON text of a payload, or None and the reason why there is none."""
    decoder = DECODERS.get(OTHER_NAMES.get(wire, wire))
    if decoder is None:
        return None, f"no decoder for {wire!r}; there are {', '.join(DECODERS)}"
    if payload is None:
        return None, "it is null"
    try:
        return decoder(payload), None
    except ValueError as exc:
        return None, str(exc)[:300]
