"""A market for computing time on the Golem Service Bus: tells prices, rents machines, and calls the other systems."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from examples.demo.habits import Habit
from examples.demo.stage import Stage
from polybus.protocols.gsb.client import GsbClient
from polybus.protocols.gsb.local import Request

NAMES = ("market",)
random = Random("market")


async def serve(request: Request) -> bytes:
    """A Golem service answers every address below its own."""
    if request.address.endswith("/rent"):
        return random.randbytes(random.choice((500, 4_000, 30_000)))  # what was computed
    return b"%d" % random.randint(10, 99)


@asynccontextmanager
async def program(stage: Stage) -> AsyncIterator[list[Habit]]:
    async with GsbClient(f"tcp://{stage.address}") as client:
        await client.bind("/market", serve)
        yield [
            Habit("GSB calls T2", 8, lambda n: client.call("/plant/temperature", b"hall 1")),
            Habit("GSB calls Zbus RPC", 5, lambda n: client.call("/stock/count", b'["bolt"]')),
            Habit("GSB calls RMB", 4, lambda n: client.call("/wallet/balance", b"market")),
            Habit("GSB calls the SDK", 3, lambda n: client.call("/shop/order", b'"bolt"')),
            Habit(
                "GSB broadcasts", 6, lambda n: client.broadcast("/market/offer", b"offer %d" % n)
            ),
        ]
