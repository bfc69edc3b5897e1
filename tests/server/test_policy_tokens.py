"""Tokens of the node and of Zbus, together and apart."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

import polybus
from polybus.errors import NotAuthorized
from polybus.protocols.zbus.client import MqClient
from polybus.protocols.zbus.connection import MqError
from polybus.server.config import Zbus
from tests.server.doors import SECRET, http
from tests.server.policy_stage import client_of, fresh, refused, stage


async def test_a_token_that_nobody_has_is_refused_at_once(tmp_path):
    async with stage(tmp_path, "loopback", "* may *") as (_node, door), asyncio.timeout(15):
        wrong = replace(door, token="guessed")
        with pytest.raises(NotAuthorized):
            async with polybus.connect(wrong.url("polybus"), token=wrong.token):
                pass
        assert await http(wrong, "/api/v1/overview") == 401
        async with await MqClient.connect(door.place, token="guessed") as client:
            await refused("zbus", "declare", "token", client.declare(fresh()))


@pytest.mark.parametrize(
    ("rules", "token", "status"),
    [
        # By the rules of Zbus alone: they are asked about their own tokens, and about nobody else's.
        ((), "shop", 200),
        ((), "guest", 403),
        ((), "", 403),
        ((), SECRET, 200),
        ((), "guessed", 403),
        # With rules of the node the bearer of a Zbus token is token:zbus, and has to pass both.
        (("token:zbus may produce on kept",), "shop", 200),
        (("token:zbus may produce on kept",), "guest", 403),
        (("token:zbus may consume on kept",), "shop", 403),
        (("token:bob may produce on kept",), SECRET, 200),
        (("token:bob may consume on kept",), SECRET, 403),
    ],
)
async def test_tokens_of_zbus_and_of_the_node_go_together(rules, token, status, tmp_path):
    zbus = Zbus(tokens=("shop: produce on kept", "guest: consume on kept", ": query"))
    async with (
        stage(tmp_path, "loopback", *rules, zbus=zbus) as (_node, door),
        await MqClient.connect(door.place, token=token) as client,
        asyncio.timeout(15),
    ):
        headers = {"cmd": "produce", "topic": "kept", "token": token}
        assert (await client.connection.invoke(headers, b"x", 5)).status == status


async def test_a_zbus_token_lets_a_stranger_in_as_far_as_its_own_rules_go(tmp_path, far_away):
    far_away("stranger")
    zbus = Zbus(tokens=("shop: produce on kept",))
    async with stage(tmp_path, "stranger", zbus=zbus) as (_node, door), asyncio.timeout(15):
        async with await MqClient.connect(door.place, token="shop") as client:
            assert await client.produce("kept", b"x") is not None
            await refused("zbus", "consume", "stranger", client.consume("kept"))
        async with await MqClient.connect(door.place) as nobody:
            await refused("zbus", "produce", "stranger", nobody.produce("kept", b"x"))


async def test_lists_of_zbus_show_what_somebody_may_do_anything_with(tmp_path):
    rules = ("anonymous may consume on kept", "token:bob may call on calc/plus")
    async with stage(tmp_path, "loopback", *rules) as (_node, door), asyncio.timeout(15):
        for token, seen in (("", {"kept"}), (SECRET, {"calc"})):
            async with await MqClient.connect(door.place, token=token) as client:
                assert set((await client.query())["topicTable"]) == seen
                for topic in {"kept", "calc"} - seen:
                    await refused("zbus", "consume", "loopback", client.query(topic))


async def test_the_secret_of_a_token_is_kept_nowhere(tmp_path, caplog):
    async with stage(tmp_path, "token") as (node, door), asyncio.timeout(15):
        async with client_of("zbus", door) as client:
            made = fresh()
            await client.declare(made)
            await client.produce(made, b"x")
            with pytest.raises(MqError):
                await client.consume("nowhere")
        assert node.topics is not None
        assert SECRET not in str(node.topics.info(made)) + caplog.text
        (record,) = await node.topics.engine.read(made, 0, 1, 1 << 20)
        assert SECRET not in str(record)
        assert "bob" in str(node.topics.info(made))
