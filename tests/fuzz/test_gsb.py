"""Whatever a client of the Golem bus sends, it is served or closed, and its neighbour never notices."""

from __future__ import annotations

import contextlib
import json
import logging
import random
from pathlib import Path

import pytest

from polybus.errors import RemoteProtocolError
from polybus.model.clock import ManualClock
from polybus.protocols.gsb.room import GsbOptions
from polybus.protocols.gsb.session import GsbSession
from polybus.protocols.gsb.wire import (
    CURRENT,
    LEGACY,
    CallRequest,
    Framing,
    Kind,
    encode_call,
    encode_name,
    encode_reply,
)
from tests.fuzz.mutations import FRAMES, errors, halves, mend, mutate
from tests.protocols.gsb.conftest import Bus, Client

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "gsb.json").read_text())
CAPTURED = sorted(
    {
        bytes.fromhex(s["hex"])
        for v in VECTORS
        for s in v["steps"]
        if s["hex"] and s["from"] != "router"
    }
)


def packets() -> list[tuple[Kind, bytes]]:
    """What the captured frames hold."""
    found = []
    for frame in CAPTURED:
        with contextlib.suppress(RemoteProtocolError):
            if len(frame) == CURRENT.length(frame, 0):
                found.append(CURRENT.parse(frame))
    return found


PACKETS = packets()
LEGACY_PACKETS = [packet for packet in PACKETS if packet[0] is not Kind.HELLO]


def damaged(rng: random.Random, framing: Framing) -> bytes:
    """A frame that is damaged anywhere, or a sound one with a damaged message in it."""
    kind, body = rng.choice(PACKETS if framing is CURRENT else LEGACY_PACKETS)
    if rng.randrange(2):
        return framing.encode(kind, mutate(rng, [body]))
    if framing is CURRENT:
        return mend(rng, mutate(rng, CAPTURED))
    return mend(rng, mutate(rng, [LEGACY.encode(kind, body)]), at=4)


@pytest.mark.fuzz
@pytest.mark.timeout(600)
@pytest.mark.parametrize("framing", [CURRENT, LEGACY], ids=["current", "legacy"])
def test_mutated_frames_harm_nobody_but_their_sender(framing: Framing, caplog):
    rng = random.Random(random.random())  # pytest-randomly prints the seed of every run
    caplog.set_level(logging.ERROR, "polybus")
    bus = Bus(ManualClock(), GsbOptions(max_frame=1 << 20))
    service, caller = bus.client(), bus.client()
    service.say(Kind.REGISTER_REQUEST, encode_name("/neighbour"))
    fuzzed, frames, connections = bus.client(), 0, 1
    while frames < FRAMES:
        for piece in halves(rng, b"".join(damaged(rng, framing) for _ in range(rng.randint(1, 4)))):
            if piece and not fuzzed.closed:
                fuzzed.send(piece)
        frames += 2
        if fuzzed.closed or rng.randrange(200) == 0:
            fuzzed.hang_up()
            fuzzed = bus.client()
            connections += 1
        if frames % 1000 == 0:
            assert_served(service, caller, str(frames))
            bus.connections.tick(bus.clock.advance(0.5))
    assert connections > 100
    assert not errors(caplog)
    assert len(bus.connections.open) == 3
    fuzzed.hang_up()
    assert [registration.name for registration in bus.router.services] == ["/neighbour"]
    assert bus.router.subscribed("gsb") == 0
    bus.pass_time(2)
    assert isinstance(service.connection.session, GsbSession)
    assert not service.connection.session.in_flight
    assert not bus.room.waiting


def assert_served(service: Client, caller: Client, request_id: str) -> None:
    service.frames()
    caller.frames()
    request = CallRequest("neighbour", "/neighbour", request_id, b"still there?")
    caller.say(Kind.CALL_REQUEST, encode_call(request))
    assert [kind for kind, _ in service.frames()] == [Kind.CALL_REQUEST]
    service.say(Kind.CALL_REPLY, encode_reply(request_id, 0, b"yes"))
    assert [kind for kind, _ in caller.frames()] == [Kind.CALL_REPLY]
