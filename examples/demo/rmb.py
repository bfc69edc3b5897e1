"""A wallet on the Reliable Message Bus of twin 1, a depot on that of twin 2; both call the other systems."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from examples.demo.habits import Habit, beside
from examples.demo.stage import Stage
from polybus.errors import ServiceFailed
from polybus.protocols.rmb.client import MessageBusClient, MessageBusServer
from polybus.protocols.rmb.message import Message

NAMES = ("wallet/balance", "wallet/pay")
EXPIRES_S = 10
random = Random("wallet")


def balance(message: Message, owner: str) -> dict[str, object]:
    return {"owner": owner, "balance": round(random.uniform(5, 500), 2)}


async def pay(message: Message, amount: str) -> str:
    """The bank behind it is slow at times."""
    await asyncio.sleep(random.uniform(0.1, 0.4) if random.random() < 0.05 else 0.002)
    return "paid"


def send(message: Message, parcel: str) -> str:
    return f"{parcel} is on its way"


async def ask(port: int, command: str, twin: int, payload: object) -> str:
    """Through the Redis of the own twin, whichever twin is asked."""
    with MessageBusClient(port) as client:
        message = client.prepare(command, twin, EXPIRES_S)
        await client.send(message, payload)
        (answer,) = await client.read(message)
    if answer.err:
        raise ServiceFailed(answer.err)
    return str(answer.dat)


@asynccontextmanager
async def program(stage: Stage) -> AsyncIterator[list[Habit]]:
    here, there = stage.twins[1].redis_port, stage.twins[2].redis_port
    wallet = MessageBusServer(here)
    wallet.with_handler("wallet.balance", balance).with_handler("wallet.pay", pay)
    depot = MessageBusServer(there).with_handler("depot.send", send)
    async with beside(wallet.run(), depot.run()):
        yield [
            Habit("RMB calls GSB", 4, lambda n: ask(here, "market.rent", 1, "an hour")),
            Habit("RMB calls T2", 3, lambda n: ask(here, "plant.temperature", 1, "hall 3")),
            Habit("RMB calls Zbus RPC", 4, lambda n: ask(here, "stock.reserve", 1, "washer")),
            Habit("RMB calls the SDK", 3, lambda n: ask(here, "shop.status", 1, str(n))),
            Habit("RMB calls another twin", 2, lambda n: ask(here, "depot.send", 2, f"parcel {n}")),
            Habit("another twin calls the SDK", 3, lambda n: ask(there, "shop.status", 1, str(n))),
        ]
    wallet.close()
    depot.close()
