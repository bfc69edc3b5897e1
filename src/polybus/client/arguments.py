"""What a program may hand to a verb, checked before anything of it is sent.

Invariant: a wrong argument is an error of the one call that was given it. Were it sent, the node would end the
connection for it, and what others had under way would fail too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from polybus.errors import LocalProtocolError
from polybus.model.record import NewRecord

# A tuple, for a union would be made anew for each record.
BYTES_LIKE: Final = (bytes, bytearray, memoryview)


def check_headers(headers: Mapping[str, str]) -> None:
    """Refuse headers that are no text.

    Raises:
        LocalProtocolError: it names the header.
    """
    if not isinstance(headers, Mapping):
        raise _wrong("headers", "a mapping of str to str", headers)
    for key, value in headers.items():
        if not isinstance(key, str):
            raise _wrong("the name of a header", "str", key)
        if not isinstance(value, str):
            raise _wrong(f"the header {key!r}", "str", value)


def check_record(record: NewRecord) -> None:
    """Refuse a record that the wire has no form for.

    Raises:
        LocalProtocolError: it names the field.
    """
    if not isinstance(record.payload, BYTES_LIKE):
        raise _wrong("payload", "bytes", record.payload)
    if not isinstance(record.key, bytes):
        raise _wrong("key", "bytes", record.key)
    if not isinstance(record.tag, str):
        raise _wrong("tag", "str", record.tag)
    if not isinstance(record.id, str):
        raise _wrong("id", "str", record.id)
    if not isinstance(record.time_ms, int):
        raise _wrong("time_ms", "int", record.time_ms)
    # What counts as empty is sent too, whatever it is.
    if record.headers or not isinstance(record.headers, dict):
        check_headers(record.headers)


def _wrong(what: str, wanted: str, given: object) -> LocalProtocolError:
    return LocalProtocolError(f"{what} must be {wanted}, not {type(given).__name__}")
