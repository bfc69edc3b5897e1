"""All groups of all topics: declaring, finding, joining, and their turns on the event loop.

Invariant: a group is listed here exactly while the engine keeps it. Work that a batch of events gives rise to is done
once, at the end of the batch: first the deliveries, then one move per group that changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from polybus.core.cursor import Cursor
from polybus.core.engine import Engine, GroupState
from polybus.core.filter import Parser, Predicate, parse_filter
from polybus.core.group import Group
from polybus.core.group_options import (
    BEGINNING,
    GroupOptions,
    Start,
    check_options,
    check_topic,
    options_from,
    options_to,
)
from polybus.core.member import Closed, Member
from polybus.core.topic_events import Listeners, TopicEvent
from polybus.errors import (
    Conflict,
    InvalidName,
    NoSuchGroup,
    NoSuchTopic,
    NotReachable,
    OutOfRange,
)
from polybus.model.clock import Clock

if TYPE_CHECKING:
    from polybus.core.endpoint import Endpoint
    from polybus.core.journal import Journal

log = logging.getLogger(__name__)

ORPHAN_S: Final = 60.0  # for members of a delete-on-exit group to come back after a restart
POLLED: Final = 100  # topics looked at in one tick: a thousand would hold the loop for 10 ms
MOVE_S: Final = 0.005  # how long a move that nobody waits for may gather others of its group
POLL_S: Final = 1.0  # between looks for what changed in the engine without passing here (retention, other nodes)


class Groups:
    """The groups of a node. `filters` holds the dialects of tag filters by name; rooms add theirs before `start`."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        listeners: Listeners,
        need_topic: Callable[[str], Coroutine[Any, Any, None]],
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.filters: dict[str, Parser] = {"": parse_filter}
        self.need_topic = need_topic  # declares a dead-letter topic if it is missing
        self.journal: Journal | None = None  # told of deliveries
        self._listeners = listeners
        self._groups: dict[str, dict[str, Group]] = {}
        self._members: dict[int, list[Member]] = {}  # by endpoint
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._touched: dict[Group, None] = {}
        self._grown: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scheduled = False
        self._unsaved: dict[Group, None] = {}  # with moves that the engine has not been told of
        self._saving: asyncio.TimerHandle | None = None
        self._poll_at = 0.0
        self._unpolled: list[str] = []

    # -- life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take up the groups that the engine kept; what was in flight will be delivered again."""
        self._loop = asyncio.get_running_loop()
        now = self.clock.monotonic()
        for topic in self.engine.topics():
            for state in self.engine.groups(topic.name):
                group = self._add(topic.name, state, options_from(state))
                if group.options.delete_on_exit:
                    group.orphan_since = now

    async def stop(self) -> None:
        """Hand the last moves to the engine and wait for what is under way. Idempotent."""
        await self.idle()
        self._loop = None

    async def idle(self) -> None:
        """Wait until nothing is under way: all that can be delivered is, and the engine knows of it."""
        while self._touched or self._grown or self._unsaved or self._tasks:
            self._settle()
            self._save()
            if self._tasks:
                await asyncio.wait(self._tasks)

    def tick(self, now: float) -> None:
        """Ack timeouts, delayed redeliveries, retries; about ten times a second."""
        groups = [group for topic in self._groups.values() for group in topic.values()]
        for group in groups:
            group.tick(now)
            if group.orphan_since is not None and now - group.orphan_since >= ORPHAN_S:
                group.orphan_since = None
                self.spawn(self._remove_empty(group))
        if now >= self._poll_at and not self._unpolled:
            self._poll_at = now + POLL_S
            self._unpolled = list(self._groups)
        for topic in self._unpolled[-POLLED:]:
            # While a topic is being removed the engine knows it no more.
            with suppress(NotReachable):
                self._poll(topic)
        del self._unpolled[-POLLED:]

    def _poll(self, topic: str) -> None:
        first = self.engine.topic(topic).first
        for group in self.of(topic):
            if first > group.first:
                group.trimmed(first)
            self.touch(group)

    # -- turns ------------------------------------------------------------------------------------------------

    def touch(self, group: Group) -> None:
        """Something changed in the group: give it its turn at the end of this batch of events."""
        self._touched[group] = None
        if not self._scheduled:
            self._schedule()

    def grown(self, topic: str) -> None:
        """New records can be read in the topic."""
        self._grown.add(topic)
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        if self._loop is not None:
            self._scheduled = True
            self._loop.call_soon(self._settle)

    def _settle(self) -> None:
        self._scheduled = False
        touched, self._touched = self._touched, {}
        grown, self._grown = self._grown, set()
        for topic in grown:
            for group in self._groups.get(topic, {}).values():
                touched[group] = None
        now = self.clock.monotonic()
        for group in touched:
            _give_turn(group, now)

    def save_soon(self, group: Group) -> None:
        """Tell the engine of the group's moves, all those of a few milliseconds as one.

        A member that takes one record at a time makes a move with each of them: encoding and applying it cost as much
        as the delivery.
        """
        self._unsaved[group] = None
        if self._saving is None and self._loop is not None:
            self._saving = self._loop.call_later(MOVE_S, self._save)

    def _save(self) -> None:
        if self._saving is not None:
            self._saving.cancel()
            self._saving = None
        unsaved, self._unsaved = self._unsaved, {}
        for group in unsaved:
            with suppress(NotReachable):
                group.ledger.move()

    def serve(self, member: Member) -> None:
        """Credit for one record, and that record at once where it is at hand.

        So a member that takes one at a time waits for the event loop once, and not again until the turn ends.
        """
        if self._loop is None:
            member.credit()
            return
        scheduled, self._scheduled = self._scheduled, True  # its turn is now
        member.credit()
        self._scheduled = scheduled
        self._touched.pop(member.group, None)
        _give_turn(member.group, self.clock.monotonic())

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside; a failure nobody expected is logged, not lost."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("work on a group failed", exc_info=error)

    # -- finding ----------------------------------------------------------------------------------------------

    def get(self, topic: str, name: str) -> Group:
        """One group.

        Raises:
            NoSuchTopic, NoSuchGroup.
        """
        group = self._groups.get(topic, {}).get(name)
        if group is None:
            self.engine.topic(topic)
            raise NoSuchGroup(topic, name)
        return group

    def of(self, topic: str) -> list[Group]:
        """All groups of a topic, in the order they were declared."""
        return list(self._groups.get(topic, {}).values())

    def floor(self, topic: str) -> int | None:
        """What the slowest group of a topic has passed; None without groups."""
        return min((group.floor() for group in self.of(topic)), default=None)

    def compile(self, options: GroupOptions) -> Predicate | None:
        """The filter of these options, ready to use; None when all records pass.

        Raises:
            InvalidName: it does not parse, or nobody here knows its dialect.
        """
        if not options.filter:
            return None
        parser = self.filters.get(options.dialect)
        if parser is None:
            raise InvalidName(options.filter, f"no filter dialect {options.dialect!r} on this node")
        return parser(options.filter)

    # -- administration ---------------------------------------------------------------------------------------

    def lock(self, topic: str) -> asyncio.Lock:
        """Held while a topic or one of its groups is declared, edited or removed."""
        lock = self._locks.get(topic)
        if lock is None:
            lock = self._locks[topic] = asyncio.Lock()
        return lock

    async def declare(
        self,
        topic: str,
        name: str,
        options: GroupOptions | None = None,
        start: Start = BEGINNING,
    ) -> Group:
        """Find the group, create it at `start` if it is missing, and give it `options` unless they are None.

        Raises:
            NoSuchTopic, InvalidName (name or filter), LimitExceeded, Conflict, OutOfRange: nothing is changed.
        """
        async with self.lock(topic):
            self.engine.topic(topic)
            group = self._groups.get(topic, {}).get(name)
            if group is not None:
                if options is not None and options != group.options:
                    check_options(topic, options)
                    await group.edit(options)
                    self._listeners.tell(TopicEvent("edited", topic, name))
                return group
            options = options or GroupOptions()
            check_topic(name)
            check_options(topic, options)
            self.compile(options)
            floor, done = await self._position(topic, start)
            state = GroupState(name, options_to(options), floor, set(done))
            await self.engine.save_group(topic, state)
            group = self._add(topic, state, options)
            self._listeners.tell(TopicEvent("declared", topic, name))
            return group

    async def reset(self, topic: str, name: str, start: Start) -> None:
        """Move a group to another position; what is in flight is forgotten.

        Raises:
            NoSuchTopic, NoSuchGroup, Conflict, OutOfRange: nothing is changed.
        """
        async with self.lock(topic):
            group = self.get(topic, name)
            await group.reset(*await self._position(topic, start))
            self._listeners.tell(TopicEvent("edited", topic, name))

    async def remove(self, topic: str, name: str) -> None:
        """Forget a group; its members are told.

        Raises:
            NoSuchTopic, NoSuchGroup.
        """
        async with self.lock(topic):
            await self._remove(self.get(topic, name))

    async def _remove(self, group: Group) -> None:
        await self.engine.remove_group(group.topic, group.name)
        del self._groups[group.topic][group.name]
        group.close(NoSuchGroup(group.topic, group.name))
        self._listeners.tell(TopicEvent("removed", group.topic, group.name))

    async def _remove_empty(self, group: Group) -> None:
        async with self.lock(group.topic):
            if not group.members and not group.closed and group.options.delete_on_exit:
                await self._remove(group)

    def forget(self, topic: str) -> None:
        """The topic was removed, and its groups with it."""
        for group in self._groups.pop(topic, {}).values():
            group.close(NoSuchTopic(topic))

    def _add(self, topic: str, state: GroupState, options: GroupOptions) -> Group:
        group = Group(self, topic, state.name, options, Cursor.of(state))
        self._groups.setdefault(topic, {})[state.name] = group
        self.touch(group)
        return group

    async def _position(self, topic: str, start: Start) -> tuple[int, Iterable[int]]:
        info = self.engine.topic(topic)
        match start.at:
            case "beginning":
                return info.first, ()
            case "end":
                return info.end, ()
            case "time":
                return await self.engine.offset_at(topic, start.time_ms), ()
            case "copy":
                cursor = self.get(topic, start.group).cursor
                return cursor.head(), cursor.done
        if not info.first <= start.offset <= info.end:
            raise OutOfRange(topic, start.offset, info.first, info.end)
        if start.msgid:
            await self._check_id(topic, start.offset, start.msgid)
        return start.offset, ()

    async def _check_id(self, topic: str, offset: int, msgid: str) -> None:
        records = await self.engine.read(topic, offset, 1, 1)
        found = records[0].id if records and records[0].offset == offset else None
        if found != msgid:
            held = "no record" if found is None else f"the record {found!r}"
            raise Conflict(f"offset {offset} of {topic} holds {held}, not {msgid!r}")

    # -- members ----------------------------------------------------------------------------------------------

    def join(
        self,
        endpoint: Endpoint,
        topic: str,
        name: str,
        member_id: str = "",
        on_closed: Closed | None = None,
    ) -> Member:
        """Make the endpoint a member of a group, or find it there; `on_closed` hears of the end of the group.

        Raises:
            NoSuchTopic, NoSuchGroup, Conflict (exclusive), InvalidName (a filter nobody here can compile).
        """
        group = self.get(topic, name)
        before = len(group.members)
        member = group.join(endpoint, member_id, on_closed)
        if len(group.members) > before:
            self._members.setdefault(endpoint.id, []).append(member)
            self._listeners.tell(TopicEvent("joined", topic, name, endpoint))
        return member

    def topics_of(self, endpoint: Endpoint) -> list[str]:
        """The topics whose groups an endpoint is a member of."""
        return [member.group.topic for member in self._members.get(endpoint.id, ())]

    def left(self, endpoint: Endpoint) -> None:
        """The endpoint is gone: what it held goes to others."""
        for member in list(self._members.get(endpoint.id, ())):
            member.leave()

    def has_left(self, group: Group, member: Member) -> None:
        """Called by the group once a member is out."""
        mine = self._members[member.endpoint.id]
        mine.remove(member)
        if not mine:
            del self._members[member.endpoint.id]
        self._listeners.tell(TopicEvent("left", group.topic, group.name, member.endpoint))
        if group.options.delete_on_exit and not group.members and not group.closed:
            self.spawn(self._remove_empty(group))


def _give_turn(group: Group, now: float) -> None:
    # While a topic is being removed the engine knows it no more; its groups are closed right after.
    # `suppress` would cost a tenth of the turn of a member that takes one at a time.
    try:
        group.pump()
        group.ledger.flush(now)
    except NotReachable:
        pass
