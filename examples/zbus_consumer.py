"""A consumer: `python examples/zbus_consumer.py [TRACKERS] [TOPIC] [GROUP] [FILTER] [COUNT]`."""

from __future__ import annotations

import asyncio
import sys

from polybus.protocols.zbus.broker import Broker
from polybus.protocols.zbus.client import MqClient
from polybus.protocols.zbus.producer import Consumer
from polybus.protocols.zbus.wire import Message


async def main(
    trackers: str = "localhost:15555",
    topic: str = "MyTopic",
    group: str = "",
    filter: str = "",
    count: str = "",
) -> None:
    got = 0
    enough = asyncio.Event()

    def handle(message: Message, client: MqClient) -> None:
        # Once this returns the message is done; if it raises, the message comes again.
        nonlocal got
        got += 1
        print(message.get("tag"), message.text, flush=True)
        if str(got) == count:
            enough.set()

    async with (
        Broker(trackers) as broker,
        Consumer(broker, topic, handle, group=group, filter=filter or None),
    ):
        await enough.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
