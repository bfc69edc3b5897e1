"""Whatever a native client sends, it is served or closed, and its neighbour never notices."""

from __future__ import annotations

import logging
import random

import pytest

from polybus.model.record import NewRecord
from polybus.protocols.native import wire
from tests.core.memory_engine import MemoryEngine
from tests.fuzz.mutations import FRAMES, errors, halves, mend, mutate
from tests.protocols.native.room import Client
from tests.protocols.native.test_durable import DurableRoom

RECORDS = wire.encode_list([NewRecord(b"x", b"k", "t", {"h": "v"}, "i")])
CORPUS = [
    wire.encode(kind, 7, name, payload, arg=arg, meta=wire.encode_meta(meta))
    for kind, name, payload, arg, meta in [
        (wire.PING, "", b"", 0, {}),
        (wire.PONG, "", b"", 0, {}),
        (wire.REGISTER, "a/b", b"", 0, {}),
        (wire.UNREGISTER, "a/b", b"", 0, {}),
        (wire.CALL, "neighbour", b"x", 50, {"headers": {"a": "b"}}),
        (wire.REPLY, "", b"x", 0, {"headers": {"a": "b"}}),
        (wire.CANCEL, "", b"", 0, {}),
        (wire.SUBSCRIBE, "a/**", b"", 0, {}),
        (wire.UNSUBSCRIBE, "a/**", b"", 0, {}),
        (wire.PUBLISH, "a/*", b"x", 0, {"headers": {"a": "b"}}),
        (wire.PRODUCE, "t", RECORDS, 0, {}),
        (
            wire.CONSUME,
            "t",
            b"",
            0,
            {"group": "g", "start": {"at": "end"}, "options": {"window": 3}},
        ),
        (wire.CREDIT, "", b"", 0, {"records": 3, "bytes": 100}),
        (wire.ACK, "", wire.encode_list([0, 1]), 0, {}),
        (wire.NACK, "", wire.encode_list([0]), 0, {"delay_ms": 1, "reason": "r"}),
        (wire.LEAVE, "", b"", 0, {}),
        (wire.ASK, "topic/declare", b"", 0, {"topic": "u", "options": {"retain_ms": 3}}),
        (wire.ASK, "group/list", b"", 0, {"topic": "t"}),
        (wire.ASK, "services", b"", 0, {}),
        (wire.GOODBYE, "", b"", 0, {}),
    ]
]


@pytest.mark.fuzz
@pytest.mark.timeout(600)
async def test_mutated_frames_harm_nobody_but_their_sender(caplog):
    rng = random.Random(random.random())  # pytest-randomly prints the seed of every run
    caplog.set_level(logging.ERROR, "polybus")
    room = await DurableRoom(MemoryEngine()).start()
    service, caller = room.connect(), room.connect()
    service.serve("neighbour")
    fuzzed, frames, connections = room.connect(), 0, 1
    while frames < FRAMES // 2:
        data = b"".join(mend(rng, mutate(rng, CORPUS)) for _ in range(rng.randint(1, 4)))
        for piece in halves(rng, data):
            if piece and not fuzzed.closed:
                fuzzed.send(piece)
        frames += 2
        if fuzzed.closed or rng.randrange(200) == 0:
            fuzzed.hang_up()
            fuzzed = room.connect()
            connections += 1
        if frames % 1000 == 0:
            await room.settle()
            answer_pending(service)
            assert_served(service, caller, frames)
            room.pass_time(0.5)
    fuzzed.hang_up()
    await room.settle()
    assert connections > 100
    assert not errors(caplog)
    assert len(room.connections.open) == 2
    assert [registration.name for registration in room.router.services] == ["neighbour"]
    assert room.router.calls.pending == 0


def answer_pending(service: Client) -> None:
    for frame in service.heard():
        if frame.kind == wire.CALL:
            service.say(wire.REPLY, frame.id)


def assert_served(service: Client, caller: Client, ident: int) -> None:
    caller.received()
    caller.say(wire.CALL, ident, "neighbour", b"still there?")
    call = service.one()
    service.say(wire.REPLY, call.id, "", b"yes")
    assert caller.one().payload == b"yes"
