"""Names on the native wire: they are the shared names, spelt the same.

Invariant: what these functions let through is spelt alike by every room that can spell it.
"""

from __future__ import annotations

from polybus.errors import InvalidName, LocalProtocolError
from polybus.model.name import MAX_NAME_BYTES, check_name
from polybus.model.pattern import check_pattern

WIRE = "native"

to_service = check_name
"""A service's name as the core wants it; raises InvalidName."""

to_pattern = check_pattern
"""A subscription's or publication's topic as the core wants it; raises InvalidName."""


def check_sendable(name: str) -> None:
    """Refuse what a frame cannot carry as its name; whether it is one otherwise is for the node to say.

    Raises:
        InvalidName: too long, or no Unicode text.
        LocalProtocolError: no text at all.
    """
    if not isinstance(name, str):
        raise LocalProtocolError(f"a name must be str, not {type(name).__name__}")
    # Nearly all are like this, and it is on the way of every call.
    if len(name) <= MAX_NAME_BYTES and name.isascii():
        return
    try:
        size = len(name.encode())
    except UnicodeEncodeError as exc:
        raise InvalidName(name[:64], "it is no Unicode text") from exc
    if size > MAX_NAME_BYTES:
        raise InvalidName(name[:64] + "…", f"longer than {MAX_NAME_BYTES} bytes")
