"""What the heads of a client's requests mean, worked out once per head (see `http.session`).

Invariant: a plan holds only what follows from the head, the connection and the state of topics at `epoch`; when that
has moved on the plan is made again.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polybus.protocols.zbus.rpc import RpcTopic
    from polybus.protocols.zbus.slot import Slot
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
        "epoch",
        "head",
        "headers",
        "kind",
        "recver",
        "rpc",
        "several",
        "sized",
        "slot",
        "status",
        "tag",
        "topic",
    )

    def __init__(self, kind: Kind, epoch: int, command: Command) -> None:
        self.kind = kind
        self.epoch = epoch
        self.command = command
        self.body: bytes | None = command.body
        self.topic = ""  # as it is spelled here
        self.acknowledged = True  # PRODUCE
        self.answer_head = b""  # PRODUCE: the answer up to its id
        self.headers: dict[str, str] = {}  # PRODUCE: what is stored, without the id
        self.tag = ""  # PRODUCE
        self.head = b""  # CALL, ROUTE: what is passed on, without the id
        self.sized = False  # CALL, ROUTE: whether that has the length of the body
        self.rpc: RpcTopic | None = None  # CALL
        self.recver = ""  # ROUTE
        self.status = 200  # ROUTE
        self.slot: Slot | None = None  # CONSUME
        self.several = False  # CONSUME
