"""An RPC service, the methods of an object: `python examples/zbus_rpc_service.py [TRACKERS] [TOPIC]`."""

from __future__ import annotations

import asyncio
import sys

from polybus.protocols.zbus.broker import Broker
from polybus.protocols.zbus.producer import Consumer
from polybus.protocols.zbus.rpc_client import RpcProcessor

RPC = 2  # the bit of a topic's mask: its messages are calls and are not stored


class Calculator:
    """What is served; arguments from a URL are texts, and converted as annotated."""

    def plus(self, a: int, b: int) -> int:
        return a + b

    async def wait(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return f"waited {seconds} s"

    def divide(self, a: float, b: float) -> float:
        return a / b


async def main(trackers: str = "localhost:15555", topic: str = "MyRpc") -> None:
    processor = RpcProcessor(Calculator())
    async with (
        Broker(trackers) as broker,
        Consumer(broker, topic, processor.handle, mask=RPC, connections=4) as service,
    ):
        await service.ready()
        print(f"serving {topic}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
