"""What the heads of a client's requests mean, worked out once per head (see `http.session`).

Invariant: a plan holds only what follows from the head, the connection, the state of topics in its `era` and the
policy at `rules`; when one of them has moved on the plan is made again.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polybus.core.endpoint import Identity
    from polybus.protocols.zbus.relay import Slot
    from polybus.protocols.zbus.rpc import RpcTopic
    from polybus.protocols.zbus.urls import Command


class Kind(IntEnum):
    """How a request goes on."""

    PRODUCE = 0  # to the log
    CALL = 1  # to a service
    ROUTE = 2  # to a connection
    CONSUME = 3
    OTHER = 4  # by the table of commands


class Plan:
    """One head, understood. Fields below `command` are for the kinds named beside them."""

    __slots__ = (
        "acknowledged",
        "answer_head",
        "body",
        "command",
        "counted",
        "era",
        "head",
        "headers",
        "judged",
        "kind",
        "recver",
        "rpc",
        "rules",
        "several",
        "sized",
        "slot",
        "status",
        "tag",
        "topic",
        "who",
    )

    def __init__(self, kind: Kind, era: int, command: Command, who: Identity, rules: int) -> None:
        self.kind = kind
        self.era = era
        self.rules = rules  # the epoch of the policy
        self.who = who
        self.command = command
        self.body: bytes | None = command.body
        self.topic = ""  # as it is spelled here
        self.acknowledged = True  # PRODUCE
        self.answer_head = b""  # PRODUCE: the answer up to its id
        self.headers: dict[str, str] = {}  # PRODUCE: what is stored, without the id
        self.tag = ""  # PRODUCE
        self.head = b""  # CALL, ROUTE: what is passed on, from its first line, without the id
        self.sized = False  # CALL, ROUTE: whether that has the length of the body
        self.rpc: RpcTopic | None = None  # CALL
        self.judged = True  # CALL: whether every method may be called
        self.counted = False  # CALL: whether calls of this identity are counted, by the core
        self.recver = ""  # ROUTE
        self.status = 200  # ROUTE
        self.slot: Slot | None = None  # CONSUME
        self.several = False  # CONSUME
