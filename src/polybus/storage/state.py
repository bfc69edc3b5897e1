"""All topics of a node and what changes them: the same steps whether a change was just committed or is replayed.

Invariant: the state is what the commit log says up to the last applied frame; nothing else changes
it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import quote

from polybus.core.engine import GroupState
from polybus.errors import NoSuchTopic
from polybus.storage.entry import (
    Change,
    Declared,
    Forgotten,
    Moved,
    Published,
    Removed,
    Saved,
    Trimmed,
)
from polybus.storage.topic_log import StagedPart, TopicLog

MAX_FOLDER_NAME: Final = 100  # of the escaped topic name; the id in front keeps it unique


def folder_name(id_: int, name: str) -> str:
    """The folder of a topic: its id, and the name escaped so that it is never more than one path segment."""
    escaped = quote(name, safe="").replace(".", "%2E").replace("~", "%7E")
    return f"{id_:08x}-{escaped[:MAX_FOLDER_NAME]}"


class State:
    """The topics by name and by id."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "topics"
        self.staged_folder = folder / "staged"
        self.topics: dict[str, TopicLog] = {}
        self.by_id: dict[int, TopicLog] = {}
        self.gone: list[TopicLog] = []  # removed, and still on disk
        self.next_id = 1

    def log(self, topic: str) -> TopicLog:
        """The topic of that name.

        Raises:
            NoSuchTopic.
        """
        log = self.topics.get(topic)
        if log is None or log.removed:
            raise NoSuchTopic(topic)
        return log

    def add(self, log: TopicLog) -> None:
        """Put a topic in."""
        self.topics[log.name] = self.by_id[log.id] = log
        self.next_id = max(self.next_id, log.id + 1)

    def apply(self, topic: int, change: Change) -> None:
        """Do what a committed change says."""
        log = self.by_id.get(topic)
        if isinstance(change, Declared):
            if log is None:
                path = self._folder / folder_name(topic, change.name)
                self.add(TopicLog(topic, change.name, change.options, change.time_ms, path))
            else:
                log.set_options(change.options, change.time_ms)
        elif log is not None:
            # Changes of a topic that was removed in between have nothing to change.
            self._apply_to(log, change)

    def _apply_to(self, log: TopicLog, change: Change) -> None:
        match change:
            case Removed():
                del self.topics[log.name], self.by_id[log.id]
                log.removed = True
                self.gone.append(log)
            case Trimmed():
                log.first = max(log.first, min(change.first, log.end))
                log.changed = True
            case Saved():
                log.groups[change.name] = GroupState(
                    change.name,
                    change.options,
                    change.floor,
                    set(change.done),
                    dict(change.attempts),
                )
                log.changed_groups.add(change.name)
            case Moved():
                group = log.groups.get(change.name)
                if group is not None:
                    move_group(group, change)
                    log.changed_groups.add(change.name)
            case Forgotten():
                log.groups.pop(change.name, None)
                log.changed_groups.add(change.name)
            case Published():
                first = change.parts[0].base if change.parts else log.end
                log.sinks[change.sink] = (change.batch, first)
                log.changed_sinks.add(change.sink)

    def add_published(self, log: TopicLog, change: Published) -> None:
        """Put staged chunks at the end of a topic's tail."""
        for part in change.parts:
            path = self.staged_folder / part.ticket
            staged = StagedPart(
                path, part.base, part.count, part.size, change.last_ms, change.now_ms
            )
            log.add(part.base, change.now_ms, staged, part.size)
            log.next = part.base + part.count
        log.last_ms = max(log.last_ms, change.now_ms)


def move_group(group: GroupState, move: Moved) -> None:
    """Let a group get on; the floor never falls."""
    old, new = group.floor, max(group.floor, move.floor)
    group.done.update(offset for offset in move.done if offset >= new)
    group.attempts.update({at: n for at, n in move.attempts.items() if at >= new})
    group.floor = new
    if new - old <= len(group.done) + len(group.attempts):
        for offset in range(old, new):
            group.done.discard(offset)
            group.attempts.pop(offset, None)
    elif new > old:
        group.done = {offset for offset in group.done if offset >= new}
        group.attempts = {at: n for at, n in group.attempts.items() if at >= new}
    for offset in move.done:
        group.attempts.pop(offset, None)
