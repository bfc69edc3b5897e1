"""A caller of `zbus_rpc_service.py`: `python examples/zbus_rpc_caller.py [HOST:PORT] [TOPIC]`."""

from __future__ import annotations

import asyncio
import json
import sys
from urllib.request import urlopen

from polybus.protocols.zbus.broker import Broker
from polybus.protocols.zbus.rpc_client import RpcError, RpcInvoker


def by_url(address: str, path: str) -> object:
    with urlopen(f"http://{address}{path}", timeout=10) as answer:
        return json.loads(answer.read())


async def main(address: str = "localhost:15555", topic: str = "MyRpc") -> None:
    async with Broker(address) as broker:
        calculator = RpcInvoker(broker, topic)
        print("1 + 2 =", await calculator.plus(1, 2))
        print(sum(await asyncio.gather(*(calculator.plus(n, n) for n in range(100)))))
        try:
            await calculator.divide(1, 0)
        except RpcError as exc:
            print(exc)
    url = f"/rpc/{topic}/plus/1/2?module=Calculator&&appid=me"
    print(url, await asyncio.to_thread(by_url, address, url))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
