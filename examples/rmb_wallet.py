"""A wallet asked by another twin: `python examples/rmb_wallet.py [CALLER_PORT WALLET_PORT TWIN]`.

The ports are those of the two twins' Redis servers, TWIN is the wallet's number.
"""

from __future__ import annotations

import asyncio
import sys

from polybus.protocols.rmb.client import MessageBusClient, MessageBusServer
from polybus.protocols.rmb.message import Message

BALANCES = {"GA7OPN4A3JNHLPHPEWM4PJDOYYDYNZOM7ES6YL3O7NC3PRY3V3UX6ANM": 105.25}


def balance(message: Message, address: str) -> dict[str, object]:
    """What is returned is the reply; what is raised is its error."""
    if address not in BALANCES:
        raise LookupError(f"there is no account {address}")
    return {"asset": "TFT", "balance": BALANCES[address]}


async def main(caller_port: int = 6379, wallet_port: int = 6379, twin: int = 1) -> None:
    wallet = MessageBusServer(wallet_port).with_handler("wallet.stellar.balance.tft", balance)
    serving = asyncio.create_task(wallet.run())
    client = MessageBusClient(caller_port)
    for address in (*BALANCES, "GNOBODY"):
        message = client.prepare("wallet.stellar.balance.tft", [twin], 60, 2)
        await client.send(message, address)
        for answer in await client.read(message):
            print(f"twin {answer.src}: {answer.err or answer.dat}")
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    client.close()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
