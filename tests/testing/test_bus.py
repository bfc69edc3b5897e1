"""The bus that users test with."""

from __future__ import annotations

import socket

import pytest

from polybus.client.sync import SyncBus
from polybus.core.endpoint import Identity
from polybus.errors import NameTaken, NotAuthorized
from polybus.testing import TestBus

pytest_plugins = ["polybus.testing.fixtures"]


async def test_a_service_is_called_and_a_topic_kept(bus: TestBus):
    @bus.serve("calc/add")
    def add(numbers: list[int]) -> int:
        return sum(numbers)

    assert await bus.call("calc/add", [1, 2], type=int) == 3
    assert await bus.produce("t", b"x", create=True) == 0
    assert [record.payload for record in await bus.fetch("t")] == [b"x"]


async def test_a_second_client_reaches_the_same_node(bus: TestBus):
    async with bus.another() as other:
        await bus.serve("a", lambda: b"x")
        assert await other.call("a") == b"x"
        with pytest.raises(NameTaken):
            await other.serve("a", lambda: None)


async def test_two_test_buses_do_not_meet():
    async with TestBus() as one, TestBus() as two:
        await one.serve("a", lambda: b"one")
        await two.serve("a", lambda: b"two")
        assert await one.call("a") == b"one"


async def test_no_socket_is_opened(monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    async with TestBus() as bus:
        await bus.serve("a", lambda: b"x")
        assert await bus.call("a") == b"x"


async def test_its_folder_goes_with_it_also_when_it_is_drained():
    bus = TestBus()
    async with bus:
        folder = bus.node.config.data
        assert folder is not None
        await bus.produce("t", b"x", create=True)
        await bus.drain()
        assert not folder.exists()
    with pytest.raises(AssertionError, match="not open"):
        _ = bus.node


async def test_a_policy_can_be_tried_out():
    class ReadOnly:
        epoch = 0

        def may(self, identity: Identity, verb: str, name: str) -> bool:
            return verb != "publish"

    async with TestBus(policy=ReadOnly()) as bus:
        with pytest.raises(NotAuthorized) as caught:
            await bus.publish("a")
        assert (caught.value.verb, caught.value.identity) == ("publish", "local")


def test_the_sync_bus_works_without_an_event_loop(sync_bus: SyncBus):
    @sync_bus.serve("outer")
    def outer(body: int) -> int:
        return sync_bus.call("inner", body, type=int) + 1

    @sync_bus.serve("inner")
    def inner(body: int) -> int:
        return body * 2

    assert sync_bus.call("outer", 5, type=int) == 11
    assert sync_bus.connected
    assert "SyncBus" in repr(sync_bus)


def test_a_sync_handler_given_before_opening_is_registered():
    bus = SyncBus(TestBus())

    @bus.serve("early")
    def early() -> str:
        return "bird"

    with bus:
        assert bus.call("early", type=str) == "bird"
        bus.drain()
    bus.close()
