"""What is noted of calls while they are under way: for the journal, and in full where a capture asks for it.

Invariant: every call that was begun is noted as ended exactly once, whoever ends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from polybus.errors import NoSuchService, PolybusError
from polybus.model.journal import (
    CALL_CALLER,
    CALL_FROM,
    CALL_ID,
    CALL_NAME,
    CALL_PART,
    CALL_STATUS,
    CALL_TO,
    REPLY_TAG,
    REQUEST_TAG,
)
from polybus.model.message import NO_HEADERS, Call, Reply, Status
from polybus.model.record import NewRecord

if TYPE_CHECKING:
    from polybus.core.capture import Captured, Captures
    from polybus.core.endpoint import Endpoint
    from polybus.core.journal import Journal

ALIAS: Final = "alias"  # the wire of `core.alias`, which calls on behalf of others


class Watch:
    """The journal and the captures of a node as those see them who pass calls on."""

    def __init__(self, journal: Journal, captures: Captures | None, journaled: bool) -> None:
        """Watch calls.

        Args:
            journal: gives times and ids also when no rows are wanted.
            journaled: whether rows are wanted.
        """
        self.journal = journal
        self.journaled = journaled
        self.captures = captures

    def begin(self, wire: str, name: str, caller: str, size: int) -> Watched | None:
        """A call comes in; None when nobody wants to know of it."""
        captures = self.captures
        into = captures.of_call(name) if captures is not None else ()
        if not into and not self.journaled:
            return None
        return Watched(self, wire, name, caller, size, into)

    def call_opened(self, call: Call) -> None:
        """The core has found who answers a call."""
        watched = self._begin(call)
        call.watched = watched
        if watched is None:
            return
        watched.wire_out = call.registration.wire
        if watched.into:
            watched.keep_request(call.payload, call.headers)
        if not call.wants_reply:
            watched.end(Status.OK)

    def call_refused(self, call: Call, error: PolybusError) -> None:
        """The core has found nobody who answers, or the caller may not."""
        watched = self._begin(call)
        if watched is None:
            return
        watched.wire_out = ""
        if watched.into:
            watched.keep_request(call.payload, call.headers)
        status = Status.NOT_FOUND if isinstance(error, NoSuchService) else Status.REFUSED
        watched.answered(error.text.encode(), status, error.text)

    def _begin(self, call: Call) -> Watched | None:
        caller: Endpoint = call.caller
        if caller.wire == ALIAS:
            return self._begin_behind(call, call.token)
        who = (call.identity or caller.identity).text
        return self.begin(caller.wire, call.name, who, call.size)

    def _begin_behind(self, call: Call, asked: Call) -> Watched | None:
        """An alias calls its target: the row is that of the name which was `asked`, but a second name is no way around
        a capture of the first."""
        if self.captures is None:
            return None
        known = asked.watched.into if asked.watched is not None else ()
        into = tuple(each for each in self.captures.of_call(call.name) if each not in known)
        if not into:
            return None
        who = (asked.identity or asked.caller.identity).text
        watched = Watched(self, asked.caller.wire, call.name, who, call.size, into)
        watched.journaled = False
        if asked.watched is not None:
            watched.id = asked.watched.id
        return watched


class Watched:
    """One call."""

    __slots__ = (
        "caller",
        "id",
        "into",
        "journaled",
        "name",
        "parts",
        "size_in",
        "size_out",
        "started",
        "watch",
        "wire_in",
        "wire_out",
    )

    def __init__(
        self,
        watch: Watch,
        wire: str,
        name: str,
        caller: str,
        size: int,
        into: tuple[Captured, ...],
    ) -> None:
        journal = watch.journal
        self.watch = watch
        self.journaled = watch.journaled
        self.id = journal.new_id()
        self.started = journal.now()
        self.wire_in = self.wire_out = wire
        self.name = name
        self.caller = caller
        self.size_in = size
        self.size_out = 0
        self.parts = 0
        self.into = into

    def replied(self, reply: Reply) -> None:
        """A part of the answer, the last one included."""
        self.size_out += reply.size
        if self.into:
            self.keep_reply(reply.payload, reply.status, reply.final, reply.headers)
        if reply.final:
            self.end(reply.status, "" if reply.status is Status.OK else reply.text)

    def answered(self, payload: bytes, status: Status = Status.OK, error: str = "") -> None:
        """The whole answer of a wire that keeps its own calls."""
        self.size_out = len(payload)
        if self.into:
            self.keep_reply(payload, status, True)
        self.end(status, error)

    def abandoned(self) -> None:
        """The caller has gone or gives up."""
        if self.into:
            self.keep_reply(b"", Status.GONE, True)
        self.end(Status.GONE, "the caller gave up")

    def end(self, status: Status, error: str = "") -> None:
        """Write the row."""
        if self.journaled:
            self.watch.journal.call(
                self.started,
                self.id,
                (self.wire_in, self.wire_out),
                self.name,
                self.caller,
                (self.size_in, self.size_out),
                status,
                error,
            )

    # -- captures ---------------------------------------------------------------------------------------------

    def keep_request(self, payload: bytes, headers: Mapping[str, str] = NO_HEADERS) -> None:
        """Keep the request in full."""
        self._keep(REQUEST_TAG, payload, headers)

    def keep_reply(
        self, payload: bytes, status: Status, final: bool, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        """Keep one part of the answer in full."""
        own = {CALL_PART: str(self.parts)}
        if final:
            own[CALL_STATUS] = str(int(status))
        self.parts += 1
        self._keep(REPLY_TAG, payload, {**headers, **own})

    def _keep(self, tag: str, payload: bytes, headers: Mapping[str, str]) -> None:
        own = {
            CALL_ID: self.id,
            CALL_NAME: self.name,
            CALL_FROM: self.wire_in,
            CALL_TO: self.wire_out,
            CALL_CALLER: self.caller,
        }
        record = NewRecord(payload, self.id.encode(), tag, {**headers, **own})
        for captured in self.into:
            captured.add(record)
