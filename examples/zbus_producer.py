"""A producer: `python examples/zbus_producer.py [TRACKERS] [TOPIC] [COUNT]`, trackers as `host:port;host:port`."""

from __future__ import annotations

import asyncio
import sys

from polybus.protocols.zbus.broker import Broker
from polybus.protocols.zbus.producer import Producer


async def main(
    trackers: str = "localhost:15555", topic: str = "MyTopic", count: str = "10"
) -> None:
    async with Broker(trackers) as broker:
        producer = Producer(broker)
        await producer.declare(topic)
        for number in range(int(count)):
            # Returns once the message is on disk.
            await producer.publish(
                topic, f"message {number}", tag="demo.even" if number % 2 == 0 else "demo.odd"
            )
    print(f"{count} messages are safe in {topic}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
