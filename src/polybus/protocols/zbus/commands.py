"""The commands that administer and tell: declare, query, remove, empty, ack and the like (protocol page §5).

Invariant: a command that changes something answers after the change is durable, and exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from polybus.core.engine import TopicInfo
from polybus.errors import NoSuchGroup, NoSuchTopic, OutOfRange, PolybusError
from polybus.http.request import Request
from polybus.model.record import Delivery
from polybus.protocols.zbus import answers, pages
from polybus.protocols.zbus.declaring import Declaring
from polybus.protocols.zbus.deliveries import Deliveries
from polybus.protocols.zbus.info import encode_info
from polybus.protocols.zbus.tokens import token_of
from polybus.protocols.zbus.urls import Command
from polybus.protocols.zbus.wire import JSON, encode_reply, is_acknowledged, reply_headers

if TYPE_CHECKING:
    from polybus.protocols.zbus.party import ZbusParty
    from polybus.protocols.zbus.room import ZbusRoom

Run = Callable[["Commands", "ZbusParty", Command, Request], None]


class Commands:
    """Carries out whatever is not on the fast way."""

    def __init__(self, room: ZbusRoom) -> None:
        self._room = room
        self._declaring = Declaring(room)

    def run(self, party: ZbusParty, command: Command, request: Request) -> None:
        """Carry a command out, now or when the disk is done."""
        run = _TABLE.get(command.name)
        if run is None:
            request.send(answers.unknown(request.id, command.name))
        else:
            run(self, party, command, request)

    def _done(self, request: Request, topic: str) -> None:
        request.send(answers.done(request.id, topic, self._room.clock.wall_ms()))

    def _json(self, request: Request, topic: str, shape: dict[str, object]) -> None:
        headers = {**reply_headers(request.id, topic), **JSON}
        request.send(encode_reply(200, headers, encode_info(shape)))

    def _visible(self, party: ZbusParty, command: Command) -> list[TopicInfo]:
        return self._room.permits.visible(party.who, _token(command))

    def _needs_topic(self, command: Command, request: Request) -> bool:
        if not command.topic:
            request.send(answers.bad(request.id, "", "Missing topic"))
        return bool(command.topic)

    # -- telling ----------------------------------------------------------------------------------------------

    def ping(self, party: ZbusParty, command: Command, request: Request) -> None:
        self._done(request, "")

    def heartbeat(self, party: ZbusParty, command: Command, request: Request) -> None:
        if request.head.ordered:
            self._done(request, "")  # over plain HTTP every request has an answer

    def server(self, party: ZbusParty, command: Command, request: Request) -> None:
        self._json(request, "", self._room.infos.server(self._visible(party, command)))

    def tracker(self, party: ZbusParty, command: Command, request: Request) -> None:
        self._json(request, "", self._room.tracker.info((party.who, _token(command))))

    def query(self, party: ZbusParty, command: Command, request: Request) -> None:
        room, topic = self._room, command.topic
        if not topic:
            self.server(party, command, request)
            return
        route = room.route(topic)
        if route is None:
            offered = room.offered.get(topic)
            if offered is not None and not command.group:
                self._json(request, topic, room.infos.topic(offered))
            else:
                request.send(answers.no_topic(request.id, topic))
            return
        if not command.group:
            self._json(request, topic, room.infos.topic(room.topics.info(route.name)))
            return
        try:
            # Not as forgiving of case as the others, and with a doubled prefix: as the original.
            group = room.groups.get(route.name, command.group)
        except NoSuchGroup:
            text = f"404: 404: ConsumeGroup({command.group}) Not Found"
            request.send(answers.text(404, request.id, topic, text))
            return
        self._json(request, topic, room.infos.group(group))

    def ssl(self, party: ZbusParty, command: Command, request: Request) -> None:
        certificate = self._room.certificate(command.headers.get("server", ""))
        if certificate is None:
            request.send(answers.text(404, request.id, "", "404: Certificate Not Found"))
        else:
            request.send(answers.text(200, request.id, "", certificate))

    # -- changing ---------------------------------------------------------------------------------------------

    def declare(self, party: ZbusParty, command: Command, request: Request) -> None:
        if self._needs_topic(command, request):
            owner = self._room.router.quotas.owner(party.who)
            party.wait_for(self._declaring.declare(command, request, owner))

    def remove(self, party: ZbusParty, command: Command, request: Request) -> None:
        if self._needs_topic(command, request):
            party.wait_for(self._remove(command, request))

    async def _remove(self, command: Command, request: Request) -> None:
        room, topic = self._room, command.topic
        route = room.route(topic)
        try:
            if route is None:
                raise NoSuchTopic(topic)
            if not command.group:
                await room.topics.remove(route.name)
            else:
                group = room.group_named(route.name, command.group)
                if group is None:
                    raise NoSuchGroup(topic, command.group)
                await room.groups.remove(route.name, group.name)
        except PolybusError as exc:
            request.send(answers.error(request.id, topic, exc))
        else:
            self._done(request, topic)

    def empty(self, party: ZbusParty, command: Command, request: Request) -> None:
        if self._needs_topic(command, request):
            party.wait_for(self._empty(command, request))

    async def _empty(self, command: Command, request: Request) -> None:
        """A group goes to the end; a topic loses its records and all its groups go to the end."""
        room, topic = self._room, command.topic
        route = room.route(topic)
        try:
            if route is None:
                raise NoSuchTopic(topic)
            if command.group:
                group = room.group_named(route.name, command.group)
                if group is None:
                    raise NoSuchGroup(topic, command.group)
                await room.groups.reset(route.name, group.name, room.at_end)
            else:
                for group in room.groups.of(route.name):
                    await room.groups.reset(route.name, group.name, room.at_end)
                await room.topics.empty(route.name)
        except PolybusError as exc:
            request.send(answers.error(request.id, topic, exc))
        else:
            self._done(request, topic)

    # -- consuming beside the fast way ------------------------------------------------------------------------

    def consume(self, party: ZbusParty, command: Command, request: Request) -> None:
        """With an `offset`: read that one message, whatever the groups have done with it."""
        if self._needs_topic(command, request):
            party.wait_for(self._read(command, request))

    async def _read(self, command: Command, request: Request) -> None:
        room, topic, text = self._room, command.topic, command.headers["offset"]
        route = room.route(topic)
        try:
            if route is None:
                raise NoSuchTopic(topic)
            offset = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1
            info = room.topics.info(route.name)
            if not info.first <= offset < info.end:
                raise OutOfRange(topic, offset, info.first, info.end)
            (record, *_) = await room.topics.engine.read(route.name, offset, 1, 1)
        except OutOfRange:
            request.send(answers.text(404, request.id, topic, f"Message Not Found: offset={text}"))
        except PolybusError as exc:
            request.send(answers.error(request.id, topic, exc))
        else:
            delivery = Delivery(route.name, command.group, record)
            request.send(Deliveries().encode(delivery, request))

    def unconsume(self, party: ZbusParty, command: Command, request: Request) -> None:
        if not self._needs_topic(command, request):
            return
        room = self._room
        route = room.route(command.topic)
        if route is None:
            request.send(answers.no_topic(request.id, command.topic))
            return
        group = room.group_named(route.name, command.group or route.name)
        slot = party.slot_of(route.name, group.name) if group is not None else None
        if slot is not None:
            if slot.member is not None:
                slot.member.recall()
            for waiting in slot.waiting:
                party.drop_waiting(waiting)
            slot.waiting.clear()
        self._done(request, command.topic)

    def ack(self, party: ZbusParty, command: Command, request: Request) -> None:
        room, topic = self._room, command.topic
        if not self._needs_topic(command, request):
            return
        route = room.route(topic)
        if route is None:
            request.send(answers.no_topic(request.id, topic))
            return
        group = room.group_named(route.name, command.group or route.name)
        if group is None:
            request.send(answers.no_group(request.id, topic, command.group or topic))
            return
        text = command.headers.get("offset", "")
        if not (text.isascii() and text.isdigit()) or len(text) > 18:
            request.send(answers.bad(request.id, topic, "offset is no number"))
            return

        def confirmed(error: PolybusError | None) -> None:
            if not is_acknowledged(command.headers) and not request.head.ordered:
                return
            if error is not None:
                request.send(answers.error(request.id, topic, error))
            else:
                self._done(request, topic)

        # The one who confirms need not be the connection that was given the message.
        flight = group.in_flight.get(int(text))
        if flight is None:
            confirmed(None)
        else:
            flight[0].ack([int(text)], confirmed)

    # -- trackers and tracing ---------------------------------------------------------------------------------

    def track_sub(self, party: ZbusParty, command: Command, request: Request) -> None:
        self._room.tracker.subscribe(party, _token(command), request)

    def track_pub(self, party: ZbusParty, command: Command, request: Request) -> None:
        body = request.body or command.headers.get("body", "").encode()
        problem = self._room.tracker.publish(body)
        if problem is not None:
            status, text = problem
            request.send(answers.text(status, request.id, "", text))
        elif is_acknowledged(command.headers) or request.head.ordered:
            self._done(request, "")

    def trace(self, party: ZbusParty, command: Command, request: Request) -> None:
        if command.headers.get("topic_mask") == "0":
            self._room.trace_to(party, None)
        else:
            wanted = [part.strip().lower() for part in command.topic.split(",") if part.strip()]
            self._room.trace_to(party, frozenset(wanted))
        self._done(request, "")

    # -- pages ------------------------------------------------------------------------------------------------

    def home(self, party: ZbusParty, command: Command, request: Request) -> None:
        request.respond(200, pages.HTML, pages.home(self._room.advertise))

    def file(self, party: ZbusParty, command: Command, request: Request) -> None:
        name = request.path.rpartition("/")[2]
        headers = reply_headers("")
        request.send(encode_reply(404, headers, f"404: File ({name}) Not Found".encode()))

    def login(self, party: ZbusParty, command: Command, request: Request) -> None:
        token = pages.posted_token(request)
        if token is None:
            request.respond(200, pages.HTML, pages.LOGIN)
        elif not self._room.permits.accepts(token):
            request.respond(403, pages.HTML, pages.LOGIN)
        else:
            request.respond(302, {"location": "/", "set-cookie": pages.cookie(token)})

    def logout(self, party: ZbusParty, command: Command, request: Request) -> None:
        request.respond(302, {"location": "/?cmd=login", "set-cookie": pages.NO_COOKIE})


def _token(command: Command) -> str:
    return token_of(command.headers)


_TABLE: Final[dict[str, Run]] = {
    "ack": Commands.ack,
    "consume": Commands.consume,
    "declare": Commands.declare,
    "empty": Commands.empty,
    "file": Commands.file,
    "heartbeat": Commands.heartbeat,
    "home": Commands.home,
    "login": Commands.login,
    "logout": Commands.logout,
    "ping": Commands.ping,
    "query": Commands.query,
    "remove": Commands.remove,
    "server": Commands.server,
    "ssl": Commands.ssl,
    "trace": Commands.trace,
    "track_pub": Commands.track_pub,
    "track_sub": Commands.track_sub,
    "tracker": Commands.tracker,
    "unconsume": Commands.unconsume,
}
