"""A node with clients of several wires that keep it busy, for looking at its page.

Prints the port once everything runs, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polybus
from polybus.client.bus import Bus
from polybus.core.group_options import GroupOptions
from polybus.errors import PolybusError
from polybus.model.journal import Row, encode_row
from polybus.monitor.history import JOURNAL, TRAFFIC
from polybus.protocols.rmb.keys import encode_account, parse_secret
from polybus.protocols.rmb.signature import Signer
from polybus.server import Config, Node
from polybus.server.config import Policy, Rmb, Zbus

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
PAST = (
    ("token:shop", "golem/payment/invoice", "gsb", 120),
    ("token:shop", "wallet/stellar/balance", "native", 80),
    ("certificate:kiosk-7", "wallet/stellar/balance", "native", 30),
    ("anonymous:loopback", "calc/twice", "native", 60),
    ("anonymous:loopback", "house/heating/state", "t2", 45),
    ("token:billing", "golem/payment/invoice", "zbus", 20),
)
TOPICS = ("orders/eu", "orders/us", "prices", "audit/logins", "sensors/temperature")


async def consume(bus: Bus, topic: str, group: str, refuse: float) -> None:
    async with bus.consume(topic, group) as consumption:
        async for record in consumption:
            if random.random() < refuse:
                record.nack(reason="card declined")
            else:
                record.ack()


async def keep_calling(bus: Bus, name: str, pause: float) -> None:
    while True:
        # A client that the page has disconnected comes back by itself.
        with suppress(PolybusError):
            for _ in range(random.randint(3, 12)):
                await bus.call(name, b"x" * random.randint(1, 200))
        await asyncio.sleep(pause)


async def keep_producing(bus: Bus) -> None:
    number = 0
    while True:
        for _ in range(random.randint(1, 8)):
            number += 1
            order = {"order": number, "item": "book", "price": round(random.random() * 50, 2)}
            tag = random.choice(("orders.new", "orders.paid"))
            with suppress(PolybusError):
                await bus.produce("orders/eu", json.dumps(order).encode(), tag=tag, key=b"eu")
        await asyncio.sleep(0.2)


async def prepare(node: Node, bus: Bus) -> None:
    for topic in TOPICS:
        records = [json.dumps({"n": n, "name": "Ada"}).encode() for n in range(20)]
        await bus.produce_many(topic, records, create=True)
    await bus.produce("prices", bytes(range(64)))
    await bus.produce("prices", HOSTILE.encode(), tag="hostile", headers={"from": HOSTILE})
    assert node.topics is not None
    await node.topics.groups.declare("orders/eu", "billing")
    await node.topics.groups.declare("orders/eu", "shipping", GroupOptions(max_attempts=2))
    await node.topics.groups.declare("orders/us", "reports")


async def tell_the_past(bus: Bus) -> None:
    """What the journal and the traffic pipeline would have left."""
    minute = 60_000_000
    now = time.time_ns() // 1000 // minute * minute
    rows, windows = [], []
    for ago in range(90, 0, -1):
        for caller, name, wire, usual in PAST:
            calls = max(0, round(usual * (1 + random.uniform(-0.4, 0.4))))
            errors = random.choice((0, 0, 1)) if name == "house/heating/state" else 0
            start = datetime.fromtimestamp((now - ago * minute) / 1e6, UTC)
            window = {
                "start": start.strftime("%Y-%m-%dT%H:%M:00.000Z"),
                "end": (start + timedelta(minutes=1)).strftime("%Y-%m-%dT%H:%M:00.000Z"),
                "protocol": wire,
                "name": name,
                "calls": calls,
                "publications": 0,
                "bytes": calls * 180,
                "errors": errors,
                "p99_ms": random.uniform(1, 9),
            }
            windows.append(json.dumps(window).encode())
            row = Row(now - ago * minute, "call", str(ago), wire, wire, name, caller)
            took = random.randrange(200, 9000)
            row = replace(row, status=errors and 4, duration_us=took)
            rows += [encode_row(row)] * (1 + usual // 40)
    await bus.produce_many(TRAFFIC, windows, create=True)
    await bus.produce_many(JOURNAL, rows, create=True)


def twins(folder: Path) -> Rmb:
    """A twin among three."""
    entries = []
    for number in (12, 13, 21):
        secret = "0x" + f"{number:02x}" * 32
        (folder / f"{number}.key").write_text(secret)
        key = Signer("ed25519", parse_secret(secret)).public_key
        entries.append(
            f'[[twin]]\nid = {number}\naddress = "127.0.0.1:{9000 + number}"\n'
            f'account = "{encode_account(key)}"\n'
        )
    (folder / "twins.toml").write_text("".join(entries))
    directory = str(folder / "twins.toml")
    return Rmb(twin=12, key_file=folder / "12.key", key_type="ed25519", twins=directory)


async def serve(node: Node, native: Bus, gsb: Bus, t2: Bus) -> None:
    await native.serve("calc/twice", lambda body: body * 2)
    await native.serve("wallet/stellar/balance", lambda body: b'{"balance":"12.50"}')
    await gsb.serve("golem/payment/invoice", lambda body: body)
    await t2.serve("house/heating/state", lambda body: b"on")


async def until_told(node: Node) -> None:
    """Tell the port, and wait for the end of the input."""
    sys.stdout.write(f"{node.addresses[0].port}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)


async def run_guarded() -> None:
    """A node for the bearers of two tokens: `eye` may look, `ops` may do everything."""
    policy = Policy(
        rules=("token:eye may subscribe, consume on **", "token:ops may * on **"),
        tokens=tuple(
            f"{n} sha256:{hashlib.sha256(n.encode()).hexdigest()}" for n in ("eye", "ops")
        ),
    )
    with tempfile.TemporaryDirectory() as folder:
        config = Config(listen=("tcp://127.0.0.1:0",), data=Path(folder), policy=policy)
        async with Node(config) as node:
            assert node.topics is not None
            await node.topics.declare("orders/eu")
            await node.topics.groups.declare("orders/eu", "billing")
            await until_told(node)


async def run() -> None:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        rmb = Rmb() if "no-twin" in sys.argv else twins(here)
        config = Config(listen=("tcp://127.0.0.1:0",), data=here / "data", rmb=rmb)
        async with Node(config) as node:
            at = f"127.0.0.1:{node.addresses[0].port}"
            tracked = Config(
                listen=("tcp://127.0.0.1:0",), data=here / "other", zbus=Zbus(trackers=(at,))
            )
            async with (
                Node(tracked),
                polybus.connect(f"polybus://{at}") as native,
                polybus.connect(f"polybus://{at}") as other,
                polybus.connect(f"gsb://{at}") as gsb,
                polybus.connect(f"gsb://{at}") as gsb_caller,
                polybus.connect(f"t2://{at}") as t2,
                polybus.connect(f"t2://{at}") as t2_caller,
                asyncio.TaskGroup() as tasks,
            ):
                await prepare(node, native)
                await tell_the_past(native)
                await serve(node, native, gsb, t2)
                running = [
                    tasks.create_task(work)
                    for work in (
                        keep_calling(other, "calc/twice", 0.2),
                        keep_calling(other, "wallet/stellar/balance", 0.5),
                        keep_calling(gsb_caller, "golem/payment/invoice", 0.3),
                        keep_calling(t2_caller, "house/heating/state", 0.4),
                        keep_producing(other),
                        consume(native, "orders/eu", "billing", 0.0),
                        consume(native, "orders/eu", "shipping", 0.1),
                    )
                ]
                # Charts are to show the traffic, and not how it was prepared.
                await node.monitor.sampler.sample()
                node.monitor.sampler.points.clear()
                await until_told(node)
                for task in running:
                    task.cancel()


if __name__ == "__main__":
    asyncio.run(run_guarded() if "guarded" in sys.argv else run())
