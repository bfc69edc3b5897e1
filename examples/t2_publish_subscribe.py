"""Typed messages to all who subscribed: `python examples/t2_publish_subscribe.py`."""

from __future__ import annotations

import asyncio

from polybus.protocols.t2.server import ServerBuilder
from polybus.protocols.t2.typed import PublishProtocol

# A prefix that is unique on the bus, and the type of what is published below it.
HELLO = PublishProtocol("hello", str)


async def main() -> None:
    stopper, connector = await ServerBuilder().serve_memory().build()
    assert connector is not None
    async with stopper, await connector.connect() as alice, await connector.connect() as bob:
        async with await alice.subscribe(HELLO, "alice") as messages:
            receivers = await bob.publish(HELLO, "alice", "Hello Alice")
            topic, message = await messages.recv()
            print(f"{topic}: {message} ({receivers} receiver)")
        # Left, closed or dropped: the subscription has ended.
        print("then", await bob.publish(HELLO, "alice", "Still there?"), "receivers")


if __name__ == "__main__":
    asyncio.run(main())
