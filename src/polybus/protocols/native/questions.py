"""What an Ask can name: listings and the administration of topics and groups.

Invariant: every question is one row of the table below, with the permission it needs; arguments and answers are maps,
so that either may grow without harm to the other side.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from polybus.core.engine import TopicOptions
from polybus.core.group_options import BEGINNING, Start
from polybus.core.limits import Owner
from polybus.core.policy import Verb
from polybus.core.topics import Topics
from polybus.errors import LimitExceeded, LocalProtocolError
from polybus.protocols.native import wire
from polybus.protocols.native.durable import changed, group_options
from polybus.protocols.native.wire import Frame

if TYPE_CHECKING:
    from polybus.protocols.native.session import NativeSession

MAX_LISTS: Final = 64  # that one connection asked for and that are not made yet

Answer = Mapping[str, object] | None


class Arguments(msgspec.Struct):
    """What a question may be asked with; each reads its own."""

    topic: str = ""
    group: str = ""
    options: dict[str, Any] = {}
    start: Start = BEGINNING
    time_ms: int = 0
    sink: str = ""
    batch: int = 0
    tickets: list[str] = []
    payload: bytes = b""
    owner: Owner | None = None  # whom a new topic is counted for; set here, not by the client


@dataclass(frozen=True, slots=True)
class Question:
    """Who may ask it, about what, and how it is answered."""

    verb: Verb
    answer: Callable[[Topics, Arguments], Awaitable[Answer]]


def ask(session: NativeSession, frame: Frame) -> None:
    """Answer an Ask, now or later.

    Raises:
        LocalProtocolError: this node knows no such question; NotAuthorized, LimitExceeded.
    """
    if frame.name == "services":
        session.router.check(session.identity, "admin", "services")
        _ask_for_list(session, frame.id)
        return
    question = QUESTIONS.get(frame.name)
    if question is None:
        raise LocalProtocolError(f"this node knows no question {frame.name!r}")
    arguments = wire.parse_meta(frame.meta, Arguments)
    arguments.payload = frame.payload
    arguments.owner = session.router.quotas.owner(session.identity)
    session.router.check(session.identity, question.verb, arguments.topic or "**")
    durable = session.durable()
    durable.later(frame.id, _awaited(question.answer(durable.topics, arguments)))


async def _awaited(answer: Awaitable[Answer]) -> Answer:
    return await answer


def _ask_for_list(session: NativeSession, ident: int) -> None:
    """Make a list of services once those that this client asked for before are made: each costs memory."""
    lists = session.lists
    if len(lists) >= MAX_LISTS:
        text = "lists of services that one connection waits for"
        raise LimitExceeded(text, limit=MAX_LISTS, actual=len(lists) + 1)
    lists.append(ident)
    if len(lists) == 1:
        session.router.chores.add(_make_lists(session))


def _make_lists(session: NativeSession) -> Iterator[None]:
    lists = session.lists
    while lists and not session.closed:
        yield from _list_services(session, lists[0])
        del lists[0]


def _list_services(session: NativeSession, ident: int) -> Iterator[None]:
    """Answer with every name that is answered, on all wires; a name each step."""
    services = session.router.services
    count = 0
    listed = bytearray()
    for found in tuple(services.all()):
        if session.closed:
            return
        if not found.endpoint.closed:
            count += 1
            listed += wire.encode_meta(
                {
                    "name": found.name,
                    "shared": found.shared,
                    "wire": found.wire,
                    "prefix": found.prefix,
                    "peer": found.endpoint.peer,
                    "owner": str(found.endpoint.identity),
                    "answers": services.answers(found),
                    "calls": found.traffic.calls,
                }
            )
        yield
    if len(listed) > session.max_answer:
        text = "bytes in the list of services"
        error = LimitExceeded(text, limit=session.max_answer, actual=len(listed))
        session.answer_error(ident, error)
    else:
        session.answer(ident, {"services": msgspec.Raw(wire.array_head(count) + listed)})


async def _list_topics(topics: Topics, asked: Arguments) -> Answer:
    return {"topics": list(topics.all())}


async def _topic_info(topics: Topics, asked: Arguments) -> Answer:
    return {"topic": topics.info(asked.topic)}


async def _declare_topic(topics: Topics, asked: Arguments) -> Answer:
    options = changed(TopicOptions(), asked.options, "a topic") if asked.options else None
    return {"topic": await topics.declare(asked.topic, options, owner=asked.owner)}


async def _edit_topic(topics: Topics, asked: Arguments) -> Answer:
    options = changed(topics.info(asked.topic).options, asked.options, "a topic")
    return {"topic": await topics.declare(asked.topic, options)}


async def _remove_topic(topics: Topics, asked: Arguments) -> Answer:
    await topics.remove(asked.topic)
    return None


async def _empty_topic(topics: Topics, asked: Arguments) -> Answer:
    await topics.empty(asked.topic)
    return None


async def _offset_at(topics: Topics, asked: Arguments) -> Answer:
    return {"offset": await topics.engine.offset_at(asked.topic, asked.time_ms)}


async def _stage(topics: Topics, asked: Arguments) -> Answer:
    return {"ticket": await topics.engine.stage(asked.topic, asked.payload)}


async def _publish_staged(topics: Topics, asked: Arguments) -> Answer:
    first = await topics.publish_staged(asked.topic, asked.sink, asked.batch, asked.tickets)
    return {"first": first}


async def _list_groups(topics: Topics, asked: Arguments) -> Answer:
    topics.info(asked.topic)
    return {"groups": [group.info() for group in topics.groups.of(asked.topic)]}


async def _group_info(topics: Topics, asked: Arguments) -> Answer:
    return {"group": topics.groups.get(asked.topic, asked.group).info()}


async def _declare_group(topics: Topics, asked: Arguments) -> Answer:
    options = None
    if asked.options:
        options = group_options(topics, asked.topic, asked.group, asked.options)
    group = await topics.groups.declare(asked.topic, asked.group, options, asked.start)
    return {"group": group.info()}


async def _reset_group(topics: Topics, asked: Arguments) -> Answer:
    await topics.groups.reset(asked.topic, asked.group, asked.start)
    return {"group": topics.groups.get(asked.topic, asked.group).info()}


async def _remove_group(topics: Topics, asked: Arguments) -> Answer:
    await topics.groups.remove(asked.topic, asked.group)
    return None


QUESTIONS: Final[dict[str, Question]] = {
    "topic/list": Question("consume", _list_topics),
    "topic/info": Question("consume", _topic_info),
    "topic/declare": Question("declare", _declare_topic),
    "topic/edit": Question("declare", _edit_topic),
    "topic/remove": Question("declare", _remove_topic),
    "topic/empty": Question("declare", _empty_topic),
    "topic/offset_at": Question("consume", _offset_at),
    "topic/stage": Question("produce", _stage),
    "topic/publish": Question("produce", _publish_staged),
    "group/list": Question("consume", _list_groups),
    "group/info": Question("consume", _group_info),
    "group/declare": Question("declare", _declare_group),
    "group/reset": Question("declare", _reset_group),
    "group/remove": Question("declare", _remove_group),
}
