"""This node as a tracker: who is told of changes, and which other servers it knows (protocol page §9).

Invariant: a server is in the table exactly while the connection that the tracker opened to it lives; subscribers are
told of every change, several within a moment at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from polybus.http.request import Request
from polybus.protocols.zbus.info import Shape, address_key, encode_info
from polybus.protocols.zbus.wire import JSON, encode_reply, reply_headers

if TYPE_CHECKING:
    from polybus.core.endpoint import Identity
    from polybus.protocols.zbus.party import ZbusParty
    from polybus.protocols.zbus.room import ZbusRoom

MOMENT: Final = 0.02  # seconds in which changes are told together
MAX_TRACKED: Final = 1024  # servers that can be announced here


class Link(Protocol):
    """A connection back to a tracked server."""

    def close(self) -> None:
        """Give it up."""


Viewer = tuple["Identity", str]
"""Who is told, and by which token."""

Dial = Callable[[str, Callable[[], None], Callable[[], None]], Link]
"""Opens a connection to an address (`[SSL]` before it for TLS) and tells when it is up and, once, when it is down."""


class Tracker:
    """The tracker's side of a node."""

    def __init__(self, room: ZbusRoom) -> None:
        self._room = room
        self._subscribers: dict[ZbusParty, Viewer] = {}
        self._known: dict[str, Shape] = {}
        self._links: dict[str, Link] = {}
        self._live: set[str] = set()
        self._scheduled = False
        self.dial: Dial | None = None
        """Set by the node; without it no servers are tracked."""
        self.on_change: list[Callable[[], None]] = []
        """Who else is told, such as the connections to the trackers that this node has joined."""

    def info(self, viewer: Viewer) -> Shape:
        """TrackerInfo as somebody may see it."""
        permits = self._room.permits
        live = sorted(self._live) if permits.sees_others(viewer[0]) else ()
        tracked = {key: self._known[key] for key in live}
        return self._room.infos.tracker(tracked, permits.visible(*viewer))

    @property
    def tracked(self) -> list[Shape]:
        """What the servers that are tracked and alive have told of themselves."""
        return [self._known[key] for key in sorted(self._live)]

    # -- subscribers ------------------------------------------------------------------------------------------

    def subscribe(self, party: ZbusParty, token: str, request: Request) -> None:
        """Tell a client now and at every change."""
        viewer = (party.who, token)
        message = self._message(viewer)
        if request.head.ordered:
            request.send(message)
        else:
            party.connection.send(message)
        self._subscribers[party] = viewer

    def leave(self, party: ZbusParty) -> None:
        """A client is gone."""
        self._subscribers.pop(party, None)

    def changed(self) -> None:
        """Something that trackers tell has changed."""
        if not self._scheduled and (self._subscribers or self.on_change):
            self._scheduled = True
            asyncio.get_running_loop().call_later(MOMENT, self._tell)

    def _tell(self) -> None:
        self._scheduled = False
        messages: dict[Viewer, bytes] = {}
        for party, viewer in tuple(self._subscribers.items()):
            if viewer not in messages:
                messages[viewer] = self._message(viewer)
            # A subscriber that does not read misses nothing: the next message says it all again.
            if not party.connection.outbox.congested:
                party.connection.send(messages[viewer])
        for listener in self.on_change:
            listener()

    def _message(self, viewer: Viewer) -> bytes:
        headers = {**reply_headers(""), **JSON, "cmd": "track_pub"}
        return encode_reply(200, headers, encode_info(self.info(viewer)))

    # -- other servers ----------------------------------------------------------------------------------------

    def publish(self, body: bytes) -> tuple[int, str] | None:
        """A server says that it is there, or going; None, or the status and text of what is wrong with that."""
        if not body:
            return 400, "400: Bad Format, track_pub json required"
        try:
            event = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            return 500, f"500: Exception Caught, com.alibaba.fastjson.JSONException: {exc}"
        info = event.get("serverInfo") if isinstance(event, dict) else None
        address = info.get("serverAddress") if isinstance(info, dict) else None
        if (
            info is None
            or not isinstance(address, dict)
            or not isinstance(address.get("address"), str)
        ):
            return 500, "500: Exception Caught, java.lang.NullPointerException: serverInfo"
        key = address_key(address)
        if key == address_key(self._room.infos.address):
            return None  # about ourselves
        if event.get("live", True):
            self._appeared(key, info)
        else:
            self._gone(key)
        return None

    def _appeared(self, key: str, info: dict[str, Any]) -> None:
        if key not in self._links:
            if self.dial is None or len(self._links) >= MAX_TRACKED:
                return
            self._known[key] = info
            self._links[key] = self.dial(key, lambda: self._up(key), lambda: self._gone(key))
            return
        self._known[key] = info
        if key in self._live:
            self.changed()

    def _up(self, key: str) -> None:
        if key in self._known:
            self._live.add(key)
            self.changed()

    def _gone(self, key: str) -> None:
        link = self._links.pop(key, None)
        if link is None:
            return
        link.close()
        self._known.pop(key, None)
        if key in self._live:
            self._live.discard(key)
            self.changed()

    def close(self) -> None:
        """Give up all connections."""
        self._subscribers.clear()
        self.on_change.clear()
        for key in tuple(self._links):
            self._gone(key)
