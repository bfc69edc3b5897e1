"""Where the consumes of one connection on one group wait for their messages.

Invariant: each waiting consume is answered with exactly one message; a second one replaces the first, which is then
never answered (protocol page §5), unless the client asked to have several waiting.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from polybus.protocols.zbus.rpc import RpcCall, RpcTopic, call_message

if TYPE_CHECKING:
    from polybus.core.member import Member
    from polybus.http.request import Request
    from polybus.protocols.zbus.party import ZbusParty


class Slot:
    """One (connection, group); `member` for a durable topic, `rpc` for an RPC topic."""

    __slots__ = ("closed", "member", "party", "plain", "rpc", "waiting")

    def __init__(self, party: ZbusParty, member: Member | None, rpc: RpcTopic | None) -> None:
        self.party = party
        self.member = member
        self.rpc = rpc
        self.waiting: deque[Request] = deque()
        self.closed = False
        self.plain = False
        """Whether the last delivery answered a plain HTTP request, which no later consume has to confirm."""

    def add(self, request: Request, several: bool) -> bool:
        """Let a consume wait; False when it only took the place of another."""
        waiting = self.waiting
        if waiting and not several:
            self.party.drop_waiting(waiting.pop())
            waiting.append(request)
            return False
        waiting.append(request)
        return True

    def next_waiting(self) -> Request | None:
        """The consume to answer next."""
        return self.waiting.popleft() if self.waiting else None

    def hand_over(self, request: Request, call: RpcCall, offset: int, *, busy: bool) -> None:
        """Answer a consume with a call, and remember who waits for its answer.

        While services are busy, what goes to all of them is gathered; one that was idle gets its call at once.
        """
        self.party.note_serving(call)
        raw = call_message(call, request.id, offset)
        if busy:
            request.send(raw)
        else:
            request.send_now(raw)
