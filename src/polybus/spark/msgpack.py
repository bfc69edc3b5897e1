"""The part of MessagePack that the meta maps of the native wire use, in plain Python for executors.

Invariant: `unpack(pack(value)) == value` for maps, lists, text, bytes, integers of 64 bits, floats, booleans and None;
what is cut short or unknown raises `RemoteProtocolError` and nothing else.
"""

from __future__ import annotations

from struct import Struct, error, pack_into, unpack_from
from typing import Any, Final

from polybus.errors import RemoteProtocolError

MAX_DEPTH: Final = 16  # the deepest answer of a node has four levels

_LENGTHS: Final = {
    0xC4: ("bin", ">B"),
    0xC5: ("bin", ">H"),
    0xC6: ("bin", ">I"),
    0xD9: ("str", ">B"),
    0xDA: ("str", ">H"),
    0xDB: ("str", ">I"),
    0xDC: ("list", ">H"),
    0xDD: ("list", ">I"),
    0xDE: ("map", ">H"),
    0xDF: ("map", ">I"),
}
_NUMBERS: Final = {
    0xCA: ">f",
    0xCB: ">d",
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_CONSTANTS: Final = {0xC0: None, 0xC2: False, 0xC3: True}


def pack(value: object) -> bytes:
    """One value as bytes."""
    out = bytearray()
    _put(out, value)
    return bytes(out)


def _put(out: bytearray, value: object) -> None:
    if value is None or isinstance(value, bool):
        out.append({None: 0xC0, False: 0xC2, True: 0xC3}[value])
    elif isinstance(value, int):
        _put_number(out, 0xD3 if value < 0 else 0xCF, value)
    elif isinstance(value, str):
        raw = value.encode()
        _put_number(out, 0xDB, len(raw))
        out += raw
    elif isinstance(value, bytes):
        _put_number(out, 0xC6, len(value))
        out += value
    elif isinstance(value, (list, tuple)):
        _put_number(out, 0xDD, len(value))
        for item in value:
            _put(out, item)
    elif isinstance(value, dict):
        _put_number(out, 0xDF, len(value))
        for key, item in value.items():
            _put(out, key)
            _put(out, item)
    else:
        raise TypeError(f"{type(value).__name__} has no place in a meta map")


def _put_number(out: bytearray, kind: int, value: int) -> None:
    form = Struct(_NUMBERS.get(kind) or _LENGTHS[kind][1])
    at = len(out) + 1
    out.append(kind)
    out += bytes(form.size)
    pack_into(form.format, out, at, value)


def unpack(raw: bytes) -> Any:
    """The value that `raw` begins with.

    Raises:
        RemoteProtocolError.
    """
    try:
        return _take(raw, 0, 0)[0]
    except (error, IndexError, UnicodeDecodeError, TypeError) as exc:
        raise RemoteProtocolError(f"a meta map does not fit: {exc}") from exc


def _take(raw: bytes, at: int, depth: int) -> tuple[Any, int]:
    if depth > MAX_DEPTH:
        raise RemoteProtocolError(f"a meta map is deeper than {MAX_DEPTH}")
    kind = raw[at]
    at += 1
    if kind < 0x80:
        return kind, at
    if kind >= 0xE0:
        return kind - 0x100, at
    if kind in _CONSTANTS:
        return _CONSTANTS[kind], at
    if kind in _NUMBERS:
        form = Struct(_NUMBERS[kind])
        return unpack_from(form.format, raw, at)[0], at + form.size
    if kind < 0x90:
        return _take_map(raw, at, kind & 0x0F, depth)
    if kind < 0xA0:
        return _take_list(raw, at, kind & 0x0F, depth)
    if kind < 0xC0:
        return _take_bytes(raw, at, kind & 0x1F, True)
    if kind not in _LENGTHS:
        raise RemoteProtocolError(f"a meta map holds the unknown kind {kind:#x}")
    what, length = _LENGTHS[kind]
    count = unpack_from(length, raw, at)[0]
    at += Struct(length).size
    if what == "map":
        return _take_map(raw, at, count, depth)
    if what == "list":
        return _take_list(raw, at, count, depth)
    return _take_bytes(raw, at, count, what == "str")


def _take_bytes(raw: bytes, at: int, size: int, text: bool) -> tuple[Any, int]:
    end = at + size
    if end > len(raw):
        raise RemoteProtocolError("a meta map ends too early")
    return raw[at:end].decode() if text else raw[at:end], end


def _take_list(raw: bytes, at: int, count: int, depth: int) -> tuple[Any, int]:
    items = []
    for _ in range(count):
        item, at = _take(raw, at, depth + 1)
        items.append(item)
    return items, at


def _take_map(raw: bytes, at: int, count: int, depth: int) -> tuple[Any, int]:
    found = {}
    for _ in range(count):
        key, at = _take(raw, at, depth + 1)
        found[key], at = _take(raw, at, depth + 1)
    return found, at
