"""Whatever comes over HTTP, a WebSocket or the Zbus wire, it is served or closed, and its neighbour never notices."""

from __future__ import annotations

import json
import logging
import random
import struct
from pathlib import Path

import pytest

from polybus.errors import RemoteProtocolError
from polybus.http.chunked import ChunkedBody
from polybus.http.head import BadHead
from polybus.protocols.zbus.wire import MessageReader
from tests.fuzz.mutations import FRAMES, halves, mutate
from tests.protocols.zbus.bus import Bus, Client

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "zbus.json").read_text())


def captured(*, by_server: bool, websocket: bool = False) -> list[bytes]:
    return sorted(
        bytes.fromhex(step["hex"])
        for vector in VECTORS
        for step in vector["steps"]
        if step["hex"]
        and (step["from"] == "server") is by_server
        and ("websocket" in vector["name"]) is websocket
    )


HANDSHAKE = (
    b"GET /x HTTP/1.1\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
# What the captured clients never send, and others may.
FORMS = [
    b"POST /produce/T HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nt: u\r\n\r\n",
    b"POST /produce/T HTTP/1.1\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\nabc",
    b"HEAD /query HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
    b"GET / HTTP/1.1\r\ncmd: route\r\nrecver: nobody\r\nid: 1\r\ncontent-length: 2\r\n\r\n{}",
    b"GET /rpc/R/plus/1/2?module=M&&appid=a&&token=t HTTP/1.1\r\n\r\n",
    b'GET / HTTP/1.1\r\ncmd: track_pub\r\nid: 1\r\ncontent-length: 13\r\n\r\n{"live":false}',
    HANDSHAKE,
]


@pytest.fixture
def faults(caplog):
    """Connections that were cut because of a mistake of ours; the log of what peers did wrong is left out."""
    caplog.set_level(logging.ERROR, "polybus")
    caplog.set_level(logging.ERROR, "asyncio")
    return caplog


async def assert_served(neighbour: Client, number: int) -> None:
    neighbour.received()
    answer = await neighbour.one("produce", b"still there?", topic="Mine", id=f"n{number}")
    assert (answer.status, answer.id) == (200, f"n{number}")


@pytest.mark.fuzz
@pytest.mark.timeout(600)
async def test_mutated_requests_harm_nobody_but_their_sender(faults):
    rng = random.Random(random.random())  # pytest-randomly prints the seed of every run
    corpus = captured(by_server=False) + FORMS
    connections = 1
    async with Bus() as bus:
        neighbour = bus.client()
        await neighbour.one("declare", topic="Mine")
        fuzzed = bus.client()
        for number in range(FRAMES // 4):
            data = b"".join(mutate(rng, corpus) for _ in range(rng.randint(1, 3)))
            for piece in halves(rng, data):
                if piece and not fuzzed.peer.closed:
                    fuzzed.peer.send(piece)
            if fuzzed.peer.closed or rng.randrange(100) == 0:
                await fuzzed.hang_up()
                fuzzed = bus.client()
                connections += 1
            if number % 200 == 0:
                await assert_served(neighbour, number)
                await bus.tick(0.5)
        await fuzzed.hang_up()
        assert connections > 100
        assert len(bus.connections.open) == 1
        assert len(bus.room.parties) == 1
        assert bus.room.pending() == 0
        assert not bus.room.tracers
    assert not faults.records


def masked(rng: random.Random, opcode: int, payload: bytes) -> bytes:
    """One frame as a client sends it."""
    key = rng.randbytes(4)
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + struct.pack(">H", size)
    return bytes([opcode]) + length + key + bytes(b ^ key[i % 4] for i, b in enumerate(payload))


@pytest.mark.fuzz
@pytest.mark.timeout(600)
async def test_mutated_websocket_frames_harm_nobody_but_their_sender(faults):
    rng = random.Random(random.random())
    messages = captured(by_server=False)
    corpus = [masked(rng, code, rng.choice(messages)[:1000]) for code in (0x81, 0x82, 1, 0x80) * 8]
    corpus += [masked(rng, code, b"") for code in (0x88, 0x89, 0x8A)]
    connections = 0
    async with Bus() as bus:
        neighbour = bus.client()
        await neighbour.one("declare", topic="Mine")
        fuzzed: Client | None = None
        for number in range(FRAMES // 8):
            if fuzzed is None:
                fuzzed = bus.client()
                fuzzed.peer.send(HANDSHAKE)
                connections += 1
            # Half of the frames are whole, and what they carry is damaged instead.
            damaged = mutate(rng, messages)[:60_000]
            frame = mutate(rng, corpus) if rng.randrange(2) else masked(rng, 0x81, damaged)
            for piece in halves(rng, frame):
                if piece and not fuzzed.peer.closed:
                    fuzzed.peer.send(piece)
            if fuzzed.peer.closed or rng.randrange(50) == 0:
                fuzzed.peer.received()
                await fuzzed.hang_up()
                fuzzed = None
            if number % 200 == 0:
                await assert_served(neighbour, number)
                await bus.tick(0.5)
        if fuzzed is not None:
            await fuzzed.hang_up()
        assert connections > 100
        assert len(bus.connections.open) == 1
        assert len(bus.room.parties) == 1
    assert not faults.records


@pytest.mark.fuzz
@pytest.mark.timeout(600)
def test_mutated_chunks_are_a_body_or_refused_in_any_split():
    rng = random.Random(random.random())
    corpus = [
        b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nt: u\r\n\r\n",
        b"0\r\n\r\n",
        b"a\r\n0123456789\r\n00\r\n\r\n",
        b"1\r\nx\r\n" * 9 + b"0\r\n\r\n",
    ]

    def read(pieces: list[bytes]) -> tuple[str, int, bytes]:
        body = ChunkedBody(64)
        at = 0
        try:
            for piece in pieces:
                at += body.feed(piece, 0)
                assert body.have <= 64
        except BadHead as exc:
            return "refused", exc.status, b""
        return "done" if body.done else "open", at, body.take()

    done = 0
    for _ in range(FRAMES):
        data = mutate(rng, corpus)
        whole = read([data])
        assert read(list(halves(rng, data))) == whole
        done += whole[0] == "done"
    assert done > FRAMES // 300


@pytest.mark.fuzz
@pytest.mark.timeout(600)
def test_mutated_answers_are_read_or_refused_by_the_client_in_any_split():
    rng = random.Random(random.random())
    corpus = captured(by_server=True)

    def read(pieces: list[bytes]) -> object:
        reader = MessageReader(1 << 20)
        try:
            return [
                (found.status, found.headers, found.body)
                for piece in pieces
                for found in reader.feed(piece)
            ]
        except RemoteProtocolError:
            return "refused"

    understood = 0
    for _ in range(FRAMES // 2):
        data = mutate(rng, corpus)
        whole = read([data])
        split = read(list(halves(rng, data)))
        assert split == whole
        understood += whole != "refused"
    assert understood > FRAMES // 300
