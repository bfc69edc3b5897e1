"""What other twins post to us: both path families, every check in the order of the real daemon (protocol page §3.4).

Invariant: nothing reaches a handler or a client before its sender is known and its signature holds, unless the
directory lets that twin send unsigned; a message is delivered once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from polybus.http.request import Request
from polybus.http.site import Site
from polybus.http.turn import Turn
from polybus.protocols.rmb.faces import Verdict, answer
from polybus.protocols.rmb.message import (
    DEFAULT_EXP,
    REPLY_QUEUE,
    Generation,
    Message,
    Unreadable,
    parse_lenient,
    parse_strict,
)
from polybus.protocols.rmb.queues import PROXY_REQUEST_CMD, REMOTE, handler_queue, is_reserved
from polybus.protocols.rmb.results import Results
from polybus.protocols.rmb.signature import BadSignature, digest, parse_signature, verify
from polybus.protocols.rmb.taken import Rates, Replays
from polybus.protocols.rmb.twins import Twin

if TYPE_CHECKING:
    from polybus.protocols.rmb.room import RmbRoom

log = logging.getLogger("polybus.rmb")

Kind = Literal["remote", "reply", "cmd"]


class Post:
    """One message that was posted, on its way through the checks."""

    __slots__ = ("face", "kind", "message", "request")

    def __init__(self, request: Request, kind: Kind, face: Generation, message: Message) -> None:
        self.request = request
        self.kind = kind
        self.face = face
        self.message = message


class Remote:
    """The HTTP side of a room."""

    def __init__(self, room: RmbRoom) -> None:
        self.room = room
        self._replays = Replays()
        self._rates = Rates(room.options.twin_rate)
        self.results = Results(room)
        self._turn = Turn()
        self._paths: dict[str, Callable[[Request], None]] = {
            "/zbus-remote": lambda request: self._take(request, "remote"),
            "/zbus-reply": lambda request: self._take(request, "reply"),
            "/zbus-cmd": lambda request: self._take(request, "cmd"),
            "/zbus-result": self.results.take,
            "/zbus-upload": lambda request: room.uploads.take(request),
            "/rmb-remote": lambda request: self._take(request, "remote", "documented"),
            "/rmb-reply": lambda request: self._take(request, "reply", "documented"),
        }

    def register(self, site: Site) -> None:
        """Serve the paths of this wire."""
        site.add("/zbus-", self.handle, changes=True)
        site.add("/rmb-", self.handle, changes=True)

    def handle(self, request: Request) -> None:
        """One request to one of our paths."""
        found = self._paths.get(request.path) if request.method == "POST" else None
        request.connection.turn = request.connection.turn or self._turn
        headers = request.head.headers
        if found is None:
            request.respond(404)
        elif not self.room.running:
            request.respond(503)
        elif "origin" in headers or "sec-fetch-site" in headers:
            request.respond(403, {}, b"twins are no browsers")
        elif len(request.body) > self.room.options.max_body:
            request.respond(413)
        else:
            found(request)

    # -- checks, in the order of the real daemon --

    def _take(self, request: Request, kind: Kind, family: Generation | None = None) -> None:
        room = self.room
        room.stats.remote += 1
        default = family or room.generation
        try:
            m = self._parse(request.body, kind, family)
        except Unreadable as exc:
            room.stats.remote_refused += 1
            answer(request, default, "parse", exc.text)
            return
        if room.directory.knows(m.src):
            twin = room.directory.get(m.src)
            face = family or (twin.generation if twin is not None else None) or room.generation
            self._check(Post(request, kind, face, m), twin)
        else:
            room.spawn(self._check_later(request, kind, family, m))

    def _parse(self, body: bytes, kind: Kind, family: Generation | None) -> Message:
        """As the sender's generation reads it; only the second one insists on every field."""
        if family is not None or kind == "cmd":
            return parse_lenient(body)
        try:
            return parse_strict(body)
        except Unreadable:
            m = parse_lenient(body)
            twin = self.room.directory.get(m.src)
            generation = twin.generation if twin is not None else None
            if (generation or self.room.generation) in ("v1", "v2"):
                return m
            raise

    async def _check_later(
        self, request: Request, kind: Kind, family: Generation | None, m: Message
    ) -> None:
        twin = await self.room.look_up(m.src)
        face = family or (twin.generation if twin is not None else None) or self.room.generation
        self._check(Post(request, kind, face, m), twin)

    def _check(self, post: Post, twin: Twin | None) -> None:
        room = self.room
        m = post.message
        now = room.wall_ms() // 1000
        if post.face != "v1":
            if now - m.now > room.options.max_age:
                return self._refuse(post, "old")
            if m.now - now > room.options.clock_skew:
                return self._refuse(post, "early", m.now - now)
        if not m.dst:
            return self._refuse(post, "no_dst")
        if m.dst[0] != room.own:
            return self._refuse(post, "wrong_dst", m.dst[0])
        if twin is None:
            return self._refuse(post, "unknown", m.src)
        if not m.exp and post.face in ("v1", "v2"):
            m.exp = DEFAULT_EXP
        if m.now + m.exp <= now:
            return self._refuse(post, "expired")
        if self._rates.is_spent(m.src, room.wall_ms()):
            return self._refuse(post, "rate")
        self._verify(post, twin)

    def _verify(self, post: Post, twin: Twin) -> None:
        m = post.message
        signed = digest(m)
        key = twin.public_key
        if twin.allow_unsigned and (not m.sig or key is None):
            self._accept(post, signed)
            return
        try:
            signature = parse_signature(m.sig)
        except BadSignature as exc:
            self._refuse(post, "signature", exc.text)
            return
        assert key is not None  # only a twin that may send unsigned has none

        def done(problem: str) -> None:
            if problem:
                self._refuse(post, "signature", problem)
            else:
                self._accept(post, signature)

        self.room.bulk.submit(lambda: verify(signature, signed, key), done)

    def _refuse(self, post: Post, verdict: Verdict, detail: object = "") -> None:
        self.room.stats.remote_refused += 1
        log.debug("refused %s of twin %d: %s %s", post.kind, post.message.src, verdict, detail)
        answer(post.request, post.face, verdict, detail)

    # -- what passed --

    def _accept(self, post: Post, proof: bytes) -> None:
        room = self.room
        m = post.message
        self._rates.count(m.src)  # not before: anybody could use up the share of a twin in its name
        if not room.redis.connected:
            self._refuse(post, "failure", "redis is not there")
        elif post.kind == "reply":
            found = room.answers.from_twin(m)
            answer(post.request, post.face, "ok" if found else "gone")
        elif is_reserved(m.cmd) and not (room.options.proxy and m.cmd == PROXY_REQUEST_CMD):
            self._refuse(post, "reserved", m.cmd)
        elif denied := room.denied(m.src, room.own, m.cmd):
            self._refuse(post, "denied", denied)
        elif len(room.taken) >= room.options.max_pending:
            self._refuse(post, "rate")
        else:
            now_ms = room.wall_ms()
            seen = self._replays.seen(m.uid, m.src, proof, self._acceptable_until(post), now_ms)
            if seen == "replay":
                self._refuse(post, "replay")
            elif seen == "again" and m.sig:
                # The sender lost our answer and signed anew: it is told what it was told before.
                answer(post.request, post.face, "ok")
            else:
                self._deliver(post)

    def _acceptable_until(self, post: Post) -> int:
        """Until when (ms) the same message would be accepted again."""
        options = self.room.options
        if post.face == "v1":
            # Its age is not looked at: remembered as long as any other might be.
            return self.room.wall_ms() + (options.max_age + options.clock_skew) * 1000
        return (post.message.now + options.max_age + 1) * 1000

    def _deliver(self, post: Post) -> None:
        room = self.room
        m = post.message
        if post.kind == "cmd":
            self.results.begin(post.request, m)
            return

        def delivered(done: bool) -> None:
            answer(post.request, post.face, "ok" if done else "failure", "redis is not there")

        if m.cmd == PROXY_REQUEST_CMD:
            room.proxy.take(m)
            delivered(True)
        elif room.generation in ("v1", "v2"):
            self._through_queue(post.request.body, delivered)
        else:
            m.ret = REPLY_QUEUE
            m.tag = None
            room.serving.serve_remote(m, delivered)

    def _through_queue(self, body: bytes, delivered: Callable[[bool], None]) -> None:
        """The first generation puts what it got into a queue of its own (protocol page §1.4)."""

        def answered(replies: list[object] | None) -> None:
            delivered(replies is not None and isinstance(replies[0], int))

        self.room.redis.send([(self.room.layout.push, REMOTE, body)], answered)

    def take_queue(self, texts: list[bytes]) -> None:
        """Requests from `msgbus.system.remote`; whoever can write there has been trusted already."""
        room = self.room
        for text in texts:
            try:
                m = parse_lenient(text)
            except Unreadable as exc:
                log.warning("dropped an unreadable request from %s: %s", REMOTE, exc.text)
                continue
            if not m.cmd or is_reserved(m.cmd):
                log.warning("dropped a request from %s to %s", REMOTE, handler_queue(m.cmd))
                continue
            m.exp = m.exp or DEFAULT_EXP
            m.ret = REPLY_QUEUE
            room.serving.serve_remote(m, _ignore)


def _ignore(delivered: bool) -> None:
    """Redis gave it out a moment ago; if it has gone, the sender's deadline tells its client."""
