"""Who a Zbus request is from, and whether the node's policy lets them do it; refusals are 403 (protocol page §6).

Invariant: a request passes the rules of its token (`tokens`, protocol page §11) unless that is one of the node's own,
and the node's policy in every case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from polybus.core.endpoint import ANONYMOUS, Identity
from polybus.core.policy import Verb, may_see
from polybus.protocols.zbus.bridge import unwrap_call
from polybus.protocols.zbus.names import to_shared
from polybus.protocols.zbus.tokens import token_of
from polybus.protocols.zbus.urls import Command

if TYPE_CHECKING:
    from polybus.core.engine import TopicInfo
    from polybus.protocols.zbus.party import ZbusParty
    from polybus.protocols.zbus.room import TopicRoute, ZbusRoom

BEARER: Final = Identity("token", "zbus")
"""Whoever shows a token that only the rules of this wire know."""

VERBS: Final[dict[str, Verb]] = {
    "produce": "produce",
    "rpc": "call",
    "consume": "consume",
    "unconsume": "consume",
    "ack": "consume",
    "declare": "declare",
    "remove": "declare",
    "empty": "declare",
}
TRACKER: Final = "polybus/tracker"
# What concerns no topic, with the name that the policy is asked about.
ELSEWHERE: Final[dict[str, tuple[Verb, str]]] = {
    "trace": ("admin", "polybus/trace"),
    "track_pub": ("register", TRACKER),
}


class Bearers(Protocol):
    """The node's own tokens."""

    @property
    def has_tokens(self) -> bool:
        """Whether there are any."""

    def bearer(self, token: str) -> Identity | None:
        """Whose token that is."""


class Permits:
    """Judges the requests of a room."""

    def __init__(self, room: ZbusRoom, bearers: Bearers | None) -> None:
        self._room = room
        self._bearers = bearers

    def who(self, party: ZbusParty, command: Command) -> Identity | None:
        """Who asks; None when a token is shown that nobody has."""
        own: Identity = party.connection.identity or ANONYMOUS
        token = token_of(command.headers)
        if not token:
            return own
        found = self._bearers.bearer(token) if self._bearers is not None else None
        if found is not None:
            return found
        if self._room.tokens.rule(token) is not None:
            return BEARER
        return None if self._bearers is not None and self._bearers.has_tokens else own

    def allow(self, who: Identity, command: Command) -> bool:
        """Whether a request may go on; calls to single methods are judged by `allow_call`."""
        room, name = self._room, command.name
        if who.kind != "token" or who == BEARER:
            operation = "produce" if name == "rpc" else name
            token = token_of(command.headers)
            if not room.tokens.may(token, operation, command.topic, command.group):
                return False
        if name in ELSEWHERE:
            return room.router.policy.may(who, *ELSEWHERE[name])
        if not command.topic:
            return True
        route = room.route(command.topic)
        topic = command.topic if route is None else route.name
        if name == "query":
            return self._sees(who, topic)
        verb = VERBS.get(name)
        if verb is None or verb == "call":
            return True
        rpc = route is not None and route.rpc is not None
        if verb == "produce" and (rpc or route is None):
            return True  # a call, which its method decides about; or a topic that nobody has
        if verb == "consume" and rpc:
            return room.router.policy.may(who, "register", f"{topic}/**")
        return room.router.policy.may(who, verb, topic)

    def allow_all_calls(self, who: Identity, route: TopicRoute) -> bool:
        """Whether every method of a service may be called, so that single calls need no look."""
        return self._room.router.policy.may(who, "call", f"{route.name}/**")

    def allow_call(self, who: Identity, topic: str, body: bytes) -> bool:
        """Whether one call may go on, by the method that it names."""
        called = unwrap_call(body)
        name = to_shared(topic, called[0], called[1]) if called is not None else None
        return self._room.router.policy.may(who, "call", name or f"{topic}/**")

    def visible(self, who: Identity, token: str) -> list[TopicInfo]:
        """The topics that somebody sees in lists: those that they may do anything with."""
        room = self._room
        own = who.kind == "token" and who != BEARER
        return [
            info
            for info in (*room.topics.all(), *room.offered.topics())
            if (own or room.tokens.shows(token, info.name)) and self._sees(who, info.name)
        ]

    def sees_others(self, who: Identity) -> bool:
        """Whether somebody is told of the other servers that this node tracks."""
        return self._room.router.policy.may(who, "subscribe", TRACKER)

    def accepts(self, token: str) -> bool:
        """Whether somebody may log in with a token: where none are known, any will do."""
        bearers, tokens = self._bearers, self._room.tokens
        if tokens.rule(token) is not None or (bearers is not None and bearers.bearer(token)):
            return True
        return not tokens and not (bearers is not None and bearers.has_tokens)

    def creator(self, command: Command) -> str:
        """Who a topic is said to be from: its token, as the original has it, or whose of ours that is."""
        token = token_of(command.headers)
        found = self._bearers.bearer(token) if self._bearers is not None and token else None
        return token if found is None or found == BEARER else found.name

    def _sees(self, who: Identity, topic: str) -> bool:
        return may_see(self._room.router.policy, who, topic)
