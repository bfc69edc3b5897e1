"""Declaring topics and groups (protocol page §5, §7).

Invariant: what is missing is created, what exists is updated; the mask and the filter that a group shows are those it
was last declared with.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from polybus.core.engine import TopicInfo, TopicOptions
from polybus.core.group import Group
from polybus.core.group_options import BEGINNING, GroupOptions, Start
from polybus.core.limits import Owner
from polybus.errors import Conflict, OutOfRange, PolybusError
from polybus.http.request import Request
from polybus.protocols.zbus import answers
from polybus.protocols.zbus.deliveries import message_id
from polybus.protocols.zbus.filters import NAMES
from polybus.protocols.zbus.info import CREATED, CREATOR, MASK, UPDATED, encode_info
from polybus.protocols.zbus.masks import ACK, BITS, parse_mask
from polybus.protocols.zbus.urls import Command
from polybus.protocols.zbus.wire import JSON, encode_reply, reply_headers

if TYPE_CHECKING:
    from polybus.protocols.zbus.room import ZbusRoom


class Declaring:
    """The command `declare`."""

    def __init__(self, room: ZbusRoom) -> None:
        self._room = room

    async def declare(self, command: Command, request: Request, owner: Owner | None) -> None:
        """Carry it out and answer."""
        room, topic = self._room, command.topic
        try:
            info = await self._declare_topic(command, owner)
            group = await self._declare_group(command, info.name)
            await self._move(command, group)
            info = room.topics.info(info.name)
        except PolybusError as exc:
            request.send(answers.error(request.id, topic, exc))
            return
        except ValueError as exc:
            text = f"500: Exception Caught, {exc}"
            request.send(answers.text(500, request.id, topic, text))
            return
        shape = room.infos.group(group) if command.group else room.infos.topic(info)
        headers = {**reply_headers(request.id, topic), **JSON}
        request.send(encode_reply(200, headers, encode_info(shape)))

    async def _declare_topic(self, command: Command, owner: Owner | None) -> TopicInfo:
        room = self._room
        route = room.route(command.topic)
        mask = command.headers.get("topic_mask")
        if route is None:
            extra = {CREATOR: name} if (name := room.permits.creator(command)) else {}
            options = TopicOptions(extra=extra)
            if mask is None or not _is_number(mask):
                info = await room.topics.declare(command.topic, options, owner=owner)
            else:
                masked = self._masked(options, mask)
                info = await room.topics.declare(command.topic, masked, owner=owner)
        else:
            info = room.topics.info(route.name)
        if mask is not None:
            # After the topic was made: so does the original with a mask that is no number.
            options = self._masked(info.options, mask)
            if options != info.options:
                info = await room.topics.declare(info.name, options)
                await self._apply_topic_mask(info)
        return info

    def _masked(self, options: TopicOptions, text: str) -> TopicOptions:
        mask = parse_mask(text)
        extra = {**options.extra, MASK: str(mask)}
        bits = BITS[self._room.options.masks]
        if mask & bits.memory:
            return replace(options, extra=extra, durability="os")
        return replace(options, extra=extra)

    async def _apply_topic_mask(self, info: TopicInfo) -> None:
        """Bits such as pause hold for all groups of the topic."""
        room = self._room
        topic_mask = int(info.options.extra.get(MASK, "0"))
        for group in room.groups.of(info.name):
            own = int(group.options.extra.get(MASK, "0"))
            options = self._with_flags(group.options, own, topic_mask)
            if options != group.options:
                await room.groups.declare(info.name, group.name, options)

    async def _declare_group(self, command: Command, topic: str) -> Group:
        room, headers = self._room, command.headers
        name = command.group or topic
        group = room.group_named(topic, name)
        if group is not None and not command.group:
            return group
        now = str(room.clock.wall_ms())
        extra = dict(group.options.extra) if group is not None else {CREATED: now}
        extra.setdefault(CREATED, now)
        mask = headers.get("group_mask")
        if mask is not None:
            extra[MASK] = str(parse_mask(mask))
        if group is None and (creator := room.permits.creator(command)):
            extra[CREATOR] = creator
        old = group.options if group is not None else GroupOptions(ack=False)
        extra.setdefault(UPDATED, now)
        options = replace(
            old,
            filter=headers.get("group_filter", ""),
            dialect=NAMES[room.options.filters] if headers.get("group_filter") else "",
            window=_number(headers, "group_ack_window", old.window),
            ack_timeout_ms=_number(headers, "group_ack_timeout", old.ack_timeout_ms),
            extra=extra,
        )
        topic_mask = int(room.topics.info(topic).options.extra.get(MASK, "0"))
        options = self._with_flags(options, int(extra.get(MASK, "0")), topic_mask)
        if group is None:
            return await room.groups.declare(topic, name, options, self._start(command, topic))
        if options != group.options:
            options = replace(options, extra={**extra, UPDATED: now})
        return await room.groups.declare(topic, group.name, options)

    def _with_flags(self, options: GroupOptions, mask: int, topic_mask: int) -> GroupOptions:
        bits = BITS[self._room.options.masks]
        both = mask | topic_mask
        return replace(
            options,
            paused=bool(both & bits.pause),
            exclusive=bool(both & bits.exclusive),
            delete_on_exit=bool(mask & bits.delete_on_exit),
            ack=bool(mask & ACK),
        )

    def _start(self, command: Command, topic: str) -> Start:
        """Where a new group begins: at the group it copies, else at the most advanced one."""
        room = self._room
        copied = command.headers.get("group_start_copy")
        if copied and (group := room.group_named(topic, copied)) is not None:
            return Start("copy", group=group.name)
        others = room.groups.of(topic)
        if not others:
            return BEGINNING
        return Start("copy", group=max(others, key=lambda group: group.floor()).name)

    async def _move(self, command: Command, group: Group) -> None:
        """The start options by offset and time, which also move a group that exists."""
        headers, room = command.headers, self._room
        offset = headers.get("group_start_offset")
        time = headers.get("group_start_time")
        if offset is not None:
            msgid = headers.get("group_start_msgid", "")
            where = f"(offset={offset[:20]}, msgid={msgid[:MAX_SHOWN]})"
            try:
                start = Start("offset", offset=int(offset))
                await self._check_id(group.topic, start.offset, msgid)
                await room.groups.reset(group.topic, group.name, start)
            except (ValueError, Conflict, OutOfRange) as exc:
                text = f"java.lang.IllegalArgumentException: seek by offset unsuccessfull: {where}"
                raise ValueError(text) from exc
        elif time is not None:
            await room.groups.reset(
                group.topic, group.name, Start("time", time_ms=_to_int("group_start_time", time))
            )

    async def _check_id(self, topic: str, offset: int, msgid: str) -> None:
        if not msgid:
            return
        engine = self._room.topics.engine
        info = engine.topic(topic)
        if not info.first <= offset < info.end:
            raise OutOfRange(topic, offset, info.first, info.end)
        (record, *_) = await engine.read(topic, offset, 1, 1)
        if message_id(record) != msgid:
            raise Conflict(f"offset {offset} of {topic} holds another message")


MAX_SHOWN = 80  # characters of a client's own text in an answer


def _is_number(text: str) -> bool:
    try:
        parse_mask(text)
    except ValueError:
        return False
    return True


def _to_int(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise ValueError(f'java.lang.NumberFormatException: For input string: "{text[:MAX_SHOWN]}"')
    return int(text)


def _number(headers: dict[str, str], name: str, default: int) -> int:
    return _to_int(name, headers[name]) if name in headers else default
