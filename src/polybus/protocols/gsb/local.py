"""Routing inside one process, without a socket: what the original client library offers under the same name.

Invariant: addresses are matched exactly as the router matches them, the longest prefix on `/` boundaries.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from itertools import chain

from polybus.errors import NameTaken
from polybus.model.name import prefixes


@dataclass(frozen=True, slots=True)
class Request:
    """What a handler gets."""

    caller: str
    address: str
    data: bytes
    no_reply: bool = False


Answer = bytes | AsyncIterator[bytes]
Handler = Callable[[Request], Awaitable[bytes] | AsyncIterator[bytes]]
"""Answers a request: a coroutine for one reply, an async generator for a streamed one. A raised `Refused` is told as a
bad request, any other error as a service failure, with its text."""


class LocalRouter:
    """The handlers of one process."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    @property
    def addresses(self) -> list[str]:
        return list(self._handlers)

    def bind(self, address: str, handler: Handler) -> None:
        """Let a handler answer an address and what lies below it.

        Raises:
            NameTaken: this process answers it already.
        """
        if address in self._handlers:
            raise NameTaken(address)
        self._handlers[address] = handler

    def unbind(self, address: str) -> bool:
        return self._handlers.pop(address, None) is not None

    def find(self, address: str) -> Handler | None:
        """Who answers an address here."""
        for name in chain((address,), prefixes(address)):
            handler = self._handlers.get(name) if name else None
            if handler is not None:
                return handler
        return None


async def answer(handler: Handler, request: Request) -> AsyncIterator[tuple[bytes, bool]]:
    """Run a handler; its parts, each with whether it is the last one."""
    outcome = handler(request)
    if not isinstance(outcome, AsyncIterator):
        yield await outcome, True
        return
    held: bytes | None = None
    async for part in outcome:
        if held is not None:
            yield held, False
        held = part
    # One part is held back, so that the last one can be told from the others.
    yield held if held is not None else b"", True
