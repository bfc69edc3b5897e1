"""W3C trace context crosses between Zbus and the other wires as it is."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from polybus.model.message import Call, Reply
from polybus.model.trace import trace_headers
from tests.protocols.zbus.bus import Bus, settle
from tests.protocols.zbus.test_room import Foreign, answer, service

TRACE = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": "vendor=1",
}


@pytest.fixture
async def bus() -> AsyncIterator[Bus]:
    async with Bus() as running:
        yield running


async def test_a_trace_goes_from_a_zbus_caller_to_a_service_of_another_wire(bus):
    other = Foreign(bus)
    bus.router.register(other, "calc/add", "calc/add")
    client = bus.client()
    head = "".join(f"{name}: {value}\r\n" for name, value in TRACE.items())
    await client.send(f"GET /rpc/calc/add/1/2 HTTP/1.1\r\n{head}cookie: own\r\n\r\n".encode())
    await client.send(b"GET /rpc/calc/add/1/2 HTTP/1.1\r\n\r\n")
    first, second = other.calls
    assert (dict(first.headers), dict(second.headers)) == (TRACE, {})
    for call in other.calls:
        bus.router.reply(Reply(call, b"3"))


async def test_a_trace_goes_from_a_caller_of_another_wire_to_a_zbus_service(bus):
    other, serving = Foreign(bus), bus.client()
    await service(serving)
    bus.router.call(Call(other, "R/Mod/plus", b"[1,2]", headers={**TRACE, "Own": "x"}))
    await settle()
    (call,) = serving.received()
    assert {name: call.get(name) for name in TRACE} == TRACE
    assert (call.get("x-own"), call.get("x-traceparent")) == ("x", "")
    await answer(serving, call)


async def test_a_trace_is_kept_with_a_record(bus):
    client = bus.client()
    await client.one("declare", topic="T")
    assert (await client.one("produce", b"tea", topic="T", **TRACE)).status == 200
    consumed = await client.one("consume", topic="T")
    assert {name: consumed.get(name) for name in TRACE} == TRACE


def test_a_state_without_a_parent_is_no_trace():
    assert trace_headers({"tracestate": "vendor=1"}) == {}
    assert trace_headers({"traceparent": "x", "host": "y"}) == {"traceparent": "x"}
