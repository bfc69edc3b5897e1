"""The services behind one client: which handler answers a name, and what is being answered.

Invariant: every call that came in is answered exactly once, also when its handler raises; a cancelled one not at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

from polybus.errors import PolybusError
from polybus.model.message import Status
from polybus.protocols.native import wire
from polybus.protocols.native.peer import Peer
from polybus.protocols.native.replies import failure_of

log = logging.getLogger("polybus.client")

FINISH_TIMEOUT: Final = 10.0  # as the node's own drain

Outcome = bytes | Awaitable[bytes] | AsyncIterator[bytes]
Handler = Callable[[str, bytes, Mapping[str, str]], Outcome]
"""Answers a call: name, payload, headers in; the reply out, at once, later, or in parts."""


class Serving:
    """Handlers by name, and the tasks of those that take their time."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._running: dict[int, asyncio.Task[None]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """What is served."""
        return tuple(self._handlers)

    def add(self, name: str, handler: Handler) -> None:
        self._handlers[name] = handler

    def remove(self, name: str) -> None:
        self._handlers.pop(name, None)

    def take(self, peer: Peer, frame: wire.Frame) -> None:
        """Answer a call that came in."""
        handler = self._handlers.get(frame.name)
        if handler is None:
            _answer(peer, frame, Status.NOT_FOUND, f"no such service: {frame.name}".encode())
            return
        headers = wire.parse_headers(frame.meta)
        try:
            outcome = handler(frame.name, frame.payload, headers)
        except Exception as exc:
            _answer(peer, frame, *_told(frame.name, exc))
            return
        if isinstance(outcome, bytes):
            _answer(peer, frame, Status.OK, outcome)
            return
        work = _stream if isinstance(outcome, AsyncIterator) else _finish
        task = asyncio.get_running_loop().create_task(work(peer, frame, outcome))  # type: ignore[arg-type]
        self._running[frame.id] = task
        task.add_done_callback(lambda done: self._forget(frame.id, done))

    def _forget(self, ident: int, task: asyncio.Task[None]) -> None:
        # A node that was restarted counts its ids from the beginning, so an old task may meet a new call's id.
        if self._running.get(ident) is task:
            del self._running[ident]

    def cancel(self, ident: int) -> None:
        """The caller gave up."""
        task = self._running.pop(ident, None)
        if task is not None:
            task.cancel()

    async def finish(self) -> None:
        """Wait for what is under way, for as long as a node would."""
        if self._running:
            await asyncio.wait(self._running.values(), timeout=FINISH_TIMEOUT)

    def stop(self) -> None:
        """Give up what is under way: nobody can be answered any more."""
        for ident in tuple(self._running):
            self.cancel(ident)


async def _finish(peer: Peer, frame: wire.Frame, outcome: Awaitable[bytes]) -> None:
    try:
        payload = await outcome
    except Exception as exc:
        _answer(peer, frame, *_told(frame.name, exc))
    else:
        _answer(peer, frame, Status.OK, payload)


async def _stream(peer: Peer, frame: wire.Frame, parts: AsyncIterator[bytes]) -> None:
    try:
        async for part in parts:
            if peer.outbox.congested:
                await peer.room()
            peer.answer(frame.id, Status.OK, part, more=True)
    except Exception as exc:
        _answer(peer, frame, *_told(frame.name, exc))
    else:
        _answer(peer, frame, Status.OK, b"")


def _answer(peer: Peer, frame: wire.Frame, status: Status, payload: bytes) -> None:
    if not frame.flags & wire.NO_REPLY:
        peer.answer(frame.id, status, payload)


def _told(name: str, exc: Exception) -> tuple[Status, bytes]:
    if not isinstance(exc, PolybusError):
        log.error("the handler of %s raised", name, exc_info=exc)
    return failure_of(exc)
