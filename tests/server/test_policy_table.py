"""Identity × verb × wire, over real sockets and each room's own client: what a rule allows works, what none allows is
refused in the wire's own words, and the client that was refused goes on.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final

import msgspec
import pytest

import polybus
from polybus.client.bus import Bus
from polybus.core.policy import VERBS
from polybus.errors import Refused
from polybus.protocols.gsb.wire import CURRENT, encode_hello
from polybus.protocols.gsb.wire import Kind as GsbKind
from polybus.protocols.t2.client import Client as T2Client
from polybus.protocols.zbus.client import MqClient
from polybus.server import Config, Node
from polybus.server.config import Alias
from tests.server.doors import NAMES, SECRET
from tests.server.policy_stage import ACTIONS, IDENTITIES, NEEDED, client_of, echo, refused, stage

ROWS: Final = [(wire, kind) for wire, kinds in IDENTITIES.items() for kind in kinds]


@pytest.mark.parametrize(("wire", "kind"), ROWS)
async def test_what_a_rule_allows_works(wire, kind, tmp_path, far_away):
    far_away(kind)
    async with stage(tmp_path, kind) as (node, door), asyncio.timeout(15):
        for verb, action in ACTIONS[wire].items():
            verbs = f"{verb} {NEEDED.get((wire, verb), '')}"
            node.take_policy(replace(node.config.policy, rules=(f"{NAMES[kind]} may {verbs}",)))
            async with client_of(wire, door) as client:
                await action(client)


@pytest.mark.parametrize(("wire", "kind"), ROWS)
async def test_what_no_rule_allows_is_refused_and_the_client_goes_on(
    wire, kind, tmp_path, far_away
):
    far_away(kind)
    async with stage(tmp_path, kind) as (node, door), asyncio.timeout(15):
        for verb, action in ACTIONS[wire].items():
            others = " ".join(other for other in VERBS if other != verb)
            node.take_policy(replace(node.config.policy, rules=(f"{NAMES[kind]} may {others}",)))
            async with client_of(wire, door) as client:
                await refused(wire, verb, kind, action(client))
                for other, another in ACTIONS[wire].items():
                    if verb not in (other, NEEDED.get((wire, other))):
                        await another(client)
                        break


@pytest.mark.parametrize(("wire", "kind"), ROWS)
async def test_a_rule_for_somebody_else_helps_nobody(wire, kind, tmp_path, far_away):
    far_away(kind)
    rules = ("token:carol may *", "uid:4294967295 may *", "certificate:carol may *")
    async with stage(tmp_path, kind, *rules) as (_node, door), asyncio.timeout(15):
        for verb, action in ACTIONS[wire].items():
            async with client_of(wire, door) as client:
                await refused(wire, verb, kind, action(client))


@pytest.mark.parametrize(("wire", "kind"), ROWS)
async def test_without_rules_all_but_strangers_may_do_everything(wire, kind, tmp_path, far_away):
    far_away(kind)
    async with stage(tmp_path, kind) as (_node, door), asyncio.timeout(15):
        for verb, action in ACTIONS[wire].items():
            async with client_of(wire, door) as client:
                if kind == "stranger":
                    await refused(wire, verb, kind, action(client))
                else:
                    await action(client)


@pytest.mark.parametrize("wire", IDENTITIES)
async def test_the_switch_lets_strangers_in(wire, tmp_path, far_away):
    far_away("stranger")
    async with stage(tmp_path, "stranger") as (node, door), asyncio.timeout(15):
        node.take_policy(replace(node.config.policy, allow_anonymous=True))
        for action in ACTIONS[wire].values():
            async with client_of(wire, door) as client:
                await action(client)


# -- names and patterns ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "allowed"),
    [("news/a", True), ("news/*", True), ("news/**", True), ("**", False), ("*/a", False)],
)
async def test_a_pattern_passes_only_if_one_rule_covers_it_entirely(topic, allowed, tmp_path):
    rules = ("anonymous may publish subscribe on news/**", "anonymous may subscribe on a/* b/*")
    async with stage(tmp_path, "loopback", *rules) as (_node, door), asyncio.timeout(15):
        for wire, subscribe in (("t2", T2Client.subscribe_bytes), ("native", _listen)):
            async with client_of(wire, door) as client:
                if allowed:
                    await subscribe(client, topic)
                else:
                    await refused(wire, "subscribe", "loopback", subscribe(client, topic))
        async with client_of("t2", door) as client:
            if allowed:
                await client.publish_bytes(topic, b"")
            else:
                await refused("t2", "publish", "loopback", client.publish_bytes(topic, b""))


async def _listen(bus: Bus, pattern: str) -> None:
    async with bus.subscribe(pattern):
        pass


async def test_a_gsb_service_needs_a_rule_for_all_that_lies_below_its_name(tmp_path):
    rules = ("anonymous may register on exact below/**",)
    async with stage(tmp_path, "loopback", *rules) as (_node, door), asyncio.timeout(15):
        async with client_of("gsb", door) as client:
            await client.bind("/below", echo)
            await refused("gsb", "register", "loopback", client.bind("/exact", echo))
        async with client_of("t2", door) as client:
            await client.serve_bytes("exact")


@pytest.mark.parametrize("spelling", ["/below", "below//", "below//more", "below/", "/below//x"])
async def test_a_spelling_that_is_no_shared_name_is_no_way_around_a_rule(spelling, tmp_path):
    """The Golem Service Bus routes `a//b` to the service at `a`, which a rule for `a` alone does not allow."""
    rules = ("anonymous may call on below",)
    async with (
        stage(tmp_path, "loopback", *rules) as (_node, door),
        polybus.connect(f"memory:{tmp_path.name}") as owner,
        client_of("gsb", door) as client,
        asyncio.timeout(15),
    ):
        await owner.serve("below", echo)
        if spelling == "/below":
            assert await client.call(spelling, b"") == b"echo"
        else:
            await refused("gsb", "call", "loopback", client.call(spelling, b""))


async def test_a_method_of_a_zbus_service_can_be_allowed_by_itself(tmp_path):
    rules = ("token:bob may register call on calc/**", "anonymous may call on calc/plus")
    async with (
        stage(tmp_path, "token", *rules) as (_node, door),
        client_of("zbus", door) as service,
        await MqClient.connect(door.place) as caller,
        asyncio.timeout(15),
    ):
        waiting = asyncio.create_task(service.consume("calc"))
        assert (await ask(caller, "minus")).status == 403
        called = asyncio.create_task(ask(caller, "plus"))
        service.route(await waiting, b'{"result": 3, "error": null}')
        assert (await called).status == 200


async def ask(client: MqClient, method: str) -> Any:
    headers = {"cmd": "produce", "topic": "calc", "ack": "0"}
    body = msgspec.json.encode({"method": method, "module": "", "params": []})
    return await client.connection.invoke(headers, body, 5)


async def test_an_alias_is_no_way_around_the_rules_for_its_target(tmp_path):
    rules = ("anonymous may call on second/name", "token:bob may call on second/name serv/add")
    aliases = (Alias(name="second/name", target="serv/add"),)
    async with stage(tmp_path, "loopback", *rules, alias=aliases) as (_node, door):
        async with asyncio.timeout(15), polybus.connect(door.url("polybus")) as nobody:
            with pytest.raises(Refused, match="may not call serv/add"):
                await nobody.call("second/name", b"")
        async with asyncio.timeout(15), polybus.connect(door.url("polybus"), token=SECRET) as bob:
            assert await bob.call("second/name", b"") == b"echo"


async def test_only_the_same_identity_takes_a_gsb_connection_over(tmp_path):
    """Two listeners, since GSB has no tokens: a neighbour cannot end the connection of a user."""
    listen = ("gsb+tcp://127.0.0.1:0", f"gsb+unix:{tmp_path / 'gsb.sock'}")
    async with Node(Config(listen=listen, data=None)) as node, asyncio.timeout(15):
        user = await asyncio.open_unix_connection(str(tmp_path / "gsb.sock"))
        neighbour = await asyncio.open_connection("127.0.0.1", node.addresses[0].port)
        again = await asyncio.open_unix_connection(str(tmp_path / "gsb.sock"))
        hello = CURRENT.encode(GsbKind.HELLO, encode_hello("test", "1", b"same"))
        for reader, writer in (user, neighbour):
            writer.write(hello)
            assert await reader.read(10)
        user[1].write(CURRENT.encode(GsbKind.PING, b""))
        assert await user[0].read(10), "the user was cut"
        again[1].write(hello)
        while await user[0].read(1000):
            pass
        for _reader, writer in (user, neighbour, again):
            writer.close()
