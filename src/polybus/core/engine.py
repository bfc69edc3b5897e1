"""The Engine contract: durable topics and, where there are several nodes, the way to the others.

Two implementations (embedded storage, NATS cluster) and one test suite. Invariant: what `append`, `commit` or
`publish_staged` has confirmed survives a crash of the machine, unless the topic's durability is `os`.

The engine owns bytes and offsets; it knows nothing of members, windows or redelivery: that is `core.groups`, which
keeps its durable part here as a `GroupState`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from polybus.errors import PolybusError
from polybus.model.message import Call, Publication
from polybus.model.record import NewRecord, Record

Durability = Literal["sync", "os"]
Compression = Literal["none", "zlib"]

Done = Callable[[int, PolybusError | None], None]
"""Called on the event loop with (first offset, None), or (-1, error) when nothing was stored."""


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """What a topic was declared with. Zero means unlimited."""

    durability: Durability = "sync"
    compression: Compression = "none"
    retain_ms: int = 0
    retain_bytes: int = 0
    retain_consumed: bool = False  # drop what the slowest group has passed
    dedup_ms: int = 120_000  # as JetStream's window
    dedup_ids: int = 20_000  # as Artemis's ring
    extra: Mapping[str, str] = field(
        default_factory=dict
    )  # a room's own marks (Zbus mask, creator)


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as it stands: offsets `first` (inclusive) to `end` (exclusive, the published high-water offset)."""

    name: str
    options: TopicOptions
    first: int
    end: int
    bytes: int
    created_ms: int
    updated_ms: int
    oldest_ms: int
    newest_ms: int


@dataclass(slots=True)
class GroupState:
    """The durable part of a group.

    Everything below `floor` is done. `done` holds offsets at or above the floor that are done out of order,
    `attempts` how often an undone offset at or above the floor has been delivered.
    """

    name: str
    options: Mapping[str, str | int | bool]
    floor: int
    done: set[int] = field(default_factory=set)
    attempts: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Append:
    """Part of a commit: store records at the end of a topic."""

    topic: str
    records: Sequence[NewRecord]


@dataclass(frozen=True, slots=True)
class Move:
    """Part of a commit: a group has got on. `floor` is the new floor; `done` and `attempts` are additions
    since the last move."""

    topic: str
    group: str
    floor: int
    done: Sequence[int] = ()
    attempts: Mapping[int, int] = field(default_factory=dict)


Operation = Append | Move


@dataclass(frozen=True, slots=True)
class Slice:
    """Consecutive records of one read; `next` is where to go on. `chunks` are encoded (see `model.chunk`), CRC
    included."""

    first: int
    next: int
    chunks: Sequence[bytes | memoryview]


class Engine(Protocol):
    """Durable topics. Every method may be called from the event loop only; disk work happens elsewhere."""

    async def start(self) -> None:
        """Open and recover.

        Raises:
            FolderInUse, FormatTooNew, CorruptRecord: with nothing changed on disk.
        """

    async def stop(self) -> None:
        """Finish what was accepted, then close. Idempotent."""

    # -- topics -----------------------------------------------------------------------------------------------

    async def declare(self, topic: str, options: TopicOptions) -> TopicInfo:
        """Create the topic, or change the options of an existing one."""

    async def remove(self, topic: str) -> None:
        """Drop a topic with its groups; a topic of that name declared later starts again at offset 0.

        Raises:
            NoSuchTopic.
        """

    async def trim(self, topic: str, first: int) -> None:
        """Drop the records below `first` (at most to `end`); offsets are never reused."""

    def topics(self) -> Sequence[TopicInfo]:
        """All topics, from memory."""

    def topic(self, topic: str) -> TopicInfo:
        """One topic, from memory.

        Raises:
            NoSuchTopic.
        """

    # -- records ----------------------------------------------------------------------------------------------

    def append(self, topic: str, records: Sequence[NewRecord], done: Done) -> bool:
        """Store records in order; `done` is called once they are durable, in the order of the appends of a topic.

        A record whose id is within the window of the topic is not stored again; `done` gets the offset it has.
        Returns False when the commit queue is full: the records *were* taken, but the producer should pause until its
        `done` comes. Raises NoSuchTopic or LimitExceeded at once, with nothing taken.
        """

    def append_joined(
        self, topic: str, ends: array[int], parts: Sequence[bytes], done: Done
    ) -> bool:
        """As `append`, for payloads with nothing beside them that are columns already: a fraction of the cost.

        Args:
            ends: zero, and where each payload ends in the whole of `parts` (`model.ends`).
            parts: the payloads one after the other, cut anywhere.
        """

    async def commit(self, operations: Sequence[Operation]) -> list[int]:
        """Do all operations in one atomic commit; first offset per Append, -1 per Move.

        Raises:
            StorageFull, NoSuchTopic, NoSuchGroup: nothing of it is visible.
        """

    def move(self, move: Move) -> None:
        """Like `commit([move])`, but nobody waits: it goes with the next group commit."""

    def cached(
        self, topic: str, start: int, max_records: int, max_bytes: int
    ) -> Sequence[Record] | None:
        """Records from `start` on that are in memory, without waiting; None when the disk must be asked. Never
        past `end`."""

    async def read(
        self, topic: str, start: int, max_records: int, max_bytes: int
    ) -> Sequence[Record]:
        """Records from `start` on, at least one if there is one, never past the high-water offset.

        Raises:
            NoSuchTopic, OutOfRange (start below `first` or above `end`), CorruptRecord.
        """

    async def fetch(
        self, topic: str, start: int, end: int, max_bytes: int, *, verify: bool = True
    ) -> Slice:
        """The same as encoded chunks, for readers elsewhere. A chunk may begin before `start` or go past
        `end`: readers cut. Without `verify` the checksums of the chunks' bodies are theirs to look at."""

    async def offset_at(self, topic: str, time_ms: int) -> int:
        """The first offset whose record time is at or after `time_ms`; `end` when there is none."""

    # -- groups -----------------------------------------------------------------------------------------------

    async def save_group(self, topic: str, state: GroupState) -> None:
        """Create or replace a group, its position included."""

    async def remove_group(self, topic: str, group: str) -> None:
        """Forget a group.

        Raises:
            NoSuchGroup.
        """

    def groups(self, topic: str) -> Sequence[GroupState]:
        """The groups of a topic as they were last saved or moved (do not change them)."""

    # -- bulk writers -----------------------------------------------------------------------------------------

    async def stage(self, topic: str, chunk: bytes) -> str:
        """Keep an encoded chunk on disk, synced and invisible; returns its ticket. Unpublished ones expire
        after a day."""

    async def publish_staged(
        self, topic: str, sink: str, batch: int, tickets: Sequence[str]
    ) -> int:
        """Make staged chunks visible atomically and in order; the first offset. A repeat of (sink, batch) does
        nothing and returns the offset of the first time. Batches of a sink rise: one below the last is taken for a
        repeat.
        """

    # -- other nodes ------------------------------------------------------------------------------------------

    async def claim(self, name: str, prefix: bool) -> None:
        """Tell the other nodes that this one answers `name`."""

    async def release(self, name: str) -> None:
        """Take a claim back."""

    def forward_call(self, call: Call) -> bool:
        """Hand a call to the node that claims its name; False when none does. The reply comes through
        `Router.reply`."""

    def forward_publication(self, publication: Publication) -> None:
        """Hand a publication to the nodes that have subscribers for it."""
