"""The monitor of one node: its operations, its streams, and its place on the node's HTTP site.

Invariant: it owns every task it starts, and after `stop` none is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from polybus.core.endpoint import Identity
from polybus.core.filter import parse_filter
from polybus.core.topics import Topics
from polybus.errors import NoSuchTopic
from polybus.http.request import Request
from polybus.http.site import TEXT, Site
from polybus.model.trace import trace_headers
from polybus.monitor import records, shapes
from polybus.monitor.actions import EVERYTHING, Actions
from polybus.monitor.api import Api, Asked, Operation
from polybus.monitor.files import load, serve
from polybus.monitor.history import (
    JOURNAL,
    TRAFFIC,
    CallGraph,
    Kept,
    TrafficHistory,
    call_graph,
    traffic,
)
from polybus.monitor.lists import Lists
from polybus.monitor.nodes import GsbNodes
from polybus.monitor.openapi import describe
from polybus.monitor.sampler import POINTS, Sampler
from polybus.monitor.sources import Sources
from polybus.monitor.streams import Viewers
from polybus.monitor.tail import Tail

log = logging.getLogger("polybus.monitor")


class OverviewQuestion(shapes.Question):
    """`history` is the number of samples, one a second."""

    history: Annotated[int, Meta(ge=0, le=POINTS)] = 0


class RawQuestion(shapes.Question):
    """`raw` asks for base64 whatever the payload is."""

    raw: bool = False


class Monitor:
    """See the module."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.sampler = Sampler(sources)
        self._lists = Lists(self.sampler)
        self._actions = Actions(sources)
        self._nodes = GsbNodes(self.sampler)
        self._traffic = Kept(self.sampler.clock, traffic)
        self._graph = Kept(self.sampler.clock, call_graph)
        self._viewers = Viewers()
        self._tails = Viewers()
        self._tasks: set[asyncio.Task[None]] = set()
        self._api = Api(self._operations())
        self._document = msgspec.json.encode(describe(self._api.operations))
        self.sampler.on_sample.append(self._tell)
        load()

    def register(self, site: Site) -> None:
        """Serve the page, the API and GSB's own paths on a site."""
        site.add("/", serve)
        site.add("/static", serve)
        # Reading is refused to pages of other origins as well: records are nobody's business but the operator's.
        site.add("/api", self._handle, changes=True)
        site.add("/health", self._nodes.health)
        site.add("/nodes", self._nodes.nodes)
        site.add("/events", self._nodes.events)

    def start(self) -> None:
        """Begin to sample."""
        self._spawn(self.sampler.run())

    async def stop(self) -> None:
        """End everything. Idempotent."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def run(self, request: Request, work: Callable[[Request], Coroutine[Any, Any, None]]) -> None:
        """Answer a request by work that takes a while; a mistake of ours in it is an answer too."""
        self._spawn(self._answer(request, work))

    def check(self, who: Identity) -> None:
        """Raise NotAuthorized unless this identity may look at the bus."""
        self.sources.router.check(who, "subscribe", EVERYTHING)

    def _handle(self, request: Request) -> None:
        self.run(request, self._api.answer)

    async def _answer(
        self, request: Request, work: Callable[[Request], Coroutine[Any, Any, None]]
    ) -> None:
        try:
            await work(request)
        except Exception:
            log.exception("%s %s failed", request.method, request.path[:200])
            request.respond(500, TEXT, b"500: internal error; the node's log has more\n")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the monitor failed", exc_info=error)

    def _tell(self) -> None:
        if len(self._viewers):
            self._viewers.tell("overview", self.sampler.overview())

    # -- operations -------------------------------------------------------------------------------------------

    def _operations(self) -> list[Operation]:
        see, topic, group = self._seen, "/topics/{topic}", "/topics/{topic}/groups/{group}"
        number = frozenset({"offset", "connection"})
        return [
            Operation(
                "openapi", "GET", "/openapi.json", "This document", shapes.Done, self._openapi
            ),
            Operation("me", "GET", "/me", "Who is asking, and what they may", shapes.Me, self._me),
            Operation(
                "overview",
                "GET",
                "/overview",
                "The node at a glance",
                shapes.Overview,
                see(self._overview),
                OverviewQuestion,
            ),
            Operation(
                "stream",
                "GET",
                "/stream",
                "The overview, once a second, as server-sent events",
                None,
                see(self._stream),
            ),
            Operation(
                "topics",
                "GET",
                "/topics",
                "Durable topics",
                shapes.TopicPage,
                see(lambda a: self._lists.topics(a.question)),
                shapes.TopicListing,
            ),
            Operation("topic", "GET", topic, "One topic", shapes.Topic, see(self._topic)),
            Operation(
                "records",
                "GET",
                topic + "/records",
                "Records by offset, time or tag",
                shapes.Records,
                see(self._records),
                shapes.RecordQuestion,
            ),
            Operation(
                "record",
                "GET",
                topic + "/records/{offset}",
                "One record",
                shapes.Record,
                see(self._record),
                RawQuestion,
                numbers=frozenset({"offset"}),
            ),
            Operation(
                "tail",
                "GET",
                topic + "/tail",
                "Records as they come, as server-sent events",
                None,
                see(self._tail),
                shapes.TailQuestion,
            ),
            Operation(
                "groups",
                "GET",
                "/groups",
                "Consume groups",
                shapes.GroupPage,
                see(self._groups),
                shapes.GroupListing,
            ),
            Operation(
                "services",
                "GET",
                "/services",
                "Names that somebody answers",
                shapes.ServicePage,
                see(lambda a: self._lists.services(a.question)),
                shapes.ServiceListing,
            ),
            Operation(
                "connections",
                "GET",
                "/connections",
                "Open connections",
                shapes.ConnectionPage,
                see(lambda a: self._lists.connections(a.question)),
                shapes.ConnectionListing,
            ),
            Operation(
                "dead_letters",
                "GET",
                "/dead-letters",
                "Topics that hold what nobody confirmed",
                shapes.DeadLetterPage,
                see(lambda a: self._lists.dead_letters(a.question)),
                shapes.Listing,
            ),
            Operation(
                "federation",
                "GET",
                "/federation",
                "Trackers and twins",
                shapes.Federation,
                see(self._federation),
            ),
            Operation(
                "traffic_history",
                "GET",
                "/history/traffic",
                "Traffic by window, out of the topic of the traffic pipeline",
                TrafficHistory,
                see(self._traffic_history),
            ),
            Operation(
                "call_graph",
                "GET",
                "/history/graph",
                "Who called whom, out of the journal",
                CallGraph,
                see(self._call_graph),
            ),
            Operation(
                "add_topic",
                "POST",
                "/topics",
                "Add a topic",
                shapes.Done,
                self._add_topic,
                body=shapes.NewTopic,
                admin=True,
                status=201,
            ),
            Operation(
                "remove_topic",
                "DELETE",
                topic,
                "Remove a topic with its records and groups",
                shapes.Done,
                lambda a: self._actions.remove_topic(a.who, a.peer, a.path["topic"]),
                admin=True,
            ),
            Operation(
                "empty_topic",
                "POST",
                topic + "/empty",
                "Drop all records of a topic; offsets go on",
                shapes.Done,
                lambda a: self._actions.empty_topic(a.who, a.peer, a.path["topic"]),
                admin=True,
            ),
            Operation(
                "produce",
                "POST",
                topic + "/records",
                "Produce one record",
                shapes.Produced,
                lambda a: self._actions.produce(a.who, a.peer, a.path["topic"], a.body),
                body=shapes.Produce,
                admin=True,
                status=201,
            ),
            Operation(
                "reset_group",
                "POST",
                group + "/reset",
                "Let a group go on from another position",
                shapes.Done,
                self._reset,
                body=shapes.Reset,
                admin=True,
            ),
            Operation(
                "call",
                "POST",
                "/call",
                "Call a service",
                shapes.CallAnswer,
                lambda a: self._actions.call(
                    a.who, a.peer, a.body, trace_headers(a.request.head.headers)
                ),
                body=shapes.CallQuestion,
                admin=True,
            ),
            Operation(
                "disconnect",
                "DELETE",
                "/connections/{connection}",
                "Close a connection",
                shapes.Done,
                self._disconnect,
                numbers=number - {"offset"},
                admin=True,
            ),
        ]

    def _seen(
        self, run: Callable[[Asked], Coroutine[Any, Any, Any]]
    ) -> Callable[[Asked], Coroutine[Any, Any, Any]]:
        async def checked(asked: Asked) -> Any:
            self.check(asked.who)
            return await run(asked)

        return checked

    @property
    def _topics(self) -> Topics:
        return self._actions.topics

    async def _openapi(self, asked: Asked) -> bytes:
        return self._document

    async def _me(self, asked: Asked) -> shapes.Me:
        who = asked.who
        return shapes.Me(
            identity=str(who),
            look=self.sources.router.policy.may(who, "subscribe", EVERYTHING),
            admin=self._actions.may(who),
            token=asked.request.connection.site.wants_token(asked.request),
        )

    async def _overview(self, asked: Asked) -> shapes.Overview:
        await self.sampler.fresh()
        return self.sampler.overview(asked.question.history)

    async def _stream(self, asked: Asked) -> None:
        stream = self._viewers.add(asked.request)
        stream.send("overview", msgspec.json.encode(self.sampler.overview()))

    async def _topic(self, asked: Asked) -> shapes.Topic:
        return self._lists.topic(self._topics.info(asked.path["topic"]))

    async def _groups(self, asked: Asked) -> Any:
        if asked.question.topic:
            self._topics.info(asked.question.topic)
        return await self._lists.groups(asked.question)

    async def _records(self, asked: Asked) -> shapes.Records:
        topic = self._readable(asked)
        return await records.browse(self._topics, topic, asked.question)

    async def _record(self, asked: Asked) -> shapes.Record:
        topic = self._readable(asked)
        offset = int(asked.path["offset"])
        return await records.one(self._topics, topic, offset, raw=asked.question.raw)

    def _readable(self, asked: Asked) -> str:
        """The topic of the path, for somebody who may read it."""
        topic = asked.path["topic"]
        self._topics.info(topic)
        self.sources.router.check(asked.who, "consume", topic)
        return topic

    async def _federation(self, asked: Asked) -> shapes.Federation:
        return shapes.Federation(
            trackers=list(self.sources.trackers()), twins=list(self.sources.twins())
        )

    async def _traffic_history(self, asked: Asked) -> TrafficHistory:
        self.sources.router.check(asked.who, "consume", TRAFFIC)
        return await self._traffic.get(self._topics)

    async def _call_graph(self, asked: Asked) -> CallGraph:
        self.sources.router.check(asked.who, "consume", JOURNAL)
        return await self._graph.get(self._topics)

    async def _add_topic(self, asked: Asked) -> shapes.Done:
        return await self._actions.add_topic(asked.who, asked.peer, asked.body)

    async def _reset(self, asked: Asked) -> shapes.Done:
        topic, group = asked.path["topic"], asked.path["group"]
        return await self._actions.reset(asked.who, asked.peer, topic, group, asked.body)

    async def _disconnect(self, asked: Asked) -> shapes.Done:
        return self._actions.disconnect(asked.who, asked.peer, int(asked.path["connection"]))

    # -- the live tail ----------------------------------------------------------------------------------------

    async def _tail(self, asked: Asked) -> None:
        topic = self._readable(asked)
        tag = asked.question.tag
        passes = parse_filter(tag) if tag else None
        stream = self._tails.add(asked.request)
        tail = Tail(self._topics, topic, passes, asked.question.q.encode())
        try:
            await tail.run(stream)
        except NoSuchTopic as exc:
            stream.send("gone", msgspec.json.encode(exc.text))
        finally:
            self._tails.drop(stream)
