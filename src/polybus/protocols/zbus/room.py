"""What all Zbus connections of one node share: topics as Zbus names them, services, trackers, tokens.

Invariant: the era ends with every change of a topic, so a plan that was made in the present one is still right;
names are found whatever their case, and kept as they were first spelled (protocol page §7).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from polybus.core.endpoint import Identity
from polybus.core.group import Group
from polybus.core.group_options import END
from polybus.core.router import Router
from polybus.core.subscriptions import EXACT
from polybus.core.topic_events import TopicEvent
from polybus.core.topics import Topics
from polybus.core.watch import Watched
from polybus.errors import PolybusError, Refused
from polybus.http.request import Request
from polybus.http.session import HttpSession
from polybus.http.turn import Turn
from polybus.model.ids import random_id
from polybus.model.message import Call
from polybus.model.trace import TRACE_HEADERS, trace_headers
from polybus.protocols.zbus import answers
from polybus.protocols.zbus.bridge import Asked, unwrap_call
from polybus.protocols.zbus.commands import Commands
from polybus.protocols.zbus.filters import NAMES, parse_0_8, parse_0_9
from polybus.protocols.zbus.info import MASK, Infos
from polybus.protocols.zbus.masks import RPC
from polybus.protocols.zbus.names import to_shared
from polybus.protocols.zbus.offered import Offered
from polybus.protocols.zbus.options import ZbusOptions
from polybus.protocols.zbus.party import ZbusParty
from polybus.protocols.zbus.permits import Bearers, Permits
from polybus.protocols.zbus.relay import Era
from polybus.protocols.zbus.rpc import RpcTopic, service_down
from polybus.protocols.zbus.tokens import Tokens
from polybus.protocols.zbus.tracker import Tracker
from polybus.protocols.zbus.urls import Command
from polybus.protocols.zbus.wire import VERSION, WIRE, encode_reply, header_text

RPC_DEADLINE: Final = 30.0  # seconds; calls to other wires end by then, as T2's do


class TopicRoute:
    """A topic as producers and consumers need it."""

    __slots__ = ("name", "rpc")

    def __init__(self, name: str, rpc: RpcTopic | None) -> None:
        self.name = name
        self.rpc = rpc


class ZbusRoom:
    """Shared state; `connect` makes the application's side of an HTTP connection."""

    at_end = END

    def __init__(
        self,
        router: Router,
        topics: Topics,
        options: ZbusOptions | None = None,
        bearers: Bearers | None = None,
    ) -> None:
        self.router = router
        self.topics = topics
        self.groups = topics.groups
        self.clock = router.clock
        self.options = options or ZbusOptions()
        self.log = logging.getLogger("polybus.zbus")
        self.advertise = self.options.advertise
        """What clients are told to connect to; set by the node once it listens."""
        self.ssl = self.options.ssl
        self.era = Era(router)
        self.parties: dict[str, ZbusParty] = {}
        """By sender, where answers are routed to."""
        self.rpc: dict[str, RpcTopic] = {}
        self.bridge_id = random_id()
        """The sender of calls from other wires."""
        self.tracers: dict[ZbusParty, frozenset[str]] = {}
        self.tokens = Tokens(self.options.tokens)
        self.permits = Permits(self, bearers)
        self.infos = Infos(self)
        self.tracker = Tracker(self)
        self.offered = Offered(self)
        self.commands = Commands(self)
        self._routes: dict[str, TopicRoute] | None = None
        self._turn = Turn()
        certificate = self.options.certificate
        self._pem = Path(certificate).read_text() if certificate else None
        self.groups.filters[NAMES["0.8"]] = parse_0_8
        self.groups.filters[NAMES["0.9"]] = parse_0_9
        router.add_wire(WIRE, EXACT)
        self._stop_listening = topics.listen(self._changed)

    def connect(self, connection: HttpSession) -> ZbusParty:
        """The party behind an HTTP connection (`http.site.Application`)."""
        connection.turn = self._turn
        return ZbusParty(self, connection)

    def close(self) -> None:
        """Stop tracking and listening; connections are closed by the node."""
        self._stop_listening()
        self.tracker.close()

    # -- parties ----------------------------------------------------------------------------------------------

    def join(self, party: ZbusParty) -> None:
        """A client has come.

        Raises:
            LimitExceeded: it is one too many.
        """
        self.router.attach(party)
        self.parties[party.sender] = party

    def leave(self, party: ZbusParty) -> None:
        """A client has gone; what it held goes to others."""
        self.parties.pop(party.sender, None)
        self.trace_to(party, None)
        self.tracker.leave(party)
        self.router.detach(party)
        self.groups.left(party)

    def trace_to(self, party: ZbusParty, topics: frozenset[str] | None) -> None:
        """Send copies of the messages to these topics, or to all when there are none; no more when it is None."""
        known = self.tracers.pop(party, None)
        if topics is not None:
            self.tracers[party] = topics
        if topics != known:
            self.era.number += 1  # shortcuts copy nothing

    def trace(self, party: ZbusParty, command: Command, request: Request) -> None:
        """Copy an incoming message to those who asked for it."""
        topic = command.topic.lower()
        for tracer, wanted in tuple(self.tracers.items()):
            if tracer is party or (wanted and topic not in wanted):
                continue
            if tracer.connection.outbox.congested:
                continue  # watching must not cost the node its memory
            hidden = ("token", "cookie", "authorization", "content-length")
            shown = {k: v for k, v in command.headers.items() if k not in hidden}
            shown |= party.stamp | {"cmd": "trace", "origin_cmd": command.name, "id": request.id}
            tracer.connection.send(encode_reply(200, shown, request.body))

    def pending(self) -> int:
        """Calls that a service has taken or will take; a drain waits for them."""
        taken = sum(party.serving for party in self.parties.values())
        return taken + sum(rpc.exchange.depth for rpc in self.rpc.values())

    # -- topics -----------------------------------------------------------------------------------------------

    def route(self, topic: str) -> TopicRoute | None:
        """A topic by its name in any case."""
        routes = self._routes
        if routes is None:
            routes = self._routes = self._make_routes()
        return routes.get(topic.lower())

    def _make_routes(self) -> dict[str, TopicRoute]:
        routes: dict[str, TopicRoute] = {}
        rpc = {}
        for info in self.topics.all():
            if int(info.options.extra.get(MASK, "0")) & RPC:
                known = self.rpc.pop(info.name) if info.name in self.rpc else None
                rpc[info.name] = RpcTopic(self, info.name) if known is None else known
            # Of two spellings, which another wire may have made, the older one is meant.
            routes.setdefault(info.name.lower(), TopicRoute(info.name, rpc.get(info.name)))
        for gone in self.rpc.values():
            gone.removed()
        self.rpc = rpc
        return routes

    def is_rpc(self, topic: str) -> bool:
        """Whether a topic of that name has the rpc bit."""
        route = self.route(topic)
        return route is not None and route.rpc is not None

    def group_named(self, topic: str, name: str) -> Group | None:
        """A group by its name in any case."""
        wanted = name.lower()
        for group in self.groups.of(topic):
            if group.name.lower() == wanted:
                return group
        return None

    def _changed(self, event: TopicEvent) -> None:
        if event.change in ("declared", "edited", "removed") and not event.group:
            self.era.number += 1
            self._routes = None
            if event.topic in self.rpc:
                self._routes = (
                    self._make_routes()
                )  # now: its calls end although nobody looks for it
        if event.change != "emptied":
            self.tracker.changed()

    # -- calls between wires ----------------------------------------------------------------------------------

    def bridge_or_fail(
        self, party: ZbusParty, command: Command, request: Request, body: bytes
    ) -> None:
        """A call that no Zbus service takes: ask the shared names, else tell the caller (DESIGN 3)."""
        topic = command.topic
        if request.head.ordered:
            party.expect_routed(request)
        called = unwrap_call(body)
        name = to_shared(topic, called[0], called[1]) if called is not None else None
        if called is not None and name is not None:
            deadline = self.clock.monotonic() + RPC_DEADLINE
            token = Asked(request.id, topic)
            traced = trace_headers(command.headers)
            call = Call(
                party, name, called[2], token=token, deadline=deadline, headers=traced, wire=WIRE
            )
            call.identity = party.who
            try:
                self.router.call(call)
                return
            except Refused as exc:
                party.deliver_routed(request.id, answers.error(request.id, topic, exc))
                return
            except PolybusError as exc:
                self.log.debug("call to %s is not for another wire: %s", name, exc)
        known = self.route(topic) is not None
        raw = service_down(topic, request.id) if known else answers.no_topic(request.id, topic)
        party.deliver_routed(request.id, raw)

    def watch_call(self, who: Identity, topic: str, body: bytes) -> Watched | None:
        """Note a call between Zbus clients for the journal and captures."""
        watch = self.router.calls.watch
        called = unwrap_call(body)
        name = to_shared(topic, called[0], called[1]) if called is not None else None
        watched = watch.begin(WIRE, name or topic, who.text, len(body)) if watch else None
        if watched is not None and watched.into:
            watched.keep_request(body)
        return watched

    def bridge_head(self, topic: str, headers: Mapping[str, str], body: bytes) -> bytes:
        """The header lines of a call from another wire."""
        own = {
            **{f"x-{k.lower()}": v for k, v in headers.items() if k not in TRACE_HEADERS},
            **trace_headers(headers),
            "topic": topic,
            "sender": self.bridge_id,
            "host": self.advertise,
            "version": VERSION,
            "connection": "Keep-Alive",
            "content-type": "application/json",
            "content-length": str(len(body)),
        }
        return header_text(own).encode("utf-8", "replace")

    # -- certificates -----------------------------------------------------------------------------------------

    def certificate(self, server: str) -> str | None:
        """The certificate of this server, for clients that are told to trust it."""
        return self._pem if server in ("", self.advertise) else None
