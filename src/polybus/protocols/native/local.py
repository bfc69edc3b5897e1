"""The way to a node inside the same process: no sockets, the same bytes.

Invariant: a door is open exactly as long as its node takes connections; the last one opened under a name is found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from polybus.errors import LocalProtocolError, PeerUnavailable
from polybus.transports.connection import Connection, Connections, SessionFactory

Door = Callable[[Connections, SessionFactory], Connection]
"""Joins a client's new session to the node and returns the client's connection."""

DEFAULT: Final = ""

_doors: dict[str, tuple[Door, asyncio.AbstractEventLoop]] = {}


def open_door(door: Door, name: str = DEFAULT) -> None:
    """Let `memory:NAME` lead to a node that runs on this event loop."""
    _doors[name] = (door, asyncio.get_running_loop())


def close_door(door: Door, name: str = DEFAULT) -> None:
    """Take it back, unless another node has taken the name over."""
    if name in _doors and _doors[name][0] == door:
        del _doors[name]


def find_door(name: str = DEFAULT) -> Door:
    """Where `memory:NAME` leads.

    Raises:
        PeerUnavailable: no node of this process goes by that name.
        LocalProtocolError: it runs on another event loop, whose queues this one must not touch.
    """
    found = _doors.get(name)
    if found is None:
        raise PeerUnavailable(f"no node of this process is reached by memory:{name}")
    door, loop = found
    if loop is not asyncio.get_running_loop():
        raise LocalProtocolError(
            f"the node behind memory:{name} runs on another event loop; reach it through a socket"
        )
    return door
