"""The way to a node inside the same process: no sockets, the same bytes.

Invariant: a door is open exactly as long as its node takes connections; the last one opened under a name is found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from polybus.errors import PeerUnavailable
from polybus.transports.connection import Connection, Connections, SessionFactory

Door = Callable[[Connections, SessionFactory], Connection]
"""Joins a client's new session to the node and returns the client's connection."""

DEFAULT: Final = ""

_doors: dict[str, Door] = {}


def open_door(door: Door, name: str = DEFAULT) -> None:
    """Let `memory:NAME` lead to a node."""
    _doors[name] = door


def close_door(door: Door, name: str = DEFAULT) -> None:
    """Take it back, unless another node has taken the name over."""
    if _doors.get(name) == door:
        del _doors[name]


def find_door(name: str = DEFAULT) -> Door:
    """Where `memory:NAME` leads.

    Raises:
        PeerUnavailable: no node of this process goes by that name.
    """
    try:
        return _doors[name]
    except KeyError:
        raise PeerUnavailable(f"no node of this process is reached by memory:{name}") from None
