"""The published JavaScript client, and programs written as the documents describe, on our twins."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.protocols.rmb.twins import World

pytestmark = pytest.mark.interop
CMD = "wallet.stellar.balance.tft"


async def run(node: Any, *arguments: object) -> list[dict[str, Any]]:
    """A JavaScript program's replies; the twins of this process go on meanwhile."""
    found: list[dict[str, Any]] = await asyncio.to_thread(node, *arguments)
    return found


def port(world: World, twin: int) -> int:
    return world.twins[twin].redis_server.url.port


async def test_the_real_client_calls_the_real_server_of_other_twins(world: World, node, serving):
    await world.start(1, 2, 3)
    ready = "watching msgbus.demo.fail"
    with (
        serving("real_client.js", "serve", port(world, 2), ready=ready),
        serving("real_client.js", "serve", port(world, 3), ready=ready),
    ):
        arguments = ("real_client.js", "call", port(world, 1))
        replies = await run(node, *arguments, "demo.echo", "2,3", 60, 2, "hello")
        assert sorted(reply["src"] for reply in replies) == [2, 3]
        assert all(json.loads(r["dat"]) == {"got": "hello", "from": 1} for r in replies)
        (failed,) = await run(node, *arguments, "demo.fail", "2", 60, 2, "x")
        assert (failed["err"], failed["dat"]) == ("Error: no luck", "")
        (unknown,) = await run(node, *arguments, "demo.echo", "99", 60, 2, "x")
        assert "not found" in unknown["err"]


async def test_the_real_client_calls_the_own_twin(world: World, node, serving):
    await world.start(1)
    with serving("real_client.js", "serve", port(world, 1), ready="watching msgbus.demo.fail"):
        replies = await run(
            node, "real_client.js", "call", port(world, 1), "demo.echo", "1", 0, 2, "mine"
        )
    assert json.loads(replies[0]["dat"])["got"] == "mine"


async def test_a_request_of_the_real_client_without_a_handler_ends(world: World, node):
    await world.start(1, 2)
    (reply,) = await run(
        node, "real_client.js", "call", port(world, 1), "demo.nobody", "2", 1, 2, "x"
    )
    assert reply["err"] == "request timeout (expiration reached, 1 seconds)"


@pytest.mark.parametrize(
    ("generation", "form", "side", "queue"),
    [
        ("rs", "first", "lPush", "ret"),
        ("rs", "minimal", "rPush", "reply"),
        ("documented", "minimal", "rPush", "ret"),
        ("documented", "first", "lPush", "reply"),
        ("v1", "first", "rPush", "reply"),
        ("v1", "minimal", "lPush", "ret"),
    ],
)
async def test_programs_of_the_documents_work_in_every_generation(
    world: World, node, serving, generation, form, side, queue
):
    await world.start(1, 2, generation=generation)
    if generation == "v1":
        changes = {"allow_unsigned": True}
        world.write_directory(twin1=changes, twin2=changes)
        for twin in world.twins.values():
            twin.room.directory.forget(1)
    with (
        serving("documents.js", "handler", port(world, 1), CMD, queue, ready="READY"),
        serving("documents.js", "handler", port(world, 2), CMD, queue, ready="READY"),
    ):
        arguments = ("documents.js", form, port(world, 1), side)
        replies = await run(node, *arguments, "2,1")
        assert sorted(r["src"] for r in replies) == [1, 2]
        assert all(r["dat"].startswith("balance of GA7O") for r in replies), replies
        assert not any(r["err"] for r in replies)
        (unknown,) = await run(node, *arguments, "99")
        assert unknown["err"]
