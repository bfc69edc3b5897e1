"""What the bits of topic and group masks mean, in both dialects (protocol page §7).

Invariant: the rpc bit is 2 and ack-required 64 everywhere; a bit that a dialect does not know is kept and shown, and
does nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Dialect = Literal["0.8", "0.9"]
RPC: Final = 2
ACK: Final = 64


@dataclass(frozen=True, slots=True)
class Bits:
    """One dialect's bits; 0 for what it does not have."""

    pause: int
    exclusive: int
    delete_on_exit: int
    memory: int


BITS: Final[dict[Dialect, Bits]] = {
    "0.8": Bits(pause=1, exclusive=4, delete_on_exit=8, memory=0),
    "0.9": Bits(pause=8, exclusive=16, delete_on_exit=32, memory=1),
}


def parse_mask(text: str) -> int:
    """A mask from a header, within what the original's `int` holds.

    Raises:
        ValueError: with the text of the original's exception, which clients show.
    """
    try:
        value = int(text) if text.isascii() else -(1 << 40)
    except ValueError:
        value = -(1 << 40)
    if not -(1 << 31) <= value < 1 << 31:
        raise ValueError(f'java.lang.NumberFormatException: For input string: "{text[:80]}"')
    return value
