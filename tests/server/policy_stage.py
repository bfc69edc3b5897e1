"""What a client of each wire does for each verb, the stage it does it on, and how a refusal looks there."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

import polybus
from polybus.client.bus import Bus
from polybus.core.engine import TopicOptions
from polybus.errors import InvalidName, NoSuchService, NotAuthorized, PolybusError, Refused
from polybus.protocols.gsb.client import GsbClient
from polybus.protocols.t2.client import Client as T2Client
from polybus.protocols.t2.client import Connector
from polybus.protocols.zbus.client import MqClient
from polybus.protocols.zbus.connection import MqError
from polybus.protocols.zbus.info import MASK
from polybus.server import Node
from tests.server.doors import CLIENT_FILES, Door, Kind, guarded, http

Action = Callable[[Any], Awaitable[object]]

# Which identities a wire's own client can have; GSB and T2 have no tokens, the stock GSB client shows no
# certificate, and the Zbus client has no Unix sockets.
IDENTITIES: Final[dict[str, tuple[Kind, ...]]] = {
    "gsb": ("loopback", "stranger", "uid"),
    "t2": ("loopback", "stranger", "uid", "certificate"),
    "zbus": ("loopback", "stranger", "certificate", "token"),
    "native": ("loopback", "stranger", "uid", "certificate", "token"),
    "http": ("loopback", "stranger", "uid", "certificate", "token"),
}


_numbers = itertools.count()


def fresh() -> str:
    """A name that nobody has."""
    return f"mine{next(_numbers)}"


def ignore(*_: object) -> None:
    pass


async def echo(request: Any) -> bytes:
    return b"echo"


# -- what each client does for a verb ----------------------------------------------------------------

GSB: Final[dict[str, Callable[[GsbClient], Awaitable[object]]]] = {
    "register": lambda client: client.bind(f"/{fresh()}", echo),
    "call": lambda client: client.call("/serv/add", b"", timeout=5),
    "publish": lambda client: client.broadcast("/news", b""),
    "subscribe": lambda client: client.subscribe("/news", ignore),
}

T2: Final[dict[str, Callable[[T2Client], Awaitable[object]]]] = {
    "register": lambda client: client.serve_bytes(fresh()),
    "call": lambda client: client.request_bytes("serv/add", b""),
    "publish": lambda client: client.publish_bytes("news/*", b""),
    "subscribe": lambda client: client.subscribe_bytes("news/**"),
}


async def call_rpc(client: MqClient) -> None:
    """As an RpcInvoker does, without a Broker."""
    headers = {"cmd": "produce", "topic": "serv", "ack": "0", "token": client.token}
    body = msgspec.json.encode({"method": "add", "module": "", "params": []})
    answer = await client.connection.invoke(headers, body, 5)
    if answer.status != 200:
        raise MqError(answer)


async def serve_rpc(client: MqClient) -> None:
    """Waiting for a call is what a service does; nobody calls."""
    with pytest.raises(polybus.errors.CallTimeout):
        await client.consume("calc", timeout=0.2)


async def trace(client: MqClient) -> None:
    answer = await client.connection.invoke({"cmd": "trace", "token": client.token}, b"", 5)
    if answer.status != 200:
        raise MqError(answer)


ZBUS: Final[dict[str, Callable[[MqClient], Awaitable[object]]]] = {
    "register": serve_rpc,
    "call": call_rpc,
    "produce": lambda client: client.produce("kept", b"x"),
    "consume": lambda client: client.consume("kept", timeout=5),
    "declare": lambda client: client.declare(fresh()),
    "admin": trace,
}


async def consume_one(bus: Bus) -> None:
    async for _record in bus.consume("kept", "kept"):
        return


async def subscribe_native(bus: Bus) -> None:
    async with bus.subscribe("news/**"):
        pass


NATIVE: Final[dict[str, Callable[[Bus], Awaitable[object]]]] = {
    "register": lambda bus: bus.serve(fresh(), echo),
    "call": lambda bus: bus.call("serv/add", b""),
    "publish": lambda bus: bus.publish("news/a", b""),
    "subscribe": subscribe_native,
    "produce": lambda bus: bus.produce("kept", b"x"),
    "consume": consume_one,
    "declare": lambda bus: bus.declare_topic(fresh()),
    "admin": lambda bus: bus.services(),
}


class Denied(Exception):
    """A status that refuses."""

    def __init__(self, status: int) -> None:
        super().__init__(str(status))
        self.status = status


async def look(door: Door, path: str) -> None:
    status = await http(door, path)
    if status != 200:
        raise Denied(status)


async def add_topic(door: Door) -> None:
    body = msgspec.json.encode({"name": fresh()})
    status = await http(door, "/api/v1/topics", method="POST", body=body)
    if status != 201:
        raise Denied(status)


async def look_at_all(door: Door) -> None:
    for path in ("/api/v1/overview", "/metrics", "/nodes"):
        await look(door, path)


HTTP: Final[dict[str, Callable[[Door], Awaitable[object]]]] = {
    "subscribe": look_at_all,
    "consume": lambda door: look(door, "/api/v1/topics/kept/records"),
    "admin": add_topic,
}

ACTIONS: Final[dict[str, dict[str, Callable[[Any], Awaitable[object]]]]] = {
    "gsb": GSB,
    "t2": T2,
    "zbus": ZBUS,
    "native": NATIVE,
    "http": HTTP,
}
# Whoever reads a topic through the page has to be let onto the page as well.
NEEDED: Final = {("http", "consume"): "subscribe"}


# -- clients -----------------------------------------------------------------------------------------


@asynccontextmanager
async def client_of(wire: str, door: Door) -> AsyncIterator[Any]:
    """The room's own client at that door."""
    unix = door.address.scheme == "unix"
    match wire:
        case "gsb":
            async with GsbClient(
                f"unix:{door.address.path}" if unix else f"tcp://{door.place}"
            ) as gsb:
                yield gsb
        case "t2":
            connector = Connector.unix(door.address.path) if unix else Connector.tcp(door.place)
            if door.secure:
                ca, cert, key = (str(door.folder / file) for file in CLIENT_FILES.values())
                connector = Connector.tls(door.place, ca=ca, cert=cert, key=key)
            async with await connector.connect() as t2:
                yield t2
        case "zbus":
            async with await MqClient.connect(door.place, token=door.token, tls=door.tls()) as mq:
                yield mq
        case "native":
            async with polybus.connect(door.url("polybus"), token=door.token) as bus:
                yield bus
        case _:
            yield door


def is_refusal(wire: str, verb: str, kind: Kind, error: Exception) -> bool:
    """Whether an error is what the wire says when the policy refuses."""
    match wire, error:
        case "gsb", Refused():
            return "may not" in error.text
        case "t2", NoSuchService():
            return verb == "call"
        case "t2", InvalidName():
            return verb != "call" and "may not" in error.text
        case "zbus", MqError():
            return error.status == 403
        case "native", NotAuthorized():
            return True
        case "http", Denied():
            # Nobody in particular could come back with a token.
            return error.status == (401 if kind in ("loopback", "stranger") else 403)
    return False


@asynccontextmanager
async def stage(
    folder: Path, kind: Kind, *rules: str, **sections: Any
) -> AsyncIterator[tuple[Node, Door]]:
    """A node with something to call, to consume and to serve, all put there by the program itself."""
    async with guarded(folder, kind, *rules, **sections) as (node, door):
        assert node.topics is not None
        async with polybus.connect(f"memory:{folder.name}") as owner:
            await owner.serve("serv/add", echo)
            await owner.declare_topic("kept")
            await owner.declare_group("kept", "kept")
            await owner.produce("kept", b"one")
            await node.topics.declare("calc", TopicOptions(extra={MASK: "2"}))
            await owner.declare_group("calc", "calc")
            yield node, door


async def refused(wire: str, verb: str, kind: Kind, action: Awaitable[object]) -> None:
    """The action ends, with the wire's own words for a refusal."""
    with pytest.raises((PolybusError, Denied)) as found:
        await action
    assert is_refusal(wire, verb, kind, found.value), (wire, verb, kind, found.value)
