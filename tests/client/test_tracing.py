"""Spans of the real OpenTelemetry SDK, kept in memory, for what a program does on a bus."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import polybus
from polybus.client import Message
from polybus.client.gsb import GsbLink
from polybus.client.tracing import TracedLink, traced
from polybus.errors import ServiceFailed
from polybus.protocols.gsb.client import GsbClient
from polybus.server.config import Config
from polybus.server.node import Node

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> TracerProvider:
    """What a program sets for itself; only for this test, since it cannot be taken back in earnest."""
    made = TracerProvider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: made)
    return made


@pytest.fixture
def exported(provider: TracerProvider) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield exporter
    provider.shutdown()


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    config = Config(listen=("tcp://127.0.0.1:0",), data=tmp_path / "data")
    async with Node(config) as node:
        yield f"{node.addresses[0].host}:{node.addresses[0].port}"


def spans(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def is_child(child: ReadableSpan, parent: ReadableSpan) -> bool:
    assert parent.context is not None
    return child.parent is not None and child.parent.span_id == parent.context.span_id


async def test_a_call_and_its_service_are_spans_of_one_trace(exported, url):
    async with polybus.connect(f"polybus://{url}") as bus:

        @bus.serve("outer")
        async def outer(body: bytes) -> bytes:
            return await bus.call("inner", body)

        @bus.serve("inner")
        def inner(body: bytes) -> bytes:
            return body.upper()

        assert await bus.call("outer", b"a") == b"A"
    found = spans(exported)
    assert is_child(found["serve outer"], found["call outer"])
    assert is_child(found["call inner"], found["serve outer"])
    assert is_child(found["serve inner"], found["call inner"])
    assert found["call outer"].kind is SpanKind.CLIENT
    assert found["serve outer"].kind is SpanKind.SERVER
    assert dict(found["call outer"].attributes or {}) == {
        "network.protocol.name": "native",
        "rpc.system": "polybus",
        "rpc.method": "outer",
    }


async def test_a_failed_call_is_a_failed_span_on_both_sides(exported, url):
    async with polybus.connect(f"polybus://{url}") as bus:

        @bus.serve("now")
        def now() -> bytes:
            raise ValueError("not today")

        @bus.serve("later")
        async def later() -> bytes:
            raise ValueError("not today")

        for name in ("now", "later"):
            with pytest.raises(ServiceFailed, match="not today"):
                await bus.call(name)
    found = spans(exported)
    for name in ("call now", "serve now", "call later", "serve later"):
        assert found[name].status.status_code is StatusCode.ERROR
        assert [event.name for event in found[name].events] == ["exception"]


async def test_a_reply_in_parts_is_one_span_that_ends_with_the_last(exported, url):
    async with polybus.connect(f"polybus://{url}") as bus:

        @bus.serve("parts")
        async def parts() -> AsyncIterator[bytes]:
            yield b"1"
            trace.get_current_span().add_event("between")
            yield b"2"

        assert [part async for part in bus.call_streaming("parts")] == [b"1", b"2"]
    found = spans(exported)
    assert is_child(found["serve parts"], found["call parts"])
    assert [event.name for event in found["serve parts"].events] == ["between"]


async def test_a_record_is_consumed_below_the_span_that_produced_it(exported, url):
    async with polybus.connect(f"polybus://{url}") as bus:
        await bus.produce("orders", b"tea", create=True)
        await bus.produce_many("orders", [b"coffee", b"milk"])
        async with bus.consume("orders", "billing") as records:
            first = await anext(records)
            await bus.publish("billed", first.payload)
            second = await anext(records)
            second.nack(delay=60)
    produced, consumed = [], []
    for span in exported.get_finished_spans():
        if span.name == "produce orders":
            produced.append(span)
        if span.name == "consume orders":
            consumed.append(span)
    assert [(p.attributes or {}).get("messaging.batch.message_count") for p in produced] == [
        None,
        2,
    ]
    assert all(is_child(c, p) for c, p in zip(consumed, produced, strict=True))
    assert is_child(spans(exported)["publish billed"], consumed[0])
    assert [span.status.status_code for span in consumed] == [StatusCode.UNSET, StatusCode.ERROR]
    assert (consumed[0].attributes or {})["messaging.consumer.group.name"] == "billing"
    assert not trace.get_current_span().get_span_context().is_valid


async def test_a_record_that_is_left_ends_its_span(exported, url):
    async with polybus.connect(f"polybus://{url}") as bus:
        await bus.produce("orders", b"tea", create=True)
        records = await bus.consume("orders", "billing")
        await anext(records)
        await records.close()
    assert spans(exported)["consume orders"].status.description == "not acknowledged"


async def test_a_context_that_the_caller_gave_is_carried_as_it_is(exported, url):
    async with polybus.connect(f"polybus://{url}") as bus:
        heard: list[Message] = []

        @bus.serve("echo")
        def echo(message: Message) -> bytes:
            heard.append(message)
            return b""

        await bus.call("echo", headers={"traceparent": GIVEN, "tracestate": "a=1"})
    assert dict(heard[0].headers) == {"traceparent": GIVEN, "tracestate": "a=1"}
    served = spans(exported)["serve echo"]
    assert served.parent is not None
    assert f"{served.parent.span_id:016x}" == GIVEN.split("-")[2]


async def test_a_context_crosses_from_http_to_a_service(url):
    heard: list[Message] = []

    def post() -> None:
        body = b'{"name": "calc/echo", "headers": {"own": "x"}}'
        headers = {"Traceparent": GIVEN, "Content-Type": "application/json"}
        with urlopen(Request(f"http://{url}/api/v1/call", body, headers), timeout=15) as answer:
            assert answer.status == 200

    def rpc() -> None:
        asked = Request(f"http://{url}/rpc/calc/echo", headers={"Traceparent": GIVEN})
        with urlopen(asked, timeout=15) as answer:
            assert answer.status == 200

    async with polybus.connect(f"polybus://{url}") as bus:

        @bus.serve("calc/echo")
        def echo(message: Message) -> None:
            heard.append(message)

        await bus.services()
        await asyncio.to_thread(post)
        await asyncio.to_thread(rpc)
    assert dict(heard[0].headers) == {"traceparent": GIVEN, "own": "x"}
    assert dict(heard[1].headers) == {"traceparent": GIVEN}


@pytest.mark.usefixtures("provider")
async def test_a_wire_without_headers_gets_none(exported, url):
    async with polybus.connect(f"gsb://{url}") as bus:
        await bus.serve("echo", lambda body: body)
        assert await bus.call("echo", b"a") == b"a"
        await bus.push("echo", b"a")
    assert {"call echo", "serve echo", "push echo"} <= spans(exported).keys()


async def test_the_context_of_a_thread_goes_with_its_calls_and_handlers(exported, provider, url):
    def program() -> None:
        with polybus.connect_sync(f"polybus://{url}") as bus:

            @bus.serve("echo")
            def echo(body: bytes) -> bytes:
                trace.get_current_span().add_event("handled")
                return body

            with provider.get_tracer("program").start_as_current_span("work"):
                bus.call("echo", b"a")

    await asyncio.to_thread(program)
    found = spans(exported)
    assert is_child(found["call echo"], found["work"])
    assert [event.name for event in found["serve echo"].events] == ["handled"]


def test_without_a_provider_the_link_is_the_wires_own():
    link = GsbLink(GsbClient("tcp://127.0.0.1:1"))
    assert traced(link) is link


@pytest.mark.usefixtures("provider")
def test_with_a_provider_the_link_is_wrapped():
    link = GsbLink(GsbClient("tcp://127.0.0.1:1"))
    assert isinstance(traced(link), TracedLink)


def test_a_program_that_does_not_trace_does_not_load_it():
    code = (
        "import sys, polybus\nbus = polybus.connect()\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=15).returncode == 0


async def test_headers_are_nobodys_until_somebody_traces(url):
    async with polybus.connect(f"polybus://{url}") as bus:
        heard: list[Message] = []

        @bus.serve("echo")
        def echo(message: Message) -> None:
            heard.append(message)

        await bus.call("echo")
    assert dict(heard[0].headers) == {}
