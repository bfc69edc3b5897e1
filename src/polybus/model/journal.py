"""The row of `polybus.journal`: one per ended call, publication, produce, delivery and error (DESIGN 3).

Invariant: this file decides what a row is; `core.journal` writes it, and so do the hot loops of GSB and T2. A row is
the payload of one record, a JSON array that begins with the version; a newer version adds elements at the end, so an
older reader leaves them and a newer one takes their defaults. The record's time is that of the row's end.

    [1, time_us, kind, id, wire_in, wire_out, name, caller, bytes_in, bytes_out, status, duration_us, error]

`id` ties a call's row to those captured in full; `caller` is who asked, `name` who answered. `status` is a
`model.message.Status`. JSON rather than something smaller: Spark reads it without a Python function per row, which
costs more than the bytes do.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from typing import Final, Literal, get_args

from polybus.errors import CorruptRecord

TOPIC: Final = "polybus.journal"
VERSION: Final = 1
# What `[[capture]] kind = "call"` puts beside a payload: the tag says which half it is, headers say of what.
REQUEST_TAG: Final = "request"
REPLY_TAG: Final = "reply"
CALL_ID: Final = "call-id"
CALL_NAME: Final = "call-name"
CALL_STATUS: Final = "call-status"
CALL_FROM: Final = "call-from"  # the caller's wire
CALL_TO: Final = "call-to"  # the service's wire
CALL_CALLER: Final = "call-caller"
CALL_PART: Final = "call-part"  # of a streamed reply, from 0; the last one has a status
# And beside a captured publication, whose name is also its tag.
NAME: Final = "name"
WIRE: Final = "wire"
PUBLISHER: Final = "publisher"
VIA: Final = "via"  # the topics whose relays it has passed, so that it goes round no second time

Kind = Literal["call", "publish", "produce", "deliver", "error"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of something that ended. Times are microseconds since 1970; a duration of -1 is not known."""

    time_us: int
    kind: Kind
    id: str
    wire_in: str
    wire_out: str
    name: str
    caller: str = ""
    bytes_in: int = 0
    bytes_out: int = 0
    status: int = 0
    duration_us: int = -1
    error: str = ""


FIELDS: Final = (
    ("version", "int"),
    ("time_us", "bigint"),
    ("kind", "string"),
    ("id", "string"),
    ("wire_in", "string"),
    ("wire_out", "string"),
    ("name", "string"),
    ("caller", "string"),
    ("bytes_in", "bigint"),
    ("bytes_out", "bigint"),
    ("status", "int"),
    ("duration_us", "bigint"),
    ("error", "string"),
)
"""The elements of a row in order, with their types in Spark SQL."""


def encode_row(row: Row) -> bytes:
    """The payload of a row."""
    return json.dumps([VERSION, *astuple(row)], separators=(",", ":"), ensure_ascii=False).encode()


def parse_row(payload: bytes) -> Row:
    """A row from its payload; elements of a newer version are left out.

    Raises:
        CorruptRecord: no row.
    """
    try:
        items = json.loads(payload)
        version, *values = items
        if not isinstance(items, list) or not isinstance(version, int) or version < VERSION:
            raise ValueError("it does not begin with a version")
        row = Row(*values[: len(FIELDS) - 1])
        if row.kind not in KINDS or not isinstance(row.time_us, int):
            raise ValueError(f"its kind is {row.kind!r}")
    except (ValueError, TypeError) as exc:
        raise CorruptRecord(TOPIC, 0, f"no journal row: {exc}") from exc
    return row
