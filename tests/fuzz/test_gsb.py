"""Whatever a client of the Golem bus sends, it is served or closed, and its neighbour never notices."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path

import pytest

from polybus.model.clock import ManualClock
from polybus.protocols.gsb.room import GsbOptions
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
from tests.fuzz.mutations import FRAMES, halves, mutate
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


def legacy_frames() -> list[bytes]:
    """The captured packets in the other framing."""
    found = []
    for frame in CAPTURED:
        if len(frame) > 6 and 2 <= frame[4] >> 3 <= 15 and frame[4] & 7 == 2:
            kind, body = Kind(frame[4] >> 3), frame[6:]
            found.append(LEGACY.encode(kind, body))
    return found


@pytest.mark.fuzz
@pytest.mark.timeout(600)
@pytest.mark.parametrize("framing", [CURRENT, LEGACY], ids=["current", "legacy"])
def test_mutated_frames_harm_nobody_but_their_sender(framing: Framing, caplog):
    rng = random.Random(random.random())  # pytest-randomly prints the seed of every run
    corpus = CAPTURED if framing is CURRENT else legacy_frames()
    caplog.set_level(logging.CRITICAL, "polybus")
    bus = Bus(ManualClock(), GsbOptions(max_frame=1 << 20))
    service, caller = bus.client(), bus.client()
    service.say(Kind.REGISTER_REQUEST, encode_name("/neighbour"))
    fuzzed, frames, connections = bus.client(), 0, 1
    while frames < FRAMES:
        for piece in halves(rng, b"".join(mutate(rng, corpus) for _ in range(rng.randint(1, 4)))):
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
    assert len(bus.connections.open) == 3
    fuzzed.hang_up()
    assert [registration.name for registration in bus.router.services] == ["/neighbour"]


def assert_served(service: Client, caller: Client, request_id: str) -> None:
    service.frames()
    caller.frames()
    request = CallRequest("neighbour", "/neighbour", request_id, b"still there?")
    caller.say(Kind.CALL_REQUEST, encode_call(request))
    assert [kind for kind, _ in service.frames()] == [Kind.CALL_REQUEST]
    service.say(Kind.CALL_REPLY, encode_reply(request_id, 0, b"yes"))
    assert [kind for kind, _ in caller.frames()] == [Kind.CALL_REPLY]
