"""A factory hall on the T2 Bus: tells how warm it is, publishes what its sensors read, and calls the other systems."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from examples.demo.habits import Habit, beside
from examples.demo.stage import Stage
from polybus.protocols.t2.client import Client, Connector

NAMES = ("plant/temperature",)
SENSORS = ("oven", "press", "belt")
random = Random("plant")


async def serve(client: Client) -> None:
    async for _topic, request, _payload in await client.serve_bytes("plant/temperature"):
        await client.respond_bytes(request, b"%.1f" % random.gauss(21, 2))


@asynccontextmanager
async def program(stage: Stage) -> AsyncIterator[list[Habit]]:
    async with await Connector.unix(stage.socket).connect() as client:

        async def read_a_sensor(number: int) -> None:
            sensor = SENSORS[number % len(SENSORS)]
            await client.publish_bytes(f"plant/reading/{sensor}", b"%.2f" % random.gauss(200, 9))

        async with beside(serve(client)):
            yield [
                Habit(
                    "T2 calls GSB", 9, lambda n: client.request_bytes("market/price", b"an hour")
                ),
                Habit(
                    "T2 calls Zbus RPC", 4, lambda n: client.request_bytes("stock/count", b"nut")
                ),
                Habit(
                    "T2 calls RMB", 3, lambda n: client.request_bytes("wallet/balance", b"plant")
                ),
                Habit("T2 calls the SDK", 5, lambda n: client.request_bytes("shop/status", b"7")),
                Habit("T2 publishes", 15, read_a_sensor),
            ]
