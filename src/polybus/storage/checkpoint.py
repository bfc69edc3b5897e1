"""The checkpoint: small state in LMDB, as of one frame of the commit log.

Invariant: it is never ahead of what the commit log has synced, and it changes in one transaction;
the frames it still needs (those above `trimmed`) are in the log.

    key                              value (msgpack)
    m                                Meta
    t, topic u32                     TopicRow
    s, topic u32, base u64           SegmentRow
    g, topic u32, group name         GroupRow
    k, topic u32, sha256 of sink     SinkRow
    d, topic u32, first offset u64   list of (id, offset, time)
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import lmdb
import msgspec

from polybus.core.engine import GroupState, TopicOptions
from polybus.errors import CorruptRecord, FormatTooNew, StorageError, StorageFull
from polybus.storage.dedup import Mark
from polybus.storage.segment import Segment, segment_name
from polybus.storage.state import State, folder_name
from polybus.storage.topic_log import TopicLog

FORMAT: Final = 1
# Room in the address space, not on disk; doubled when it is used up.
START_MAP_BYTES: Final = 1 << 30


class Meta(msgspec.Struct, frozen=True, array_like=True):
    """Where the checkpoint stands: state as of frame `applied`; frames up to `trimmed` are not needed any more."""

    format: int = FORMAT
    applied: int = 0
    trimmed: int = 0
    next_topic: int = 1


class TopicRow(msgspec.Struct, frozen=True, array_like=True):
    """A topic without its parts."""

    name: str
    options: TopicOptions
    created_ms: int
    updated_ms: int
    last_ms: int
    first: int
    moved: int


class SegmentRow(msgspec.Struct, frozen=True, array_like=True):
    """A segment of which `length` bytes are synced."""

    generation: int
    end: int
    length: int
    first_ms: int
    last_ms: int
    chunks: int
    last_position: int


class GroupRow(msgspec.Struct, frozen=True, array_like=True):
    """A group's whole state."""

    name: str
    options: Mapping[str, str | int | bool]
    floor: int
    done: list[int]
    attempts: dict[int, int]


class SinkRow(msgspec.Struct, frozen=True, array_like=True):
    """The last batch of a sink and where it begins."""

    sink: str
    batch: int
    first: int


class Changes:
    """What the next checkpoint writes, collected at one moment on the event loop."""

    __slots__ = ("delete", "meta", "put")

    def __init__(self, meta: Meta) -> None:
        self.meta = meta
        self.put: dict[bytes, object] = {}  # encoded when they are saved, off the event loop
        self.delete: list[bytes] = []  # keys, and prefixes of keys; they go before anything is put

    def over(self, older: Changes) -> None:
        """Take in changes that could not be saved; where both say something, these win."""
        gone = tuple(self.delete)
        kept = {key: value for key, value in older.put.items() if not key.startswith(gone)}
        self.put = kept | self.put
        self.delete = older.delete + self.delete


_encode = msgspec.msgpack.Encoder().encode
_T = TypeVar("_T")


def _key(kind: bytes, topic: int, rest: bytes = b"") -> bytes:
    # Big endian, so that the order of keys is the order of numbers.
    return kind + struct.pack(">I", topic) + rest


def _name_key(kind: bytes, topic: int, name: str) -> bytes:
    # LMDB's keys are short; names need not be.
    return _key(kind, topic, hashlib.sha256(name.encode()).digest())


def segment_key(topic: int, base: int) -> bytes:
    """The key of a segment."""
    return _key(b"s", topic, struct.pack(">Q", base))


def _marks_key(topic: int, first: int) -> bytes:
    return _key(b"d", topic, struct.pack(">Q", first))


def segment_row(segment: Segment) -> SegmentRow:
    """A segment's value."""
    return SegmentRow(
        segment.generation,
        segment.end,
        segment.length,
        segment.first_ms,
        segment.last_ms,
        segment.chunks,
        segment.last_position,
    )


def collect(state: State, meta: Meta, now_ms: int) -> Changes:
    """Everything that changed since the last call; segments are added by whoever wrote them."""
    changes = Changes(meta)
    for log in state.topics.values():
        if log.changed:
            changes.put[_key(b"t", log.id)] = _topic_row(log)
            log.changed = False
        for name in log.changed_groups:
            key = _name_key(b"g", log.id, name)
            group = log.groups.get(name)
            if group is None:
                changes.delete.append(key)
            else:
                changes.put[key] = _group_row(group)
        log.changed_groups.clear()
        for sink in log.changed_sinks:
            batch, first = log.sinks[sink]
            changes.put[_name_key(b"k", log.id, sink)] = SinkRow(sink, batch, first)
        log.changed_sinks.clear()
        marks = log.dedup.take_fresh(log.end)
        if marks:
            changes.put[_marks_key(log.id, marks[0][1])] = marks
        expired = log.dedup.take_expired(now_ms, log.options)
        changes.delete += [_marks_key(log.id, first) for first in expired]
    for log in state.gone:
        changes.delete += [_key(kind, log.id) for kind in (b"t", b"s", b"g", b"k", b"d")]
    return changes


def _topic_row(log: TopicLog) -> TopicRow:
    times = log.created_ms, log.updated_ms, log.last_ms
    return TopicRow(log.name, log.options, *times, log.first, log.moved)


def _group_row(group: GroupState) -> GroupRow:
    # Copies: the group goes on changing while this one is saved.
    return GroupRow(group.name, group.options, group.floor, list(group.done), dict(group.attempts))


class Checkpoint:
    """The LMDB environment; only one thread at a time uses it."""

    def __init__(
        self, folder: Path, *, readonly: bool = False, beside_writer: bool = False
    ) -> None:
        self._folder = folder
        self._env: Any = None
        self._readonly = readonly
        # LMDB's lock file is what keeps a reader's pages from a writer; alone on a folder it is not wanted.
        self._locked = not readonly or beside_writer

    def open(self) -> None:
        """Open it, or create it in an empty folder.

        Raises:
            CorruptRecord: it is not there, or is no LMDB file.
        """
        if self._env is None:
            try:
                self._env = lmdb.open(
                    str(self._folder),
                    map_size=START_MAP_BYTES,
                    readonly=self._readonly,
                    create=not self._readonly,
                    lock=self._locked,
                )
            except lmdb.Error as exc:
                raise CorruptRecord("checkpoint", 0, str(exc)) from exc
            # A file that has grown past the size asked for is mapped whole.
            size = self._env.info()["last_pgno"] * self._env.stat()["psize"] * 2
            if size > START_MAP_BYTES and not self._readonly:
                self._env.set_mapsize(size)

    def close(self) -> None:
        """Close it; idempotent."""
        if self._env is not None:
            self._env.close()
            self._env = None

    @property
    def used(self) -> bool:
        """Whether it holds more than a new one does."""
        with self._env.begin() as txn:
            return bool(txn.stat()["entries"] > 1)

    def copy(self, target: Path) -> None:
        """Write a consistent copy while others may write.

        Raises:
            StorageFull, StorageError: what is there is no copy.
        """
        try:
            self._env.copy(str(target), compact=True)
        except lmdb.Error as exc:
            kind = StorageFull if isinstance(exc, lmdb.DiskError) else StorageError
            raise kind(f"copying the checkpoint: {exc}") from exc

    def save(self, changes: Changes) -> None:
        """Write all changes in one synced transaction.

        Raises:
            StorageFull, StorageError: nothing was changed.
        """
        try:
            self._save(changes)
        except lmdb.MapFullError:
            self._env.set_mapsize(self._env.info()["map_size"] * 2)
            self.save(changes)
        except lmdb.DiskError as exc:
            raise StorageFull(f"writing the checkpoint: {exc}") from exc
        except lmdb.Error as exc:
            raise StorageError(f"writing the checkpoint: {exc}") from exc

    def _save(self, changes: Changes) -> None:
        with self._env.begin(write=True) as txn:
            for prefix in changes.delete:
                cursor = txn.cursor()
                found = cursor.set_range(prefix)
                while found and cursor.key().startswith(prefix):
                    found = cursor.delete()
            for key, value in changes.put.items():
                # Segments as they stand now: whoever changes them saves behind it.
                row = segment_row(value) if isinstance(value, Segment) else value
                txn.put(key, _encode(row))
            txn.put(b"m", _encode(changes.meta))

    def load(self, folder: Path) -> tuple[Meta, State]:
        """The state as it was saved; `folder` is the data folder.

        Raises:
            FormatTooNew: a newer version wrote it.
            CorruptRecord: a value makes no sense.
        """
        state = State(folder)
        with self._env.begin() as txn:
            packed = txn.get(b"m")
            if packed is None:
                raise CorruptRecord("checkpoint", 0, "it is empty")
            meta = self._decode(packed, Meta, b"m")
            if meta.format > FORMAT:
                raise FormatTooNew(f"the data folder has format {meta.format}, this is {FORMAT}")
            for key, row in self._rows(txn, b"t", TopicRow):
                state.add(_load_topic(key, row, folder))
            for key, segment in self._rows(txn, b"s", SegmentRow):
                _load_segment(state.by_id[topic_of(key)], key, segment)
            for key, group in self._rows(txn, b"g", GroupRow):
                state.by_id[topic_of(key)].groups[group.name] = GroupState(
                    group.name, group.options, group.floor, set(group.done), group.attempts
                )
            for key, sink in self._rows(txn, b"k", SinkRow):
                state.by_id[topic_of(key)].sinks[sink.sink] = (sink.batch, sink.first)
            for key, marks in self._rows(txn, b"d", list[Mark]):
                state.by_id[topic_of(key)].dedup.restore(marks)
        state.next_id = max(state.next_id, meta.next_topic)
        return meta, state

    def _rows(self, txn: Any, kind: bytes, cls: type[_T]) -> Iterator[tuple[bytes, _T]]:
        cursor = txn.cursor()
        found = cursor.set_range(kind)
        while found and cursor.key().startswith(kind):
            yield cursor.key(), self._decode(cursor.value(), cls, cursor.key())
            found = cursor.next()

    def _decode(self, value: bytes, cls: type[_T], key: bytes) -> _T:
        try:
            return msgspec.msgpack.decode(value, type=cls)
        except msgspec.MsgspecError as exc:
            raise CorruptRecord("checkpoint", 0, f"key {key.hex()}: {exc}") from exc


def topic_of(key: bytes) -> int:
    """The topic that a key of the checkpoint belongs to."""
    return int.from_bytes(key[1:5], "big")


def _load_topic(key: bytes, row: TopicRow, folder: Path) -> TopicLog:
    id_ = topic_of(key)
    path = folder / "topics" / folder_name(id_, row.name)
    log = TopicLog(id_, row.name, row.options, row.created_ms, path)
    log.updated_ms, log.last_ms = row.updated_ms, row.last_ms
    log.first, log.moved = row.first, row.moved
    log.end = log.next = max(row.first, row.moved)
    log.changed = False
    return log


def _load_segment(log: TopicLog, key: bytes, row: SegmentRow) -> None:
    base = int.from_bytes(key[5:13], "big")
    path = log.folder / segment_name(base, row.generation)
    log.segments.append(
        Segment(
            path,
            base,
            row.generation,
            row.end,
            row.length,
            row.first_ms,
            row.last_ms,
            row.chunks,
            row.last_position,
        )
    )
