"""The meta maps of the durable verbs, which both ends of the native wire read.

Invariant: every field has a default that means what it meant before the field existed.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

import msgspec

from polybus.core.group_options import BEGINNING, Start
from polybus.errors import RemoteProtocolError
from polybus.model.record import Record

CREATE: Final = 0x01  # flag of Produce: an unknown topic is declared
RECORD_COST: Final = 64  # bytes that a record counts for beside its key and payload
_OFFSET: Final = Struct(">Q")


class Consume(msgspec.Struct, omit_defaults=True):
    """The meta map of a Consume. A group that is missing is declared at `start`; `options` replaces what it has."""

    group: str
    start: Start = BEGINNING
    options: dict[str, Any] | None = None
    create: bool = False


class Credit(msgspec.Struct, omit_defaults=True):
    """The meta map of a Credit; without `bytes` only records count."""

    records: int = 0
    bytes: int | None = None


class Nack(msgspec.Struct, omit_defaults=True):
    """The meta map of a Nack."""

    delay_ms: int = 0
    reason: str = ""


class Fetch(msgspec.Struct, omit_defaults=True):
    """The meta map of a Fetch; `end` is exclusive, and without it the end of the topic.

    Without `verify` the asker looks at the checksums of the chunks' bodies.
    """

    start: int
    end: int | None = None
    max_bytes: int = 4 * 1024 * 1024
    verify: bool = True


class Chunks(msgspec.Struct):
    """The meta map of a Chunks; the payload is that many chunks of these sizes."""

    first: int
    next: int
    sizes: list[int]


def size_of(record: Record) -> int:
    """What a record takes of a credit in bytes."""
    return len(record.payload) + len(record.key) + RECORD_COST


def encode_offset(offset: int) -> bytes:
    """The payload of a Produced."""
    return _OFFSET.pack(offset)


def parse_offset(payload: bytes) -> int:
    """The first offset in a Produced.

    Raises:
        RemoteProtocolError: it has not eight bytes.
    """
    if len(payload) < _OFFSET.size:
        raise RemoteProtocolError("a Produced without an offset")
    offset: int = _OFFSET.unpack_from(payload)[0]
    return offset
