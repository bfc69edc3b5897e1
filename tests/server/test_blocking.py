"""A node that serves never makes its event loop wait for the disk, a name server or a sleep."""

from __future__ import annotations

import pytest
from blockbuster import BlockingError, blockbuster_ctx

import polybus
from polybus.server import Config, Node
from polybus.transports.tls import certificate_hash


async def test_traffic_of_every_kind_blocks_the_loop_nowhere(tmp_path):
    config = Config(listen=("tcp://127.0.0.1:0",), data=tmp_path / "data")
    async with Node(config) as node:
        url = str(node.addresses[0])
        async with polybus.connect(url) as service, polybus.connect(url) as client:
            with blockbuster_ctx("polybus"):
                await service.serve("twice", lambda body: body * 2)
                assert await client.call("twice", b"ab") == b"abab"
                async with service.subscribe("price/**") as prices:
                    await client.publish("price/a", b"12")
                    assert (await anext(prices)).payload == b"12"
                records = [b"x" * 1000] * 1000
                await client.produce_many("log", records, create=True)
                async with service.consume("log", "readers") as consumption:
                    for _ in records:
                        (await anext(consumption)).ack()
                assert len(await client.fetch("log", 10, end=20)) == 10


async def test_a_blocking_call_would_be_noticed(tmp_path):
    (tmp_path / "cert.pem").write_text("none")
    with blockbuster_ctx("polybus"), pytest.raises(BlockingError):
        certificate_hash(tmp_path / "cert.pem")
