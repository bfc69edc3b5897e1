"""Requests for the own twin: to a registered service of another wire, or to the queue of their handlers.

Invariant: a request that the queue has no room for is answered with an error instead of vanishing; `ret` of what a
handler sees is always the reply queue, so that every answer passes the bus once (protocol page §4).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from polybus.core.endpoint import Identity
from polybus.errors import PolybusError
from polybus.model.message import Call, Reply, Status
from polybus.protocols.rmb import failures
from polybus.protocols.rmb.answers import decode_dat, encode_dat
from polybus.protocols.rmb.message import REPLY_QUEUE, Message, Unreadable, encode, parse_lenient
from polybus.protocols.rmb.names import PING, WIRE, to_shared
from polybus.protocols.rmb.pending import Waiting
from polybus.protocols.rmb.queues import handler_queue
from polybus.protocols.rmb.resp import Command

if TYPE_CHECKING:
    from polybus.protocols.rmb.room import RmbRoom

log = logging.getLogger("polybus.rmb")

MAX_ROUTES = 4096  # commands whose route is remembered

Delivered = Callable[[bool], None]
"""Told whether Redis took it."""


class Asked:
    """A call to another wire on behalf of a request; `parts` collects a streamed reply."""

    __slots__ = ("answer", "parts", "request", "size")

    def __init__(self, request: Message, answer: Callable[[Message], None]) -> None:
        self.request = request
        self.answer = answer
        self.parts: list[bytes] = []
        self.size = 0


class Serving:
    """The serving side of a room."""

    def __init__(self, room: RmbRoom) -> None:
        self.room = room
        self._routes: dict[str, str | None] = {}
        self._epoch = -1
        self._popping: Counter[str] = Counter()
        """Requests that are being taken out of a queue that is too long."""

    # -- requests --

    def serve_own(self, waiting: Waiting) -> None:
        """A request of a client here for the own twin: no network in between (protocol page, DOC1)."""
        room = self.room
        m = waiting.message.copy(uid=waiting.uid, dst=[room.own], ret=REPLY_QUEUE)

        def answer(reply: Message) -> None:
            if room.pending.take(*waiting.key) is waiting:
                room.answers.deliver(waiting, reply)

        if not self.bridge(m, answer):
            waiting.watched = room.watch_request(m, room.own, room.party.identity.text)
            self.enqueue(m.copy(tag=None), None)

    def serve_remote(self, m: Message, delivered: Delivered) -> None:
        """A verified request of another twin."""
        room = self.room
        src = m.src
        if not self.bridge(m, lambda reply: room.forward.reply(reply, src)):
            watched = room.watch_request(m, room.own, f"twin:{src}")
            room.taken.add(m.uid, src, (m.now + m.exp) * 1000, watched)
            self.enqueue(m, delivered)
        else:
            delivered(True)

    # -- to another wire --

    def bridge(self, m: Message, answer: Callable[[Message], None]) -> bool:
        """Call the registered service of another wire, if there is one; `answer` gets its reply."""
        room = self.room
        if m.cmd == PING:
            answer(reply_to(m, room.own, dat=m.dat))
            return True
        name = self._route(m.cmd)
        if name is None:
            return False
        left = (m.now + m.exp) - room.wall_ms() / 1000
        call = Call(
            room.party,
            name,
            decode_dat(m.dat),
            token=Asked(m, answer),
            deadline=room.router.clock.monotonic() + max(0.0, left),
            wire=WIRE,
        )
        if m.src != room.own:
            call.identity = Identity("twin", str(m.src))
        try:
            room.router.call(call, m.cmd)
        except PolybusError as exc:
            answer(reply_to(m, room.own, err=exc.text))
        return True

    def _route(self, cmd: str) -> str | None:
        """The shared name of a command that somebody on another wire answers."""
        services = self.room.router.services
        if self._epoch != services.epoch or len(self._routes) > MAX_ROUTES:
            self._epoch = services.epoch
            self._routes.clear()
        try:
            return self._routes[cmd]
        except KeyError:
            name = to_shared(cmd)
            found = services.find(WIRE, cmd, name) if name is not None else None
            route = name if found is not None and found.endpoint is not self.room.party else None
            self._routes[cmd] = route
            return route

    def bridged(self, reply: Reply) -> None:
        """A part of the answer of another wire."""
        asked: Asked = reply.call.token
        own = self.room.own
        if reply.status is not Status.OK:
            self.room.router.cancel(reply.call)  # a failed part: nothing may follow the answer
            text = reply.text or reply.status.name
            if reply.status is Status.TIMED_OUT and self._is_late(asked.request):
                # Its time is looked after here and by the core: whoever is first, the client reads the same.
                text = failures.unanswered(asked.request.exp)
            asked.answer(reply_to(asked.request, own, err=text))
            return
        asked.parts.append(reply.payload)
        asked.size += len(asked.parts[-1])
        if asked.size > self.room.options.max_body:
            self.room.router.cancel(reply.call)
            asked.answer(reply_to(asked.request, own, err="the reply is too large"))
        elif reply.final:
            asked.answer(reply_to(asked.request, own, dat=encode_dat(b"".join(asked.parts))))

    def _is_late(self, m: Message) -> bool:
        """Whether the time of a request is over, give or take the second in which its `now` was."""
        return self.room.wall_ms() > (m.now + m.exp - 1) * 1000

    # -- to handlers --

    def enqueue(self, m: Message, delivered: Delivered | None) -> None:
        """Push a request to its handlers."""
        text = encode(m, self.room.generation)
        self.push(m.cmd, text, delivered)

    def push(self, cmd: str, text: bytes, delivered: Delivered | None) -> None:
        """Push the text of a request to the handlers of a command."""
        queue = handler_queue(cmd)
        limit = self.room.options.max_queue

        def pushed(replies: Sequence[Any]) -> None:
            length = replies[0]
            # Redis answers in order: what is being taken out was still there when it counted.
            if isinstance(length, int) and (over := length - self._popping[queue] - limit) > 0:
                self._overflow(queue, over)
            if delivered is not None:
                delivered(isinstance(length, int))

        command: Command = ("LPUSH", queue, text)
        if delivered is None:
            self.room.redis.write([command], pushed)
            return

        def answered(replies: list[Any] | None) -> None:
            if replies is None:
                delivered(False)
            else:
                pushed(replies)

        # Sent once: the peer is told when Redis is not there, and its client decides.
        self.room.redis.send([command], answered)

    def _overflow(self, queue: str, count: int) -> None:
        """Take the oldest out and answer them."""

        def popped(replies: Sequence[Any]) -> None:
            self._popping[queue] -= count
            if not self._popping[queue]:
                del self._popping[queue]
            for text in replies[0] if isinstance(replies[0], list) else ():
                try:
                    m = parse_lenient(text)
                except Unreadable:
                    continue
                self.room.stats.overflowed += 1
                text = f"more than {self.room.options.max_queue} requests wait for {m.cmd}"
                self.room.answers.from_handler(reply_to(m, self.room.own, err=text))

        self._popping[queue] += count
        log.warning("%d requests too many wait in %s", count, queue)
        self.room.redis.write([("RPOP", queue, count)], popped)


def reply_to(m: Message, own: int, *, dat: str = "", err: str = "") -> Message:
    """The answer to a request, as a well-behaved handler writes it."""
    return m.copy(src=own, dst=[m.src], dat=dat, err=err, ret=REPLY_QUEUE, sig=None)
