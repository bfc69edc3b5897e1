"""How the end of a call reads on either side: statuses into errors, exceptions into statuses, parts into streams.

Invariant: a call ends once, with a value or an error of `polybus.errors`; what a slow reader has not taken is bounded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from polybus.errors import (
    CallTimeout,
    Draining,
    LimitExceeded,
    NoSuchService,
    NotAuthorized,
    PolybusError,
    Refused,
    RemoteProtocolError,
    ServiceFailed,
    SlowConsumer,
    from_code,
)
from polybus.model.message import Status
from polybus.protocols.native import wire

MAX_UNREAD_BYTES: Final = 64 * 1024 * 1024  # parts of one streamed reply, as one frame may have


def error_of(status: int, name: str, payload: bytes) -> PolybusError:
    """The error a caller gets for a reply that is not OK."""
    text = payload.decode("utf-8", "replace")
    match status:
        case Status.NOT_FOUND:
            return NoSuchService(name, text)
        case Status.REFUSED:
            return Refused(text)
        case Status.TIMED_OUT:
            return CallTimeout(f"{name}: {text}")
        case Status.TOO_LARGE:
            return from_code(LimitExceeded.code, text)
        case Status.DRAINING:
            return Draining(text)
        case _:
            return ServiceFailed(text, payload)


def failure_of(error: Exception) -> tuple[Status, bytes]:
    """How a service's exception goes over the wire."""
    if isinstance(error, ServiceFailed):
        return Status.FAILED, error.detail or error.text.encode()
    if isinstance(error, NotAuthorized | Refused):
        return Status.REFUSED, error.text.encode()
    if isinstance(error, PolybusError):
        return Status.FAILED, error.text.encode()
    return Status.FAILED, f"{type(error).__name__}: {error}".encode()


def _outcome(frame: bytes, name: str) -> bytes | PolybusError:
    """The payload of the last frame of a call's answer, or its error."""
    parsed = wire.parse(frame)
    if parsed.kind == wire.ERROR:
        return wire.parse_error(parsed)
    if parsed.kind != wire.REPLY:
        raise RemoteProtocolError(f"a call was answered by kind {parsed.kind:#04x}")
    return parsed.payload if not parsed.arg else error_of(parsed.arg, name, parsed.payload)


class WholeReply:
    """Waits for a reply; one that comes in parts is joined."""

    __slots__ = ("future", "name", "parts", "size")

    def __init__(self, future: asyncio.Future[bytes], name: str) -> None:
        self.future = future
        self.name = name
        self.parts: list[bytes] | None = None
        self.size = 0

    def part(self, frame: bytes) -> None:
        payload = wire.payload_of(frame)
        self.size += len(payload)
        if self.size > MAX_UNREAD_BYTES:
            self.fail(
                LimitExceeded("bytes in a joined reply", limit=MAX_UNREAD_BYTES, actual=self.size)
            )
        elif self.parts is None:
            self.parts = [payload]
        else:
            self.parts.append(payload)

    def end(self, frame: bytes) -> None:
        outcome = _outcome(frame, self.name)
        if self.future.done():
            return
        if isinstance(outcome, PolybusError):
            self.future.set_exception(outcome)
        elif self.parts is None:
            self.future.set_result(outcome)
        else:
            self.future.set_result(b"".join((*self.parts, outcome)))

    def fail(self, error: PolybusError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class StreamedReply:
    """A reply whose parts are read one by one."""

    __slots__ = ("_begun", "_ended", "_error", "_loop", "_parts", "_size", "_wake", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._loop = asyncio.get_running_loop()
        self._parts: deque[bytes] = deque()
        self._size = 0
        self._wake: asyncio.Future[None] | None = None
        self._begun = False
        self._ended = False
        self._error: PolybusError | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self._ended

    def part(self, frame: bytes) -> None:
        if not self._ended:
            self._add(wire.payload_of(frame))

    def end(self, frame: bytes) -> None:
        outcome = _outcome(frame, self.name)
        if isinstance(outcome, PolybusError):
            self.fail(outcome)
            return
        # A stream's end carries no part of its own unless it says something; a lone empty reply is a part.
        if outcome or not self._begun:
            self._add(outcome)
        self._ended = True
        self._wake_up()

    def fail(self, error: PolybusError) -> None:
        if not self._ended:
            self._ended = True
            self._error = error
            self._wake_up()

    async def next(self) -> bytes | None:
        """The next part; None after the last.

        Raises:
            The error that ended the call, once the parts before it were read.
        """
        while not self._parts:
            if self._error is not None:
                raise self._error
            if self._ended:
                return None
            self._wake = self._loop.create_future()
            await self._wake
        part = self._parts.popleft()
        self._size -= len(part)
        return part

    def _add(self, payload: bytes) -> None:
        self._begun = True
        self._parts.append(payload)
        self._size += len(payload)
        if self._size > MAX_UNREAD_BYTES:
            self.fail(SlowConsumer(f"parts of {self.name} were not read in time", self._size))
        self._wake_up()

    def _wake_up(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
