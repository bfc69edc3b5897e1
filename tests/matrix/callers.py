"""A caller on each system, through our own client of it.

The invariant: `call` returns how a call ended in the caller's own words, and never raises for what the service did.
"""

from __future__ import annotations

import asyncio
import http.client
from dataclasses import dataclass
from typing import Any, Final, Self

import msgspec
from websockets.asyncio.client import connect as connect_websocket

import polybus
from polybus.errors import (
    CallTimeout,
    LimitExceeded,
    NoSuchService,
    PolybusError,
    Refused,
    ServiceFailed,
)
from polybus.protocols.gsb.client import GsbClient
from polybus.protocols.rmb.client import MessageBusClient
from polybus.protocols.t2.client import Connector
from polybus.protocols.zbus.bridge import error_text, to_bytes, to_json
from polybus.protocols.zbus.client import MqClient
from polybus.protocols.zbus.wire import MessageReader, encode_request, new_id
from tests.matrix.stage import HERE, THERE, Stage

PATIENCE: Final = 15.0  # seconds after which a call that did not end is a failure of the test
SHORT: Final = 0.5  # a deadline where the caller may name one
EXP: Final = 15  # whole seconds; a test that wants them over moves the nodes' clock


@dataclass(frozen=True)
class Ended:
    """How a call ended: the caller's own word for it, and the reply or the text."""

    word: str
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


class Caller:
    """One caller; `async with` it."""

    name = ""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    async def start(self) -> None:
        """Connect, where the wire has a connection."""

    async def stop(self) -> None:
        """Disconnect."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def call(self, base: str, method: str, payload: bytes, hasty: bool = False) -> Ended:
        """Call `base/method`; `hasty` with a short deadline where the wire lets the caller name one."""
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._call(base, method, payload, hasty)
        except PolybusError as exc:
            return Ended(self._word(exc), exc.text.encode())

    async def _call(self, base: str, method: str, payload: bytes, hasty: bool) -> Ended:
        raise NotImplementedError

    def _word(self, error: PolybusError) -> str:
        raise error


class GsbCaller(Caller):
    name = "GSB"

    async def start(self) -> None:
        self._client = GsbClient(self.stage.address)
        await self._client.open()

    async def stop(self) -> None:
        await self._client.close()

    async def _call(self, base: str, method: str, payload: bytes, hasty: bool) -> Ended:
        return Ended("OK", await self._client.call(f"/{base}/{method}", payload))

    def _word(self, error: PolybusError) -> str:
        if isinstance(error, ServiceFailed):
            return "500"
        if isinstance(error, NoSuchService | Refused):
            return "400"
        raise error


class T2Caller(Caller):
    name = "T2"

    async def start(self) -> None:
        self._client = await Connector.tcp(self.stage.address).connect()

    async def stop(self) -> None:
        await self._client.close()

    async def _call(self, base: str, method: str, payload: bytes, hasty: bool) -> Ended:
        return Ended("Ok", await self._client.request_bytes(f"{base}/{method}", payload))

    def _word(self, error: PolybusError) -> str:
        if isinstance(error, NoSuchService):
            return "ServiceNotFound"
        if isinstance(
            error, CallTimeout | ServiceFailed
        ):  # one word on the wire, with or without a text
            return "Timeout"
        raise error


def zbus_request(method: str, payload: bytes) -> bytes:
    params = [to_json(payload)]
    return msgspec.json.encode({"method": method, "module": "", "params": params})


def zbus_ended(status: int, body: bytes) -> Ended:
    if status != 200:
        return Ended(str(status), body)
    answer: dict[str, Any] = msgspec.json.decode(body)
    if answer.get("error") is not None:
        return Ended("error", error_text(answer["error"]).encode())
    return Ended("result", to_bytes(answer["result"]))


class ZbusCaller(Caller):
    name = "Zbus TCP"

    async def start(self) -> None:
        self._client = await MqClient.connect(self.stage.address)

    async def stop(self) -> None:
        await self._client.close()

    async def _call(self, base: str, method: str, payload: bytes, hasty: bool) -> Ended:
        headers = {"cmd": "produce", "topic": base, "ack": "0"}
        body = zbus_request(method, payload)
        answer = await self._client.connection.invoke(headers, body, PATIENCE)
        return zbus_ended(answer.status, answer.body)


class UrlCaller(Caller):
    name = "/rpc URL"

    async def _call(self, base: str, method: str, payload: bytes, hasty: bool) -> Ended:
        text = to_json(payload)
        return await asyncio.to_thread(self._get, f"/rpc/{base}/{method}/{text}")

    def _get(self, path: str) -> Ended:
        connection = http.client.HTTPConnection("127.0.0.1", self.stage.port, timeout=PATIENCE)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return zbus_ended(answer.status, answer.read())
        finally:
            connection.close()


class WebSocketCaller(Caller):
    name = "Zbus WebSocket"

    async def start(self) -> None:
        url = f"ws://{self.stage.address}/"
        self._socket = await connect_websocket(url, max_size=None, proxy=None)

    async def stop(self) -> None:
        await self._socket.close()

    async def _call(self, base: str, method: str, payload: bytes, hasty: bool) -> Ended:
        headers = {"cmd": "produce", "topic": base, "ack": "0", "id": new_id()}
        await self._socket.send(encode_request(headers, zbus_request(method, payload)))
        came = await self._socket.recv()
        (answer,) = MessageReader().feed(came if isinstance(came, bytes) else came.encode())
        assert answer.id == headers["id"]
        return zbus_ended(answer.status, answer.body)


class RmbCaller(Caller):
    name = "RMB own twin"
    twin = HERE

    async def start(self) -> None:
        self._client = MessageBusClient(self.stage.redis_port(self.twin))

    async def stop(self) -> None:
        self._client.close()

    async def _call(self, base: str, method: str, payload: bytes, hasty: bool) -> Ended:
        message = self._client.prepare(f"{base}.{method}", HERE, EXP)
        await self._client.send(message, payload)
        (answer,) = await self._client.read(message)
        return Ended("err", answer.err.encode()) if answer.err else Ended("dat", answer.payload)


class OtherTwinCaller(RmbCaller):
    name = "RMB other twin"
    twin = THERE


class SdkCaller(Caller):
    name = "SDK"

    async def start(self) -> None:
        self._bus = await polybus.connect(f"polybus://{self.stage.address}")

    async def stop(self) -> None:
        await self._bus.close()

    async def _call(self, base: str, method: str, payload: bytes, hasty: bool) -> Ended:
        timeout = SHORT if hasty else PATIENCE
        return Ended("reply", await self._bus.call(f"{base}/{method}", payload, timeout=timeout))

    def _word(self, error: PolybusError) -> str:
        for kind in (NoSuchService, ServiceFailed, CallTimeout, LimitExceeded):
            if isinstance(error, kind):
                return kind.__name__
        raise error


CALLERS: Final = (
    GsbCaller,
    T2Caller,
    ZbusCaller,
    UrlCaller,
    WebSocketCaller,
    RmbCaller,
    OtherTwinCaller,
    SdkCaller,
)
