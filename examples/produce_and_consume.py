"""A durable topic with a group that shares the work: `python examples/produce_and_consume.py [URL]`."""

from __future__ import annotations

import asyncio
import sys

import polybus


async def work(url: str | None, member: str, done: asyncio.Queue[int]) -> None:
    """One member of the group; going on to the next record acknowledges the one before."""
    async with polybus.connect(url) as bus, bus.consume("jobs", "workers", window=1) as records:
        async for record in records:
            print(member, "does", record.payload.decode())
            done.put_nowait(record.offset)


async def main(url: str | None = None) -> None:
    done: asyncio.Queue[int] = asyncio.Queue()
    async with polybus.connect(url) as bus:
        first = await bus.produce_many("jobs", [f"job {n}" for n in range(6)], create=True)
        print("stored from offset", first)
        members = [asyncio.create_task(work(url, f"member {n}", done)) for n in (1, 2)]
        for _ in range(6):
            await done.get()
        for member in members:
            member.cancel()
        await asyncio.gather(*members, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
