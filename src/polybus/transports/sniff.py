"""Telling protocols apart by their first bytes, so that one port serves them all.

Invariant: nothing is consumed or lost: the chosen session gets the very bytes that decided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from polybus.errors import RemoteProtocolError
from polybus.transports.connection import Connection, SessionFactory
from polybus.transports.outbox import Outbox

# No room needs more than 8 bytes; a peer that is still undecided then is none of ours
MAX_HEAD: Final = 64


@dataclass(frozen=True, slots=True)
class Rule:
    """One protocol's claim: `matches` says yes, no, or None for "more bytes are needed"."""

    name: str
    matches: Callable[[bytes], bool | None]
    factory: SessionFactory


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an undecided connection may take."""

    first_byte: float = 300.0  # some clients stay silent until their first heartbeat
    decision: float = 5.0


class Sniffer:
    """A session that collects the first bytes, then puts the right session in its place."""

    __slots__ = ("_connection", "_deadline", "_head", "_patience", "_rules")

    def __init__(self, connection: Connection, rules: Sequence[Rule], patience: Patience) -> None:
        self._connection = connection
        self._rules = rules
        self._patience = patience
        self._head = b""
        self._deadline = 0.0

    def connection_made(self, outbox: Outbox) -> None:
        self._deadline = self._connection.opened_at + self._patience.first_byte

    def data_received(self, data: bytes) -> None:
        connection = self._connection
        if not self._head:
            self._deadline = connection.registry.clock.monotonic() + self._patience.decision
        self._head += data
        rule = decide(self._rules, self._head)
        if rule is not None:
            connection.session = rule.factory(connection)
            connection.session.connection_made(connection.outbox)
            connection.session.data_received(self._head)

    def eof_received(self) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        pass

    def tick(self, now: float) -> None:
        if now > self._deadline:
            silent = "silent" if not self._head else "undecided"
            self._connection.outbox.close(f"{silent} for too long")


def decide(rules: Sequence[Rule], head: bytes) -> Rule | None:
    """The rule that the first bytes fit; None while more are needed.

    Raises:
        RemoteProtocolError: no protocol begins like this.
    """
    undecided = False
    for rule in rules:
        verdict = rule.matches(head)
        if verdict:
            return rule
        undecided = undecided or verdict is None
    if undecided and len(head) < MAX_HEAD:
        return None
    raise RemoteProtocolError(f"no protocol begins with {head[:8].hex(' ')}")
