"""The JSON that the monitor's API takes and gives, as types.

Invariant: the OpenAPI document is made from these types, and answers are encoded from them, so the two cannot differ.
Times are milliseconds since 1970, rates are per second, and a number that nobody measures is null rather than 0.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

MAX_LIMIT: Final = 10_000  # rows of one answer
MAX_OFFSET: Final = 2**63 - 1

Count = Annotated[int, Meta(ge=0)]
Offset = Annotated[int, Meta(ge=0, le=MAX_OFFSET)]
Name = Annotated[str, Meta(min_length=1, max_length=255)]


class Shape(msgspec.Struct):
    """What is answered."""


class Question(msgspec.Struct, forbid_unknown_fields=True):
    """What is asked; a field nobody knows is a mistake that should be told."""


# -- the node ------------------------------------------------------------------------------------------------


class Wire(Shape):
    """One protocol: totals since the node started, and rates of the last seconds."""

    protocol: str
    connections: int
    services: int
    messages_in: int
    messages_out: int
    bytes_in: int
    bytes_out: int
    calls: int
    failures: int
    dropped: int
    in_rate: float
    out_rate: float
    bytes_in_rate: float
    bytes_out_rate: float
    calls_rate: float


class Disk(Shape):
    """Where durable topics lie."""

    folder: str
    free_bytes: int
    total_bytes: int


class History(Shape):
    """Samples of the last minutes, oldest first; every list has the length of `times_ms`."""

    times_ms: list[int]
    in_rate: dict[str, list[float]]
    out_rate: dict[str, list[float]]
    calls_rate: list[float]
    produce_rate: list[float]
    failures_rate: list[float]
    connections: list[int]
    lag: list[int]
    loop_lag_ms: list[float]


class Overview(Shape):
    """The node at a glance."""

    version: str
    addresses: list[str]
    state: str
    ready: bool
    time_ms: int
    uptime_s: float
    wires: list[Wire]
    connections: int
    accepted: int
    services: int
    topics: int
    groups: int
    records: int
    stored_bytes: int
    produce_rate: float
    lag: int
    in_flight: int
    redelivered: int
    dead: int
    pending_calls: int
    pending_bytes: int
    failures: int
    dropped: int
    loop_lag_ms: float
    ended: dict[str, int]
    disk: Disk | None
    history: History | None = None


class Me(Shape):
    """Who is asking, whether they may look and change things, and whether a token could make them somebody else."""

    identity: str
    look: bool
    admin: bool
    token: bool


# -- lists ---------------------------------------------------------------------------------------------------


class Listing(Question):
    """How to cut a list: only what contains `q`, sorted, one page of it."""

    q: Annotated[str, Meta(max_length=255)] = ""
    order: Literal["asc", "desc"] = "asc"
    page: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    limit: Annotated[int, Meta(ge=1, le=MAX_LIMIT)] = 50


class Paged(Shape):
    """One page of a list: `total` before and `matching` after the filter."""

    total: Count
    matching: Count
    page: int
    limit: int


class TopicListing(Listing):
    sort: Literal["name", "records", "bytes", "rate", "oldest_ms", "newest_ms", "groups"] = "name"


class Topic(Shape):
    """A durable topic."""

    name: str
    records: int
    bytes: int
    first: int
    end: int
    created_ms: int
    oldest_ms: int
    newest_ms: int
    rate: float
    groups: int
    consumers: int
    durability: str
    retain_ms: int
    retain_bytes: int
    dead_letters: bool
    marks: dict[str, str]


class TopicPage(Paged):
    items: list[Topic]


class GroupListing(Listing):
    sort: Literal["name", "topic", "lag", "in_flight", "redelivered", "dead", "members"] = "topic"
    topic: Annotated[str, Meta(max_length=255)] = ""


class Member(Shape):
    """One member of a group."""

    id: str
    peer: str
    protocol: str
    credit: int
    in_flight: int


class Group(Shape):
    """A consume group; counts are since the node started."""

    topic: str
    name: str
    filter: str
    paused: bool
    exclusive: bool
    ack: bool
    dead_letter: str
    floor: int
    remaining: int
    lag: int
    in_flight: int
    waiting: int
    delivered: int
    redelivered: int
    acked: int
    nacked: int
    timed_out: int
    expired: int
    dead: int
    problem: str
    members: list[Member]
    lag_history: list[int]
    marks: dict[str, str]


class GroupPage(Paged):
    items: list[Group]


class ServiceListing(Listing):
    sort: Literal["name", "protocol", "calls", "rate", "failures", "in_flight", "p99_ms"] = "name"
    protocol: Annotated[str, Meta(max_length=32)] = ""


class Service(Shape):
    """A name that somebody answers. `in_flight` counts all calls at its owner; p50 and p99 cover the last minute of
    calls that pass through the core, and are null where a wire relays frames without looking at them."""

    name: str
    shared: str | None
    prefix: bool
    protocol: str
    owner: str
    identity: str
    calls: int
    rate: float
    failures: int
    in_flight: int
    p50_ms: float | None
    p99_ms: float | None


class ServicePage(Paged):
    items: list[Service]


class ConnectionListing(Listing):
    sort: Literal["id", "protocol", "peer", "identity", "age_s", "pending_bytes", "in", "out"] = (
        "id"
    )
    protocol: Annotated[str, Meta(max_length=32)] = ""


class Connection(Shape):
    """An open connection."""

    id: int
    protocol: str
    peer: str
    identity: str
    transport: str
    age_s: float
    pending_bytes: int
    congested: bool
    messages_in: int
    messages_out: int
    bytes_in: int
    bytes_out: int
    services: int


class ConnectionPage(Paged):
    items: list[Connection]


class DeadLetters(Shape):
    """A topic that holds what no member confirmed, and the groups that give up into it."""

    topic: str
    records: int
    bytes: int
    newest_ms: int
    sources: list[str]


class DeadLetterPage(Paged):
    items: list[DeadLetters]


# -- records -------------------------------------------------------------------------------------------------


class RecordQuestion(Question):
    """Which records: from an offset, else from a time, else the last ones; only those whose tag passes `tag`."""

    # Not None: the text "null" would be taken for it.
    offset: Offset | UnsetType = UNSET
    time_ms: Offset | UnsetType = UNSET
    tag: Annotated[str, Meta(max_length=255)] = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    raw: Literal["auto", "base64"] = "auto"


class Record(Shape):
    """A record for people: JSON is laid out, other text is as it is, bytes are base64. `size` is the whole payload's;
    `truncated` says that less is shown."""

    offset: int
    time_ms: int
    key: str
    tag: str
    id: str
    headers: dict[str, str]
    size: int
    format: Literal["json", "text", "base64"]
    payload: str
    truncated: bool


class Records(Shape):
    """Records in log order; `next` is where to go on, `scanned` how many were looked at."""

    topic: str
    first: int
    end: int
    next: int
    scanned: int
    items: list[Record]


class TailQuestion(Question):
    """What to show of what comes: records whose tag passes `tag` and whose payload contains `q`."""

    tag: Annotated[str, Meta(max_length=255)] = ""
    q: Annotated[str, Meta(max_length=255)] = ""


# -- federation ----------------------------------------------------------------------------------------------


class Tracker(Shape):
    """A Zbus server: this one, one that it tracks, or a tracker that it has joined."""

    address: str
    role: Literal["this server", "tracked server", "joined tracker"]
    ssl: bool
    version: str
    topics: int | None


class Twin(Shape):
    """An RMB twin that this node knows of."""

    id: int
    own: bool
    address: str


class Federation(Shape):
    """The other buses that this one works with."""

    trackers: list[Tracker]
    twins: list[Twin]


# -- changes -------------------------------------------------------------------------------------------------


class NewTopic(Question):
    name: Name
    durability: Literal["sync", "os"] = "sync"
    retain_ms: Annotated[int, Meta(ge=0, le=MAX_OFFSET)] = 0
    retain_bytes: Annotated[int, Meta(ge=0, le=MAX_OFFSET)] = 0


class Produce(Question):
    """One record; the payload is text, or base64 where `encoding` says so."""

    payload: str
    encoding: Literal["text", "base64"] = "text"
    key: str = ""
    tag: str = ""
    headers: dict[str, str] = {}
    id: str = ""


class Produced(Shape):
    topic: str
    offset: int


class CallQuestion(Question):
    """A call by the shared name of a service."""

    name: Annotated[str, Meta(min_length=1, max_length=4096)]
    payload: str = ""
    encoding: Literal["text", "base64"] = "text"
    headers: dict[str, str] = {}
    timeout_s: Annotated[float, Meta(gt=0, le=60)] = 10.0


class CallAnswer(Shape):
    """What came back; `status` is OK or the way it failed, and the payload is then the error's text."""

    status: str
    took_ms: float
    parts: int
    size: int
    format: Literal["json", "text", "base64"]
    payload: str
    truncated: bool


class Reset(Question):
    """Where the group goes on."""

    to: Literal["beginning", "end", "offset", "time"]
    offset: Offset = 0
    time_ms: Offset = 0


class Done(Shape):
    """What was changed, in words."""

    done: str


class Problem(Shape):
    """Why there is no answer; `code` and `hint` are those of the error pages."""

    status: int
    code: int
    error: str
    hint: str
