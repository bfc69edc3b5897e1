"""What the policy refuses is 401, to other twins and to the clients of the own one."""

from __future__ import annotations

from typing import Any

import pytest

import polybus
from polybus.protocols.rmb.party import RmbParty
from polybus.server.config import Policy
from tests.protocols.rmb.posting import http, message, sign
from tests.protocols.rmb.test_http import start
from tests.protocols.rmb.twins import Twin, World


def go_by(twin: Twin, *rules: str) -> None:
    twin.node.take_policy(Policy(rules=rules))


@pytest.mark.parametrize("path", ["/zbus-remote", "/rmb-remote", "/zbus-cmd"])
@pytest.mark.parametrize("generation", ["rs", "v1", "v2", "documented"])
async def test_a_twin_that_may_not_call_gets_401(world: World, path: str, generation: Any):
    port = await start(world, generation=generation)
    two = world.twins[2]
    go_by(two, "twin:3 may *", "twin:1 may call on cap/other")
    status, _headers, body = await http(port, path, sign(message(world.now())))
    assert status == 401
    assert b"twin:1 may not call cap/echo" in body
    for allowed in (message(world.now(), cmd="cap.other"), message(world.now(), src=3)):
        status, _headers, body = await http(port, path, sign(allowed))
        assert status in (200, 202), body


async def test_a_verified_twin_is_no_stranger_without_rules(world: World):
    port = await start(world)
    status, _headers, _body = await http(port, "/zbus-remote", sign(message(world.now())))
    assert status == 202


async def test_a_client_of_the_own_twin_is_told_401_on_its_return_queue(world: World):
    one, two = await world.start(1, 2)
    go_by(one, "twin:1 may call on twin/2/cap/echo")
    two.echo()
    assert (await one.read(await one.push()))["err"] in ("", None)
    for denied in ({"cmd": "cap.other"}, {"dst": [1]}, {"dst": [2, 1]}):
        answer = await one.read(await one.push(**denied))
        assert answer["err"].startswith("401 unauthorized: twin:1 may not call "), answer


async def test_a_refusal_of_the_other_twin_reaches_the_client(world: World):
    one, two = await world.start(1, 2)
    go_by(two, "twin:3 may call")
    answer = await one.read(await one.push(**{"try": 1}))
    assert "401" in answer["err"]


async def test_a_call_to_another_wire_is_made_on_behalf_of_the_twin(world: World):
    one, two = await world.start(1, 2)
    go_by(two, "anonymous may register", "twin:1 may call on cap/open")
    async with polybus.connect(f"polybus://127.0.0.1:{two.common_port}") as bus:
        await bus.serve("cap/open", _answer)
        await bus.serve("cap/shut", _answer)
        # The own twin, in whose name requests of others are passed on, may nothing itself.
        answer = await one.read(await one.push(cmd="cap.open"))
        assert answer["err"] in ("", None)
        answer = await one.read(await one.push(cmd="cap.shut", **{"try": 1}))
        assert "401" in answer["err"]


async def _answer() -> bytes:
    return b"done"


async def test_what_the_operator_offers_stays_whatever_the_rules_and_what_handlers_declare_goes(
    world: World,
):
    (one,) = await world.start(1, services=["cap.echo"])
    party = next(each for each in one.node.router.endpoints if each.wire == "rmb")
    assert isinstance(party, RmbParty)
    party.declare({"cap.more"})

    def offered() -> set[str]:
        return {found.name for found in one.node.router.services if found.wire == "rmb"}

    assert offered() == {"twin", "cap/echo", "cap/more"}
    go_by(one, "twin:1 may register", "twin:2 may call")
    assert offered() == {"twin", "cap/echo", "cap/more"}
    go_by(one, "twin:2 may call")
    assert offered() == {"twin", "cap/echo"}
