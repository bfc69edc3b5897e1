"""A shop on the SDK: an order reserves, pays and is stored, on three systems; it watches what the others publish."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import polybus
from examples.demo.habits import Habit, beside
from examples.demo.stage import TOKENS, Stage
from polybus.client import Bus

NAMES = ("shop/order", "shop/status")


async def serve(bus: Bus) -> None:
    @bus.serve("shop/order")
    async def order(item: bytes) -> bytes:
        await bus.call("stock/reserve", item)
        await bus.call("wallet/pay", b"12.50")
        return b"order %d" % await bus.produce("sales", item)

    @bus.serve("shop/status")
    async def status(number: bytes) -> bytes:
        return b"sent"


async def watch(bus: Bus, pattern: str) -> None:
    async with bus.subscribe(pattern) as publications:
        async for _ in publications:
            pass


async def receive(bus: Bus) -> None:
    """Going on to the next record acknowledges the one before."""
    async with bus.consume("parcels", "shop", create=True) as parcels:
        async for _ in parcels:
            pass


@asynccontextmanager
async def program(stage: Stage) -> AsyncIterator[list[Habit]]:
    async with polybus.connect(f"polybus://{stage.address}", token=TOKENS["shop"]) as bus:
        await bus.declare_topic("sales")
        await serve(bus)
        async with beside(watch(bus, "plant/**"), watch(bus, "market/*"), receive(bus)):
            yield [
                Habit("the SDK calls GSB", 7, lambda n: bus.call("market/price", b"an hour")),
                Habit("the SDK calls T2", 6, lambda n: bus.call("plant/temperature", b"hall 4")),
                Habit("the SDK calls Zbus RPC", 4, lambda n: bus.call("stock/count", ["bolt"])),
                Habit("the SDK calls RMB", 4, lambda n: bus.call("wallet/balance", b"shop")),
                Habit(
                    "the SDK calls a twin", 2, lambda n: bus.call("depot.send", b"a box", twin=2)
                ),
                Habit(
                    "the SDK publishes", 10, lambda n: bus.publish("shop/price/bolt", {"eur": n})
                ),
                Habit(
                    "the SDK produces", 4, lambda n: bus.produce("sales", {"item": "nut", "n": n})
                ),
            ]
