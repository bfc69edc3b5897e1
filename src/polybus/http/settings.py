"""What the HTTP side of a node is told before it starts.

Invariant: every number bounds something that a peer could otherwise grow or hold for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Bounds and the origin rule."""

    max_head: int = 64 * 1024  # browsers with many cookies send up to 16 KiB
    max_headers: int = 256
    max_body: int = 32 * MIB  # as the stock Zbus server (protocol page §1)
    max_pipelined: int = 128  # ordered requests of one connection that wait for their answers
    # From the first byte of a head to its last, and between parts of a body
    request_timeout: float = 30.0
    idle_timeout: float = 300.0  # as the stock Zbus server (protocol page §1)
    origins: tuple[str, ...] = ()  # other origins whose pages may change things; "*" is all
    hosts: frozenset[str] = field(default=frozenset({"localhost"}))
    """Names by which this node is known, in lower case; a Host that is an IP address is always known."""
