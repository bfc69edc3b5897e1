"""The load: clients of one Redis and an echo handler of another, both pipelined, in one process.

    python benches/rmb/load.py CLIENT_PORT HANDLER_PORT TWIN IN_FLIGHT SECONDS

Prints one JSON object: round trips, seconds, and the latencies' percentiles. The invariant: exactly IN_FLIGHT requests
wait for answers at any time, and every answer is matched to its request; one that is an error stops the run.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

import msgspec
import uvloop

from polybus.protocols.rmb.resp import RedisConnection, RedisUrl, connect

CMD = "bench.echo"
RET = f"bench.ret.{os.getpid()}"  # answers to a run before this one must not be counted
HOST = "127.0.0.1"


async def echo(port: int) -> None:
    """Answer every request with its own payload."""
    queue = f"msgbus.{CMD}"
    pops = await connect(RedisUrl(HOST, port))
    pushes = await connect(RedisUrl(HOST, port))
    while True:
        first, rest = await pops.run(("BLPOP", queue, 1), ("LPOP", queue, 256))
        texts = ([first[1]] if first else []) + (rest or [])
        replies = []
        for text in texts:
            m = msgspec.json.decode(text)
            m["src"], m["dst"] = m["dst"][0], [m["src"]]
            replies.append(msgspec.json.encode(m))
        if replies:
            pushes.send([("LPUSH", "msgbus.system.reply", r) for r in replies], ignore)


def ignore(replies: list[Any] | None) -> None:
    assert replies is not None


class Client:
    """Keeps its requests in flight until the time is over."""

    def __init__(self, twin: int, connection: RedisConnection) -> None:
        self._twin = twin
        self._connection = connection
        self._began: dict[str, float] = {}
        self._next = 0
        self.latencies: list[float] = []

    def push(self, count: int) -> None:
        texts = []
        now = int(time.time())
        for _ in range(count):
            self._next += 1
            tag = str(self._next)
            self._began[tag] = time.perf_counter()
            texts.append(
                f'{{"ver":1,"uid":"","cmd":"{CMD}","exp":60,"try":2,"dat":"aGVsbG8gd29ybGQ=","tag":"{tag}",'
                f'"src":0,"dst":[{self._twin}],"ret":"{RET}","shm":"","now":{now},"err":""}}'
            )
        self._connection.send([("LPUSH", "msgbus.system.local", t) for t in texts], ignore)

    def take(self, texts: list[bytes]) -> None:
        now = time.perf_counter()
        for text in texts:
            m = msgspec.json.decode(text)
            if m["err"]:
                raise SystemExit(f"a request failed: {m['err']}")
            self.latencies.append(now - self._began.pop(m["tag"]))


async def run(
    client_port: int, handler_port: int, twin: int, in_flight: int, seconds: float
) -> None:
    answering = asyncio.create_task(echo(handler_port))
    pops = await connect(RedisUrl(HOST, client_port))
    client = Client(twin, await connect(RedisUrl(HOST, client_port)))
    client.push(in_flight)
    begin: float | None = None
    counted = 0
    warm_until = time.perf_counter() + min(1.0, seconds / 4)
    while True:
        first, rest = await pops.run(("BRPOP", RET, 10), ("RPOP", RET, 256))
        assert first is not None, "no answer for ten seconds"
        texts = [first[1], *(rest or [])]
        client.take(texts)
        now = time.perf_counter()
        if begin is None:
            if now > warm_until:
                begin = now
                client.latencies.clear()
        else:
            counted += len(texts)
            if now - begin > seconds:
                break
        client.push(len(texts))
    answering.cancel()
    found = sorted(client.latencies)
    print(
        json.dumps(
            {
                "count": counted,
                "seconds": now - begin,
                "p50_ms": 1000 * found[len(found) // 2],
                "p99_ms": 1000 * found[int(len(found) * 0.99)],
            }
        )
    )


if __name__ == "__main__":
    ports = [int(argument) for argument in sys.argv[1:5]]
    uvloop.run(run(ports[0], ports[1], ports[2], ports[3], float(sys.argv[5])))
