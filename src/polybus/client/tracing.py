"""Spans of OpenTelemetry for what a program does on a bus, where the program has set a tracer provider.

Invariant: without one no link is wrapped, nothing is imported and no header is added. The context travels as W3C
`traceparent` and `tracestate`, on wires that have headers; those that the caller gave are never replaced.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import msgspec

from polybus._version import __version__
from polybus.client.consumption import Consumer, Delivered
from polybus.client.handlers import LinkHandler, Outcome
from polybus.client.link import Fetched, Link, Sink
from polybus.core.group_options import BEGINNING, Start
from polybus.model.message import NO_HEADERS
from polybus.model.record import NewRecord

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanKind, Tracer

TRACEPARENT: Final = "traceparent"
WITH_HEADERS: Final = frozenset({"native"})  # the other wires refuse a call that has any


def traced(link: Link) -> Link:
    """The link with spans, if the program has set a tracer provider; else the link itself."""
    # A program that has set one has imported this module; no other program shall pay for it.
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is None or isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
        return link
    return TracedLink(link, api.get_tracer("polybus", __version__))


class TracedLink(Link):
    """A link that makes a span of each call, service, publication and record."""

    def __init__(self, inner: Link, tracer: Tracer) -> None:
        self._inner = inner
        self._spans = Spans(tracer, inner.wire)
        self.wire = inner.wire

    # -- spans ---------------------------------------------------------------------------------------------------------

    async def call(
        self,
        name: str,
        payload: bytes,
        *,
        timeout: float | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> bytes:
        with self._spans.current("call", name, "CLIENT"):
            sent = self._spans.inject(headers)
            return await self._inner.call(name, payload, timeout=timeout, headers=sent)

    async def call_streaming(
        self,
        name: str,
        payload: bytes,
        *,
        timeout: float | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> AsyncGenerator[bytes, None]:
        span = self._spans.start("call", name, "CLIENT")
        sent = self._spans.inject(headers, span)
        parts = self._inner.call_streaming(name, payload, timeout=timeout, headers=sent)
        async with aclosing(self._spans.around(parts, span)) as each:
            async for part in each:
                yield part

    async def push(
        self, name: str, payload: bytes, *, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        with self._spans.current("push", name, "CLIENT"):
            await self._inner.push(name, payload, headers=self._spans.inject(headers))

    async def serve(self, name: str, handler: LinkHandler) -> None:
        await self._inner.serve(name, self._spans.handler(handler))

    async def publish(
        self, name: str, payload: bytes, *, headers: Mapping[str, str] = NO_HEADERS
    ) -> int | None:
        with self._spans.current("publish", name, "PRODUCER"):
            return await self._inner.publish(name, payload, headers=self._spans.inject(headers))

    async def publish_nowait(
        self, name: str, payload: bytes, *, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        with self._spans.current("publish", name, "PRODUCER"):
            await self._inner.publish_nowait(name, payload, headers=self._spans.inject(headers))

    async def produce(self, topic: str, record: NewRecord, *, create: bool = False) -> int:
        with self._spans.current("produce", topic, "PRODUCER"):
            return await self._inner.produce(topic, self._spans.marked(record), create=create)

    async def produce_many(
        self, topic: str, records: Sequence[NewRecord], *, create: bool = False
    ) -> int:
        with self._spans.current("produce", topic, "PRODUCER") as span:
            span.set_attribute("messaging.batch.message_count", len(records))
            marked = [self._spans.marked(record) for record in records]
            return await self._inner.produce_many(topic, marked, create=create)

    async def consume(
        self,
        topic: str,
        group: str,
        window: int,
        *,
        start: Start = BEGINNING,
        options: dict[str, Any] | None = None,
        create: bool = False,
    ) -> Consumer:
        joined = await self._inner.consume(
            topic, group, window, start=start, options=options, create=create
        )
        return TracedConsumer(joined, self._spans, topic, group)

    # -- as they are ---------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self._inner.open()

    async def close(self) -> None:
        await self._inner.close()

    async def drain(self) -> None:
        await self._inner.drain()

    @property
    def connected(self) -> bool:
        return self._inner.connected

    async def unserve(self, name: str) -> None:
        await self._inner.unserve(name)

    async def services(self) -> list[dict[str, Any]]:
        return await self._inner.services()

    async def subscribe(self, pattern: str, sink: Sink) -> None:
        await self._inner.subscribe(pattern, sink)

    async def unsubscribe(self, pattern: str, sink: Sink) -> None:
        await self._inner.unsubscribe(pattern, sink)

    async def fetch(self, topic: str, start: int, end: int | None, max_bytes: int) -> Fetched:
        return await self._inner.fetch(topic, start, end, max_bytes)

    async def ask(
        self,
        question: str,
        arguments: Mapping[str, object] | None = None,
        payload: bytes = b"",
    ) -> dict[str, Any]:
        return await self._inner.ask(question, arguments, payload)


class TracedConsumer:
    """A membership whose records are spans from their delivery to their ack or nack.

    The span of the last record is the current one of the task that reads, so that what the loop's body does belongs to
    it.
    """

    def __init__(self, inner: Consumer, spans: Spans, topic: str, group: str) -> None:
        self._inner = inner
        self._spans = spans
        self._topic = topic
        self._group = group
        self._open: dict[int, Span] = {}
        self._current: tuple[asyncio.Task[Any] | None, Any] | None = None

    async def next(self) -> Delivered:
        self._leave_current()
        delivered = await self._inner.next()
        record = delivered.record
        span = self._spans.start("consume", self._topic, "CONSUMER", record.headers)
        span.set_attribute("messaging.consumer.group.name", self._group)
        span.set_attribute("messaging.polybus.offset", record.offset)
        span.set_attribute("messaging.polybus.attempt", delivered.attempt)
        self._open[record.offset] = span
        self._current = (asyncio.current_task(), self._spans.attach(span))
        return delivered

    def ack(self, offset: int) -> None:
        self._end(offset)
        self._inner.ack(offset)

    def nack(self, offset: int, delay: float = 0.0, reason: str = "") -> None:
        self._end(offset, reason or "given back")
        self._inner.nack(offset, delay, reason)

    async def leave(self) -> None:
        self._leave_current()
        for offset in list(self._open):
            self._end(offset, "not acknowledged")
        await self._inner.leave()

    def _end(self, offset: int, failure: str = "") -> None:
        span = self._open.pop(offset, None)
        if span is not None:
            if failure:
                self._spans.fail(span, failure)
            span.end()

    def _leave_current(self) -> None:
        current, self._current = self._current, None
        # Another task has a context of its own, in which this span was never current.
        if current is not None and current[0] is asyncio.current_task():
            self._spans.detach(current[1])


class Spans:
    """Makes spans of one wire, and puts their context into headers."""

    def __init__(self, tracer: Tracer, wire: str) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._context = context
        self._tracer = tracer
        self._wire = wire
        self._propagator = TraceContextTextMapPropagator()

    def start(
        self, verb: str, name: str, kind: str, headers: Mapping[str, str] = NO_HEADERS
    ) -> Span:
        """A span below the context of the headers, or below the current one where they have none."""
        parent = self._propagator.extract(headers) if TRACEPARENT in headers else None
        return self._tracer.start_span(
            f"{verb} {name}", parent, self._kind(kind), self._attributes(verb, name)
        )

    def current(self, verb: str, name: str, kind: str) -> Any:
        """A span that is the current one within a `with`, and fails with what is raised there."""
        return self._tracer.start_as_current_span(
            f"{verb} {name}", kind=self._kind(kind), attributes=self._attributes(verb, name)
        )

    def _kind(self, kind: str) -> SpanKind:
        return self._trace.SpanKind[kind]

    def _attributes(self, verb: str, name: str) -> dict[str, str]:
        attributes = {"network.protocol.name": self._wire}
        if verb in ("call", "serve", "push"):
            return {**attributes, "rpc.system": "polybus", "rpc.method": name}
        return {
            **attributes,
            "messaging.system": "polybus",
            "messaging.destination.name": name,
            "messaging.operation.name": verb,
        }

    def inject(self, headers: Mapping[str, str], span: Span | None = None) -> Mapping[str, str]:
        """The headers with the context of a span, by default the current one."""
        if self._wire not in WITH_HEADERS or TRACEPARENT in headers:
            return headers
        context = None if span is None else self._trace.set_span_in_context(span)
        carrier = dict(headers)
        self._propagator.inject(carrier, context)
        return carrier

    def marked(self, record: NewRecord) -> NewRecord:
        """The record with the context among its headers."""
        return msgspec.structs.replace(record, headers=self.inject(record.headers))

    def attach(self, span: Span) -> Any:
        return self._context.attach(self._trace.set_span_in_context(span))

    def detach(self, token: Any) -> None:
        self._context.detach(token)

    def fail(self, span: Span, text: str) -> None:
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, text))

    # -- handlers ------------------------------------------------------------------------------------------------------

    def handler(self, handler: LinkHandler) -> LinkHandler:
        """The handler with a span around each call, below that of the caller."""

        def handle(name: str, payload: bytes, headers: Mapping[str, str]) -> Outcome:
            span = self.start("serve", name, "SERVER", headers)
            try:
                with self._trace.use_span(span, end_on_exit=False):
                    outcome = handler(name, payload, headers)
            except BaseException:
                span.end()
                raise
            if isinstance(outcome, bytes):
                span.end()
                return outcome
            if isinstance(outcome, AsyncIterator):
                return self.around(outcome, span)
            return self._later(outcome, span)

        return handle

    async def _later(self, outcome: Awaitable[bytes], span: Span) -> bytes:
        with self._trace.use_span(span, end_on_exit=True):
            return await outcome

    async def around(self, parts: AsyncIterator[bytes], span: Span) -> AsyncGenerator[bytes, None]:
        """The parts of a reply; the span is current only while a part is made, not while it is taken."""
        try:
            while True:
                with self._trace.use_span(span, end_on_exit=False):
                    try:
                        part = await anext(parts)
                    except StopAsyncIteration:
                        return
                yield part
        finally:
            close = getattr(parts, "aclose", None)
            if close is not None:
                await close()
            span.end()
