"""A service and its caller: `python examples/serve_and_call.py [URL]`."""

from __future__ import annotations

import asyncio
import sys

import msgspec

import polybus


class Pair(msgspec.Struct):
    left: int
    right: int


async def main(url: str | None = None) -> None:
    async with polybus.connect(url) as bus:

        @bus.serve("calc/add")
        def add(pair: Pair) -> int:
            return pair.left + pair.right

        @bus.serve("calc/count")
        async def count(most: int):
            for number in range(most):
                yield number

        print("1 + 2 =", await bus.call("calc/add", Pair(1, 2), type=int))
        async for number in bus.call_streaming("calc/count", 3, type=int):
            print("counted", number)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
