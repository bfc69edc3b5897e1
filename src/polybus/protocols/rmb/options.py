"""What the room is told before it starts.

Invariant: every number bounds something that a peer or a client could otherwise grow or hold for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from polybus.protocols.rmb.message import Generation

PushSide = Literal["left", "right"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RmbOptions:
    """Settings of the room."""

    twin: int
    generation: Generation = "rs"  # of the Redis keys, and of twins that do not say theirs
    push_side: PushSide = "left"  # where clients push, as all real ones do; the other end is oldest
    services: tuple[str, ...] = ()  # commands offered to other wires
    workers: int = 1000  # messages on their way to other twins (protocol page §3.7)
    connections: int = 32  # to one peer
    max_body: int = 20 * 1024 * 1024
    max_queue: int = 500  # requests that wait for the handlers of one command (protocol page §3.2)
    max_pending: int = 200_000  # requests that wait for their answers
    twin_rate: int = 600_000  # messages of one twin in a minute
    max_age: int = 60  # seconds after `now`, as the real daemon (protocol page §3.4)
    clock_skew: int = 60  # seconds that a peer's clock may be ahead
    post_timeout: float = 30.0
    retry_pause: float = 0.1  # doubled with every attempt
    cache: float = 600.0  # seconds that a looked-up twin is believed (protocol page §3.2)
    uploads: Path | None = None
    proxy: bool = False
