"""The protocol rooms as the node sees them: one list, in the order in which first bytes are judged.

Invariant: a room appears here once, and nothing else in the server names it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from polybus.core.router import Router
from polybus.server.config import Config
from polybus.transports.connection import SessionFactory


def _nothing_pending() -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Wire:
    """One protocol: how its first bytes look and who serves it."""

    name: str
    matches: Callable[[bytes], bool | None]
    session: SessionFactory
    pending: Callable[[], int] = _nothing_pending
    """Calls in flight that the room keeps in a table of its own instead of the core's."""


def wires(router: Router, config: Config) -> dict[str, Wire]:
    """Every wire of a node by the name that pins it in an address."""
    found: list[Wire] = []
    return {wire.name: wire for wire in found}
