"""A site with handlers that show what they got, served to peers without sockets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from polybus.http.request import Request
from polybus.http.session import HttpSession
from polybus.http.settings import HttpSettings
from polybus.http.site import Site
from polybus.model.clock import ManualClock
from polybus.transports.connection import Connections
from tests.protocols.wiretap import Peer


@dataclass
class Echo:
    """The application: keeps its requests, and answers those that do not ask to be kept waiting."""

    session: HttpSession
    taken: list[Request] = field(default_factory=list)
    passed: list[Request] = field(default_factory=list)
    flushes: int = 0
    ended: list[Exception | None] = field(default_factory=list)

    def take(self, request: Request) -> None:
        self.taken.append(request)
        request.connection.gathering = request.head.headers.get("alone") is None
        if request.head.headers.get("later") is None:
            self.reply(request)

    def reply(self, request: Request) -> None:
        request.respond(200, {"id": request.id}, request.path.encode() + b" " + request.body)

    def passed_over(self, request: Request) -> None:
        self.passed.append(request)

    def flush(self) -> None:
        self.flushes += 1

    def lost(self, exc: Exception | None) -> None:
        self.ended.append(exc)

    def tick(self, now: float) -> None:
        pass


@dataclass
class Served:
    """One connection with everything around it."""

    clock: ManualClock
    site: Site
    peer: Peer
    parties: list[Echo]

    @property
    def echo(self) -> Echo:
        return self.parties[-1]

    def tick(self, seconds: float, step: float = 1.0) -> None:
        until = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until:
            self.peer.connection.tick(self.clock.advance(step))


def serve(**settings: Any) -> Served:
    """A connection to a fresh site."""
    clock = ManualClock()
    site = Site(HttpSettings(**settings))
    parties: list[Echo] = []

    def application(session: HttpSession) -> Echo:
        parties.append(Echo(session))
        return parties[-1]

    site.application = application
    peer = Peer(Connections(clock), lambda connection: HttpSession(site, None, "tap"))
    return Served(clock, site, peer, parties)


def responses(data: bytes) -> list[tuple[int, dict[str, str], bytes]]:
    """Take written bytes apart; fails when they are not whole responses."""
    found = []
    while data:
        raw, gap, data = data.partition(b"\r\n\r\n")
        assert gap, raw
        first, *lines = raw.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        length = int(headers.get("content-length", 0))
        assert len(data) >= length
        found.append((int(first.split(" ")[1]), headers, data[:length]))
        data = data[length:]
    return found
