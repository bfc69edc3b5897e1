"""What a group is declared with, where it starts, and how it is shown.

Invariant: `options_from` of `options_to` gives the same options back, whatever another version has written beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final, Literal

from polybus.core.engine import GroupState
from polybus.errors import Conflict, InvalidName, LimitExceeded
from polybus.model.name import check_name

MAX_TOPIC_BYTES: Final = 255  # of a topic's or a group's name, as a file name has it
DEAD_SUFFIX: Final = ".dead"
MAX_IN_FLIGHT: Final = 65_536  # per group whatever it asks for: each costs about 300 bytes here
MAX_ACK_TIMEOUT_MS: Final = 7 * 86_400_000
_EXTRA: Final = "extra."


def check_topic(name: str) -> str:
    """Return `name` if a topic or a group may be called so.

    Raises:
        InvalidName.
    """
    if len(check_name(name).encode()) > MAX_TOPIC_BYTES:
        raise InvalidName(name[:64] + "…", f"longer than {MAX_TOPIC_BYTES} bytes")
    return name


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """The rules of a group. A window of 0 is bounded by `MAX_IN_FLIGHT` only; an `ack_timeout_ms` of 0 never ends."""

    filter: str = ""
    dialect: str = ""  # the grammar of `filter`; "" is the SDK's
    paused: bool = False
    exclusive: bool = False  # one member at a time
    delete_on_exit: bool = False
    ack: bool = True  # False: the next credit of a member confirms what it got before
    window: int = 0  # most records in flight per member
    group_window: int = 0  # and in all
    ack_timeout_ms: int = 30_000  # as JetStream
    max_attempts: int = 20  # as RabbitMQ's quorum queues; 0 is without limit
    dead_letter: str = ""  # topic; "" is the topic's own name with `.dead`
    extra: Mapping[str, str] = field(
        default_factory=dict
    )  # a room's own marks (Zbus mask, creator)

    def dead_topic(self, topic: str) -> str:
        """Where records go that no member confirmed within the limit."""
        return self.dead_letter or topic + DEAD_SUFFIX

    def limit(self, topic: str) -> int:
        """Deliveries of one record before it is dead-lettered; 0 is without limit.

        A dead-letter topic has no dead-letter topic of its own unless one is named, so nothing can go round in circles.
        """
        return 0 if topic.endswith(DEAD_SUFFIX) and not self.dead_letter else self.max_attempts


def check_options(topic: str, options: GroupOptions) -> None:
    """Refuse what cannot work.

    Raises:
        LimitExceeded: a number is negative or too large; Conflict: it would dead-letter into its own topic;
            InvalidName: the dead-letter topic cannot be called so.
    """
    bounds = {
        "window": MAX_IN_FLIGHT,
        "group_window": MAX_IN_FLIGHT,
        "ack_timeout_ms": MAX_ACK_TIMEOUT_MS,
        "max_attempts": 1_000_000,
    }
    for name, most in bounds.items():
        value = getattr(options, name)
        if not 0 <= value <= most:
            raise LimitExceeded(f"{name} must be 0 to {most}", limit=most, actual=value)
    if options.dead_letter == topic:
        raise Conflict(f"a group of {topic} cannot dead-letter into {topic} itself")
    if options.limit(topic):
        check_topic(options.dead_topic(topic))


def options_to(options: GroupOptions) -> dict[str, str | int | bool]:
    """The options as the engine keeps them."""
    plain = {f.name: getattr(options, f.name) for f in fields(options) if f.name != "extra"}
    return plain | {_EXTRA + key: value for key, value in options.extra.items()}


def options_from(state: GroupState) -> GroupOptions:
    """The options of a group that the engine kept; names that this version does not know are left alone."""
    known = {f.name for f in fields(GroupOptions)} - {"extra"}
    plain = {key: value for key, value in state.options.items() if key in known}
    extra = {
        key.removeprefix(_EXTRA): str(value)
        for key, value in state.options.items()
        if key.startswith(_EXTRA)
    }
    return GroupOptions(**plain, extra=extra)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Start:
    """Where a new group begins, or an old one goes on after a reset."""

    at: Literal["beginning", "end", "offset", "time", "copy"] = "beginning"
    offset: int = 0
    msgid: str = ""  # with `offset`: the id that the record there must have
    time_ms: int = 0
    group: str = ""  # with `copy`


BEGINNING: Final = Start()
END: Final = Start("end")


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """One member of a group as it stands."""

    id: str
    peer: str
    wire: str
    credit: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group as it stands; counts are since the node started.

    `remaining` is what is still to be confirmed (records that the filter will pass over included until they are read),
    `lag` the distance from the floor to the end of the topic.
    """

    topic: str
    name: str
    options: GroupOptions
    floor: int
    remaining: int
    lag: int
    in_flight: int
    waiting: int  # for redelivery
    delivered: int
    redelivered: int
    acked: int
    nacked: int
    timed_out: int
    skipped: int
    expired: int  # gone by retention before they were confirmed
    dead: int
    problem: str  # why nothing can be read; "" when all is well
    members: tuple[MemberInfo, ...]
