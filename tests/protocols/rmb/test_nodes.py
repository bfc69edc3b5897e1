"""Two and three nodes on loopback, each with its own Redis."""

from __future__ import annotations

from polybus.protocols.rmb.message import parse_strict
from polybus.protocols.rmb.signature import digest, parse_signature, verify
from tests.protocols.rmb.twins import World, signer_of


async def test_a_signed_round_trip_goes_through_two_nodes(world: World):
    one, two = await world.start(1, 2)
    ret = await one.push(tag="t1", ret="df44")
    request = await two.request()
    m = parse_strict(__import__("json").dumps(request | {"ret": "df44"}).encode())
    assert verify(parse_signature(m.sig), digest(m), signer_of(1).public_key) == ""
    assert request["ret"] == "msgbus.system.reply"
    await two.reply(request, dat="d29ybGQ=")
    answer = await one.read(ret)
    assert (answer["src"], answer["dst"], answer["dat"]) == (2, [1], "d29ybGQ=")
    assert (answer["tag"], answer["ret"], answer["uid"]) == ("t1", "df44", request["uid"])
