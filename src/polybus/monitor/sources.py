"""What a node hands to its monitor.

Invariant: the monitor reads the bus through this and nothing else, so it works the same in front of any engine and
without any protocol room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from polybus.core.router import Router
from polybus.core.topics import Topics
from polybus.monitor.shapes import Tracker, Twin
from polybus.transports.connection import Connections


class NodeHealth(Protocol):
    """How the node is at this moment."""

    @property
    def state(self) -> str: ...
    @property
    def ready(self) -> bool: ...
    @property
    def pending_calls(self) -> int: ...
    @property
    def loop_lag_s(self) -> float: ...


def _none() -> Sequence[str]:
    return ()


def _no_trackers() -> Sequence[Tracker]:
    return ()


def _no_twins() -> Sequence[Twin]:
    return ()


@dataclass(slots=True)
class Sources:
    """Where the numbers come from. The last two are filled in by the rooms that have something to tell."""

    router: Router
    connections: Connections
    topics: Topics | None
    health: Callable[[], NodeHealth]
    addresses: Callable[[], Sequence[str]] = _none
    data: Path | None = None
    trackers: Callable[[], Sequence[Tracker]] = field(default=_no_trackers)
    twins: Callable[[], Sequence[Twin]] = field(default=_no_twins)
