"""What travels: a call, its replies, and publications.

Invariant: a message keeps the frame it came in and the wire of that frame, so that an endpoint of the same wire sends
the frame itself; the payload is taken out of the frame only when somebody of another wire asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, Final

NO_HEADERS: Final[Mapping[str, str]] = {}


class Status(IntEnum):
    """How a reply ended, in words that every wire can translate into its own."""

    OK = 0
    NOT_FOUND = 1  # nobody answers that name
    REFUSED = 2  # the policy or a limit said no
    FAILED = 3  # the service answered with an error of its own
    GONE = 4  # the service left before it answered
    TIMED_OUT = 5  # the deadline passed
    STALLED = 6  # the service's queue had no room within the forward timeout
    TOO_LARGE = 7  # the payload does not fit the target's frame
    DRAINING = 8  # the node is stopping


class Carried:
    """What calls, replies and publications have in common."""

    __slots__ = ("_payload", "decode", "frame", "headers", "wire")

    def __init__(
        self,
        payload: bytes | None,
        headers: Mapping[str, str] = NO_HEADERS,
        wire: str = "",
        frame: bytes = b"",
        decode: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self._payload = payload
        self.headers = headers
        self.wire = wire
        self.frame = frame
        self.decode = decode

    @property
    def size(self) -> int:
        """Bytes of the payload, or of the frame around it where nobody has looked inside."""
        return len(self.frame) if self._payload is None else len(self._payload)

    @property
    def payload(self) -> bytes:
        """The payload as plain bytes, decoded from the frame at the first look."""
        if self._payload is None:
            if self.decode is None:
                return b""
            self._payload = self.decode(self.frame)
        return self._payload


class Call(Carried):
    """One request.

    The caller's room creates it and keeps what it needs to answer its client in `token`; the core sets `id`,
    `registration`, `service` and `open`. `caller` and `service` are endpoints, `registration` is the name that answers;
    the model does not know more of them.
    """

    __slots__ = (
        "caller",
        "charged",
        "deadline",
        "id",
        "identity",
        "key",
        "name",
        "open",
        "registration",
        "service",
        "started",
        "token",
        "wants_reply",
        "watched",
    )

    def __init__(
        self,
        caller: Any,
        name: str,
        payload: bytes | None,
        *,
        token: Any = None,
        deadline: float | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
        wants_reply: bool = True,
        wire: str = "",
        frame: bytes = b"",
        decode: Callable[[bytes], bytes] | None = None,
    ) -> None:
        super().__init__(payload, headers, wire, frame, decode)
        self.caller = caller
        self.name = name
        self.token = token
        self.deadline = deadline
        self.wants_reply = wants_reply
        self.identity: Any = None  # on whose behalf, when that is not the caller's own identity
        self.charged: Any = None  # the core may note here for whom it is counted
        self.id = 0
        self.key: Any = None  # the service's room may keep its own id of the call here
        self.registration: Any = None
        self.service: Any = None
        self.started = 0.0
        self.open = False
        self.watched: Any = None  # what the journal and captures have noted of it

    def forget_payload(self) -> None:
        """Let the contents go once they were passed on: a call may stay open for hours, and there may be many."""
        self._payload = self.frame = b""
        self.headers = NO_HEADERS


class Reply(Carried):
    """One part of an answer; `final` ends the call. A status other than OK has its text in the payload."""

    __slots__ = ("call", "final", "status")

    def __init__(
        self,
        call: Call,
        payload: bytes | None,
        status: Status = Status.OK,
        *,
        final: bool = True,
        headers: Mapping[str, str] = NO_HEADERS,
        wire: str = "",
        frame: bytes = b"",
        decode: Callable[[bytes], bytes] | None = None,
    ) -> None:
        super().__init__(payload, headers, wire, frame, decode)
        self.call = call
        self.status = status
        self.final = final

    @property
    def text(self) -> str:
        """The payload of an error reply, for people."""
        return self.payload.decode("utf-8", "replace")


class Publication(Carried):
    """One live message to all who subscribed; `topic` is the publishing wire's own spelling, `name` the shared one."""

    __slots__ = ("name", "publisher", "topic")

    def __init__(
        self,
        publisher: Any,
        topic: str,
        name: str | None,
        payload: bytes | None,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        wire: str = "",
        frame: bytes = b"",
        decode: Callable[[bytes], bytes] | None = None,
    ) -> None:
        super().__init__(payload, headers, wire, frame, decode)
        self.publisher = publisher
        self.topic = topic
        self.name = name
