"""Whatever a client of the T2 Bus sends, it is served or closed, and its neighbour never notices."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path

import pytest

from polybus.errors import RemoteProtocolError
from polybus.model.clock import ManualClock
from polybus.protocols.t2.cbor import count_elements
from polybus.protocols.t2.relay import count_bytes
from polybus.protocols.t2.wire import (
    CLIENT_KINDS,
    MAX_BODY,
    SERVER_KINDS,
    encode_data,
    encode_frame,
    parse_message,
    payload_content,
)
from tests.fuzz.mutations import FRAMES, errors, halves, mend, mutate
from tests.protocols.t2.conftest import Bus, Client

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "t2.json").read_text())
STEPS = [s for v in VECTORS for s in v["steps"] if s["hex"] and not s.get("truncated")]
FROM_CLIENTS = sorted({bytes.fromhex(s["hex"]) for s in STEPS if s["from"] != "server"})
FROM_SERVER = sorted({bytes.fromhex(s["hex"]) for s in STEPS if s["from"] == "server"})
# A sound Stop ends everybody's connection, as it should.
CORPUS = [frame for frame in FROM_CLIENTS if b"dStop" not in frame and len(frame) < 5000]


@pytest.mark.fuzz
@pytest.mark.timeout(600)
def test_mutated_frames_harm_nobody_but_their_sender(caplog):
    rng = random.Random(random.random())  # pytest-randomly prints the seed of every run
    caplog.set_level(logging.ERROR, "polybus")
    bus = Bus(ManualClock())
    service, caller = bus.client(), bus.client()
    service.topic("Srv", "neighbour")
    fuzzed, frames, connections = bus.client(), 0, 1
    while frames < FRAMES:
        for piece in halves(
            rng, b"".join(mend(rng, mutate(rng, CORPUS)) for _ in range(rng.randint(1, 4)))
        ):
            if piece and not fuzzed.closed:
                fuzzed.send(piece)
        frames += 2
        if fuzzed.closed or rng.randrange(20) == 0:
            fuzzed.messages()  # all that it was sent can be read
            fuzzed.hang_up()
            fuzzed = bus.client()
            connections += 1
        if frames % 1000 == 0:
            assert_served(service, caller)
            bus.pass_time(1)
    assert connections > 100
    assert len(bus.connections.open) == 3
    assert not errors(caplog)
    fuzzed.hang_up()
    assert [registration.name for registration in bus.router.services] == ["neighbour"]
    assert bus.router.subscribed("t2") == 0
    assert not bus.room.in_flight()
    assert not bus.room.waiting


def assert_served(service: Client, caller: Client) -> None:
    service.received()
    caller.received()
    asked = caller.payload("Req", "neighbour", b"still there?")
    (request,) = (m for m in service.messages() if m.kind == "Req")
    service.respond(request.id, b"yes")
    response = caller.messages()[-1]
    assert (response.req_id, response.payload()) == (asked, b"yes")
    for client in (service, caller):
        client.unit("KeepAlive")
        client.received()


@pytest.mark.fuzz
@pytest.mark.timeout(600)
@pytest.mark.parametrize("side", ["clients", "server"])
def test_mutated_messages_are_read_or_refused_and_read_the_same_when_written_again(side):
    rng = random.Random(random.random())
    kinds = CLIENT_KINDS if side == "clients" else SERVER_KINDS
    corpus = [f[4:] for f in (FROM_CLIENTS if side == "clients" else FROM_SERVER) if len(f) < 5000]
    read = 0
    for _ in range(FRAMES // 2):
        try:
            message = parse_message(mutate(rng, corpus), kinds)
        except RemoteProtocolError:
            continue
        read += 1
        assert len(message.data) <= MAX_BODY
        if message.kind in ("Pub", "Req"):
            content = payload_content(message.kind, message.topic, message.data, message.compressed)
            again = parse_message(encode_frame(message.id, content)[4:], kinds)
            assert (again.topic, again.data) == (message.topic, message.data)
    assert read > 100


@pytest.mark.fuzz
def test_the_two_counters_of_payload_elements_agree_on_anything():
    rng = random.Random(random.random())
    sound = b"".join(encode_data(bytes([n]))[1:] for n in range(24)) + b"\x18\x18\x18\xff\x18\x20"
    for _ in range(FRAMES // 4):
        span = mutate(rng, [sound, rng.randbytes(12), b"\x18" * rng.randint(0, 9)])
        assert count_bytes(span, 0, len(span)) == count_elements(span)


class Pair:
    """A bus with somebody who sends and somebody who gets."""

    def __init__(self) -> None:
        self.bus = Bus(ManualClock())
        self.sender, self.getter = self.bus.client(), self.bus.client()
        for topic in ("**", "a/*"):
            self.getter.topic("Sub", topic)
        for topic in ("a", "echo", "string/a"):
            self.getter.topic("Srv", topic)

    def take(self, body: bytes) -> tuple[bytes, bytes, bool]:
        self.sender.send(len(body).to_bytes(4, "big") + body)
        return self.sender.received(), self.getter.received(), self.sender.closed


@pytest.mark.fuzz
@pytest.mark.timeout(600)
def test_the_fast_way_and_the_full_way_agree_on_damaged_messages(caplog):
    """A tag in front of a message is legal and sends it the full way."""
    caplog.set_level(logging.CRITICAL, "polybus")
    rng = random.Random(random.random())
    corpus = [frame[4:] for frame in CORPUS]
    fast, full, sound = Pair(), Pair(), 0
    for _ in range(FRAMES // 4):
        body = mutate(rng, corpus) if rng.randrange(4) else rng.choice(corpus)
        if len(body) < 60:
            body += rng.randbytes(
                60
            )  # what follows the item is ignored, and the fast way must see it
        got = fast.take(body)
        assert got == full.take(b"\xc1" + body), body.hex()
        if got[2]:
            fast, full = Pair(), Pair()
        else:
            sound += 1
    assert sound > 1000
