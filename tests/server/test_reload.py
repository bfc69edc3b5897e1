"""What SIGHUP takes over, and what it leaves alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import polybus
from polybus.core.policy import NEIGHBOUR
from polybus.errors import ConfigError, NotAuthorized, PolybusError
from polybus.protocols.gsb.client import GsbClient
from polybus.protocols.t2.client import Connector
from polybus.protocols.zbus.client import MqClient
from polybus.server import Config, Node
from polybus.server.config import Policy
from polybus.server.load import load
from polybus.server.reload import Reload


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """Writes the file of settings; a node on a free port without topics unless it says otherwise."""

    def write(text: str) -> Path:
        path = tmp_path / "polybus.toml"
        path.write_text(f'listen = ["tcp://127.0.0.1:0"]\ndata = "{tmp_path / "data"}"\n' + text)
        return path

    return write


def policy(*rules: str) -> str:
    return "[policy]\nrules = [" + ", ".join(f'"{rule}"' for rule in rules) + "]\n"


async def test_new_rules_count_at_once_on_every_wire(write, caplog):
    caplog.set_level(logging.INFO, "polybus.reload")
    file = write(policy("* may *"))
    async with Node(load(file).config) as node, asyncio.timeout(15):
        place = f"127.0.0.1:{node.addresses[0].port}"
        reload = Reload(node, lambda: load(file).config)
        async with (
            GsbClient(f"tcp://{place}") as gsb,
            await Connector.tcp(place).connect() as t2,
            await MqClient.connect(place) as zbus,
            polybus.connect(f"polybus://{place}") as bus,
        ):
            await zbus.declare("kept")

            async def all_say() -> list[str]:
                tries = (
                    gsb.broadcast("/news", b""),
                    t2.publish_bytes("news", b""),
                    zbus.produce("kept", b""),
                    bus.publish("news", b""),
                )
                results = await asyncio.gather(*tries, return_exceptions=True)
                return [type(r).__name__ for r in results if isinstance(r, PolybusError)]

            # Twice, so that the routes are remembered before the rules change.
            assert await all_say() == await all_say() == []
            write(policy("* may call"))
            reload()
            assert await all_say() == ["Refused", "InvalidName", "MqError", "NotAuthorized"]
            write(policy("* may *"))
            reload()
            assert await all_say() == []
    assert "the settings were read again: policy.rules" in caplog.text


@pytest.mark.parametrize(
    "wrong",
    ["[policy]\nrules = ['x']\n", "[politics]\n", "not toml", '[policy]\ntokens = ["a b"]\n'],
)
async def test_a_bad_file_is_refused_and_the_old_rules_stay(wrong, write, caplog):
    file = write(policy("* may call on a"))
    async with Node(load(file).config) as node:
        before = node.config
        write(wrong)
        Reload(node, lambda: load(file).config)()
        assert node.config == before
        assert node.router.policy.may(NEIGHBOUR, "call", "a")
        assert not node.router.policy.may(NEIGHBOUR, "call", "b")
    assert "refused, the old ones stay" in caplog.text


async def test_what_needs_a_restart_is_named_and_left_alone(write, caplog):
    file = write("")
    async with Node(load(file).config) as node:
        write('[limits]\ndrain = "1s"\n[log]\nlevel = "debug"\n')
        level = logging.getLogger("polybus").level
        try:
            Reload(node, lambda: load(file).config)()
            assert logging.getLogger("polybus").level == logging.DEBUG
        finally:
            logging.getLogger("polybus").setLevel(level)
        assert node.config.limits.drain == 10
        assert node.config.log.level == "debug"
    assert "these changes need a restart: limits.drain" in caplog.text


async def test_who_holds_what_the_new_rules_deny_is_disconnected_and_asks_again(tmp_path):
    open_policy = Policy(rules=("* may *",))
    config = Config(listen=("tcp://127.0.0.1:0",), data=tmp_path, policy=open_policy)
    async with Node(config) as node, asyncio.timeout(15):
        url = f"polybus://127.0.0.1:{node.addresses[0].port}"
        async with polybus.connect(url) as served, polybus.connect(url) as idle:
            await served.serve("a", answer)
            node.take_policy(replace(open_policy, rules=("* may call publish",)))
            await until(lambda: not list(node.router.services))
            assert await idle.publish("news", b"") == 0
            await until(lambda: len(node.router.endpoints) == 2)
            with pytest.raises(NotAuthorized):
                await served.serve("b", answer)


async def answer() -> bytes:
    return b""


async def test_whose_token_is_gone_is_disconnected_and_refused(tmp_path):
    path = tmp_path / "secret"
    path.write_text("one")
    tokens = Policy(tokens=(f"alice file:{path}",))
    config = Config(listen=("tcp://127.0.0.1:0",), data=None, policy=tokens)
    async with Node(config) as node, asyncio.timeout(15):
        url = f"polybus://127.0.0.1:{node.addresses[0].port}"
        async with polybus.connect(url, token="one") as bus, polybus.connect(url) as other:
            await bus.publish("a", b"")
            path.write_text("two")
            node.take_policy(replace(tokens))
            await bus.publish("a", b"")  # who is known already stays; the secret is for the door
            with pytest.raises(NotAuthorized):
                async with polybus.connect(url, token="one"):
                    pass
            node.take_policy(replace(tokens, tokens=(f"carol file:{path}",)))
            await until(lambda: len(node.router.endpoints) == 1)
            await other.publish("a", b"")


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def test_a_wrong_policy_is_refused_before_the_node_starts():
    with pytest.raises(ConfigError, match="is no rule"):
        Node(Config(data=None, policy=Policy(rules=("x",))))
