"""A twin's commands with answers that come later: `python examples/rmb_twin.py [PORT TWIN]`.

PORT is that of the twin's Redis server, TWIN its number.
"""

from __future__ import annotations

import asyncio
import sys

from polybus.protocols.rmb.client import Context, connect, server


def deploy(context: Context) -> None:
    """Answers after it has returned, as work that takes a while does."""
    asyncio.get_running_loop().call_later(0.1, context.reply, {"deployed": context.payload})


def refuse(context: Context) -> None:
    context.error("this twin is not for sale")


async def main(port: int = 6379, twin: int = 1) -> None:
    commands = server({"twinserver.deploy": deploy, "twinserver.sell": refuse}, port)
    serving = asyncio.create_task(commands.serve())
    bus = connect(port)
    for cmd in ("twinserver.deploy", "twinserver.sell"):
        bus.prepare(cmd, [twin], 60, 2)
        await bus.send("a small machine")
        for answer in await bus.read():
            print(cmd, answer.err or answer.dat)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    bus.close()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
