"""A service on each system, through our own client of it: `echo` gives back, `fail` fails, `hold` never answers.

`swell` answers with more than a narrow frame holds, `plus` and `boom` are what the Java program calls. The
invariant: all five do the same under the shared names `BASE/echo` and so on, and `held` is set when a call to `hold`
has reached them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Self

import msgspec

import polybus
from polybus.errors import PolybusError, ServiceFailed
from polybus.protocols.gsb.client import GsbClient
from polybus.protocols.gsb.local import Request
from polybus.protocols.rmb.client import MessageBusServer
from polybus.protocols.zbus.client import MqClient
from polybus.protocols.zbus.rpc_client import RpcProcessor
from polybus.protocols.zbus.wire import Message
from tests.matrix.stage import HERE, NARROW, Stage
from tests.protocols.rmb.twins import until

METHODS: Final = ("echo", "fail", "hold", "swell", "plus", "boom")
FAILURE: Final = "the till is empty"


class Service:
    """One service; `async with` it, or end it in mid-call with `vanish`."""

    name = ""

    def __init__(self, stage: Stage, base: str) -> None:
        self.stage = stage
        self.base = base
        self.held = asyncio.Event()
        self.seen: list[int] = []
        """The sizes of the payloads that came."""

    async def start(self) -> None:
        raise NotImplementedError

    async def vanish(self) -> None:
        """Go without a word."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.vanish()

    async def answer(self, method: str, payload: bytes) -> bytes:
        self.seen.append(len(payload))
        if method == "fail":
            raise ServiceFailed(FAILURE)
        if method == "hold":
            self.held.set()
            await asyncio.Event().wait()
        if method == "swell":
            return b'"' + b"x" * (2 * NARROW) + b'"'
        if method == "plus":
            return msgspec.json.encode(sum(msgspec.json.decode(payload)))
        if method == "boom":
            raise ServiceFailed(f"boom-{msgspec.json.decode(payload)}")
        return payload

    def answers(self, shared: str) -> bool:
        """Whether the node knows that somebody answers a name."""
        services = self.stage.nodes[HERE].router.services
        return services.find("", shared, shared) is not None


class GsbService(Service):
    name = "GSB"

    async def start(self) -> None:
        self._client = GsbClient(self.stage.address)
        await self._client.open()
        await self._client.bind(f"/{self.base}", self._serve)

    async def _serve(self, request: Request) -> bytes:
        return await self.answer(request.address.rpartition("/")[2], request.data)

    async def vanish(self) -> None:
        await self._client.close()


class ZbusService(Service):
    name = "Zbus RPC"

    async def start(self) -> None:
        self._client = await MqClient.connect(self.stage.address)
        await self._client.declare(self.base, mask=2)
        self._processor = RpcProcessor()
        for method in METHODS:
            self._processor._methods["", method] = self._method(method)
        self._task = asyncio.create_task(self._serve())
        await until(lambda: self.answers(self.base))

    def _method(self, method: str) -> Callable[..., Any]:
        async def called(*params: Any) -> Any:
            asked = params[0] if len(params) == 1 else params
            return msgspec.json.decode(await self.answer(method, msgspec.json.encode(asked)))

        return called

    async def _serve(self) -> None:
        handling: set[asyncio.Task[None]] = set()
        try:
            while True:
                message: Message = await self._client.consume(self.base)
                handling.add(asyncio.create_task(self._processor.handle(message, self._client)))
        finally:
            for task in handling:
                task.cancel()
            await asyncio.gather(*handling, return_exceptions=True)

    async def vanish(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._client.close()


class RmbService(Service):
    name = "RMB"

    async def start(self) -> None:
        self._server = MessageBusServer(self.stage.redis_port(HERE))
        for method in METHODS:
            self._server.with_handler(f"{self.base}.{method}", self._handler(method))
        self._task = asyncio.create_task(self._server.run())
        await until(lambda: self.answers(f"{self.base}/echo"))

    def _handler(self, method: str) -> Callable[..., Any]:
        async def handle(message: object, payload: str | bytes) -> bytes:
            data = payload.encode() if isinstance(payload, str) else payload
            try:
                return await self.answer(method, data)
            except PolybusError as exc:
                raise RuntimeError(exc.text) from exc

        return handle

    async def vanish(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._server.close()


class SdkService(Service):
    name = "SDK"
    scheme = "polybus"

    async def start(self) -> None:
        self._bus = await polybus.connect(f"{self.scheme}://{self.stage.address}")
        for method in METHODS:
            await self._bus.serve(f"{self.base}/{method}", self._handler(method))

    def _handler(self, method: str) -> Callable[..., Any]:
        async def handle(payload: bytes) -> bytes:
            return await self.answer(method, payload)

        return handle

    async def vanish(self) -> None:
        await self._bus.close()


class T2Service(SdkService):
    """Through the SDK's link for that wire: its own API has no verb for a service that fails."""

    name = "T2"
    scheme = "t2"


SERVICES: Final = (GsbService, T2Service, ZbusService, RmbService, SdkService)
