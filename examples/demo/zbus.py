"""A warehouse on Zbus: counts and reserves goods by RPC, packs what was sold, and calls the other systems."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from examples.demo.habits import SOLD_OUT, Habit
from examples.demo.stage import TOKENS, Stage
from polybus.protocols.zbus.broker import Broker
from polybus.protocols.zbus.client import MqClient
from polybus.protocols.zbus.producer import Consumer, Producer
from polybus.protocols.zbus.rpc_client import RpcInvoker, RpcProcessor
from polybus.protocols.zbus.wire import Message

NAMES = ("stock",)
RPC = 2  # the bit of a topic's mask: its messages are calls and are not stored
random = Random("stock")


class Stock:
    """What is served, method by method."""

    def count(self, item: str) -> int:
        return random.randint(0, 500)

    def reserve(self, item: str) -> str:
        if random.random() < 0.06:
            raise LookupError(f"{item} is {SOLD_OUT}")
        return f"{item} is yours"


@asynccontextmanager
async def program(stage: Stage) -> AsyncIterator[list[Habit]]:
    async with Broker(stage.address, token=TOKENS["stock"]) as broker:
        producer = Producer(broker)
        await producer.declare("parcels")

        async def pack(message: Message, client: MqClient) -> None:
            await producer.publish("parcels", b"parcel for " + message.body, tag="parcel.small")

        async with (
            Consumer(broker, "stock", RpcProcessor(Stock()).handle, mask=RPC) as service,
            Consumer(broker, "sales", pack, group="packers") as sales,
        ):
            await service.ready()
            await sales.ready()
            market, plant, wallet, shop = (
                RpcInvoker(broker, topic) for topic in ("market", "plant", "wallet", "shop")
            )
            yield [
                Habit("Zbus RPC calls GSB", 4, lambda n: market.price("an hour")),
                Habit("Zbus RPC calls T2", 4, lambda n: plant.temperature("hall 2")),
                Habit("Zbus RPC calls RMB", 3, lambda n: wallet.balance("stock")),
                Habit("Zbus RPC calls the SDK", 4, lambda n: shop.status(n)),
                Habit("Zbus produces", 3, lambda n: producer.publish("parcels", b"x" * 2_000)),
            ]
