"""Calls that several twins pass on: counted, so that aliases which lead to each other end in an error."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest

import polybus
from polybus.core.alias import Aliases
from polybus.errors import PolybusError
from polybus.protocols.rmb.hops import MAX_HOPS, hops_of, with_hops
from polybus.protocols.rmb.message import GENERATIONS, Generation
from tests.protocols.rmb.twins import Twin, World


def alias(twin: Twin, **targets: str) -> None:
    Aliases(twin.node.router, {name.replace("_", "/"): to for name, to in targets.items()}).start()


def test_the_count_is_written_behind_an_id_and_read_from_there():
    assert with_hops("a-b", 0) == "a-b"
    assert with_hops("a-b", 7) == "a-b~7"
    assert [hops_of(uid) for uid in ("", "a-b", "a~7", "2.13~11", "a~7b", "~", "a~123")] == [
        *(0, 0, 7, 11, 0, 0, 0)
    ]


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_aliases_that_lead_to_each_other_end_in_an_error(
    world: World, generation: Generation
):
    trust: Any = {"generation": generation, "allow_unsigned": True}
    world.write_directory = partial(world.write_directory, twin1=trust, twin2=trust)  # type: ignore[method-assign]
    one, two = await world.start(1, 2, generation=generation)
    alias(one, ping_pong="twin/2/pong/ping")
    alias(two, pong_ping="twin/1/ping/pong")
    began = time.monotonic()
    async with polybus.connect(f"polybus://127.0.0.1:{one.common_port}") as bus:
        with pytest.raises(PolybusError, match="aliases that lead to each other"):
            await bus.call("ping/pong", b"", timeout=60)
    answer = await one.read(await one.push(cmd="pong.ping", exp=60))
    assert "aliases that lead to each other" in answer["err"]
    assert time.monotonic() - began < 30
    assert not one.node.pending_calls
    assert not two.node.pending_calls


async def test_a_chain_of_aliases_over_two_twins_is_fine(world: World):
    one, two = await world.start(1, 2)
    two.echo()
    alias(one, far_echo="twin/2/here/echo")
    alias(two, here_echo="twin/1/back/echo")
    one.node.router.register(
        next(e for e in one.node.router.endpoints if e.wire == "rmb"), "back/echo", "back/echo"
    )
    one.echo("back.echo")
    async with polybus.connect(f"polybus://127.0.0.1:{one.common_port}") as bus:
        assert await bus.call("far/echo", b"hello", timeout=20) == b"hello"
    assert MAX_HOPS > 2
