"""Live publications with patterns: `python examples/publish_and_subscribe.py [URL]`."""

from __future__ import annotations

import asyncio
import sys

import polybus


async def main(url: str | None = None) -> None:
    async with polybus.connect(url) as bus, bus.subscribe("price/**") as prices:
        for coin, usd in (("eth", 2000), ("btc", 60000)):
            reached = await bus.publish(f"price/{coin}", {"usd": usd})
            print(f"price/{coin} reached {reached}")
        for _ in range(2):
            message = await anext(prices)
            print(message.name, message.decode(dict[str, int])["usd"])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
