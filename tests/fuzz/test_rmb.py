"""Whatever a twin posts or a client pushes, it is answered or dropped, and its neighbour never notices."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from polybus.core.router import Router
from polybus.http.session import HttpSession
from polybus.http.settings import HttpSettings
from polybus.http.site import Site
from polybus.model.clock import ManualClock
from polybus.protocols.rmb.forward import Forward
from polybus.protocols.rmb.message import (
    GENERATIONS,
    Unreadable,
    encode,
    parse_lenient,
    parse_strict,
    salvage,
)
from polybus.protocols.rmb.options import RmbOptions
from polybus.protocols.rmb.peers import Answer
from polybus.protocols.rmb.resp import Command, RedisUrl
from polybus.protocols.rmb.room import RmbRoom
from polybus.protocols.rmb.signature import Signer, challenge, digest
from polybus.protocols.rmb.twins import FileDirectory
from polybus.transports.connection import Connections
from tests.fuzz.mutations import FRAMES, errors, halves, mutate
from tests.protocols.wiretap import Peer

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "rmb.json").read_text())


def texts(value: Any) -> list[bytes]:
    """Every captured message in the vectors."""
    if isinstance(value, str):
        return [value.encode()] if value.startswith("{") else []
    if isinstance(value, dict):
        found = [json.dumps(value).encode()] if "cmd" in value and "dst" in value else []
        return found + [t for item in value.values() for t in texts(item)]
    return [t for item in value for t in texts(item)] if isinstance(value, list) else []


CORPUS = sorted(set(texts(VECTORS)))
VALUES: list[Any] = [
    *(None, True, 0, 1, -1, 2, 3, 60, 2**31, 2**53 + 1, 2**63, -(2**64), 10**400, 1.5, 1e308),
    *("", "x", "2", "a.b", "\0", "\ud800", "é" * 100, "QQ==", "Q", "system.ping", "{}", "[]"),
    *([], [2], [3, 3], [2, 3, 9], ["2"], [[2]], [None], {}, {"a": 1}, {"dst": [2]}),
]


def damaged(rng: random.Random) -> bytes:
    """A message that is damaged anywhere, or still JSON with one to three fields that are not what they should be."""
    if rng.randrange(2):
        return mutate(rng, CORPUS)
    fields = json.loads(rng.choice(CORPUS))
    for _ in range(rng.randint(1, 3)):
        name = rng.choice([*fields, "ret", "tag", "sig", "new"])
        match rng.randrange(4):
            case 0:
                fields.pop(name, None)
            case 1:
                fields[name] = rng.choice(list(fields.values()) or [None])
            case _:
                fields[name] = rng.choice(VALUES)
    return json.dumps(fields, ensure_ascii=rng.randrange(2) == 0).encode("utf-8", "surrogatepass")


@pytest.mark.fuzz
@pytest.mark.timeout(600)
def test_mutated_messages_are_read_or_refused():
    rng = random.Random(random.random())  # pytest-randomly prints the seed of every run
    read = 0
    for _ in range(FRAMES // 4):
        text = damaged(rng)
        for parse in (parse_strict, parse_lenient):
            try:
                m = parse(text)
            except Unreadable as exc:
                salvage(exc)
                continue
            read += 1
            assert len(digest(m)) == 16
            assert challenge(m).endswith((b"true", b"false"))
            for generation in ("rs", "v1", "v2"):
                again = parse_lenient(encode(m, generation))
                assert (again.uid, again.dst, again.now) == (m.uid, m.dst, m.now)
    assert read > FRAMES // 40


class RecordingRedis:
    """Stands where the network begins: keeps the commands and confirms them at once."""

    connected = True

    def __init__(self) -> None:
        self.commands: list[Command] = []

    def write(self, commands: list[Command], written: Any = None) -> None:
        self.commands += commands
        if written is not None:
            written([1] * len(commands))

    def send(self, commands: Sequence[Command], answered: Any) -> None:
        self.commands += commands
        answered([1] * len(commands))


class AtOnce:
    """Does the work of the threads in place, so that an answer follows its request."""

    def submit(self, work: Any, done: Any) -> None:
        done(work())


def make_room(folder: Path, clock: ManualClock, options: RmbOptions) -> RmbRoom:
    """Twin 2 without a network: 1 signs as it does itself, 3 need not."""
    signer = Signer("ed25519", b"\1" * 32)
    entry = {"address": "127.0.0.1", "public_key": signer.public_key.hex()}
    unsigned = {"address": "127.0.0.1", "allow_unsigned": True, "generation": "v1"}
    twins = [{"id": 1} | entry, {"id": 2} | entry, {"id": 3} | unsigned]
    (folder / "twins.json").write_text(json.dumps(twins))
    room = RmbRoom(Router(clock), options, signer, "", RedisUrl("127.0.0.1"))
    room.directory = FileDirectory(folder / "twins.json", clock.monotonic)
    room.redis = RecordingRedis()  # type: ignore[assignment]
    room.bulk = AtOnce()  # type: ignore[assignment]
    room._running = [None]  # type: ignore[list-item]
    return room


class RandomPeers:
    """Every other twin: it takes a message, refuses it or is not there."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def post(self, place: Any, path: str, body: bytes, answered: Any, headers: str = "") -> None:
        answered(Answer(self._rng.choice([0, 202, 200, 400]), b"text", "reason"))


@pytest.mark.fuzz
@pytest.mark.timeout(600)
@pytest.mark.parametrize("generation", GENERATIONS)
async def test_mutated_entries_of_the_queues_harm_nobody(tmp_path: Path, caplog, generation):
    caplog.set_level(logging.ERROR, "polybus")
    rng = random.Random(random.random())
    clock = ManualClock()
    room = make_room(tmp_path, clock, RmbOptions(twin=2, generation=generation, proxy=True))
    room.peers = RandomPeers(rng)  # type: ignore[assignment]
    room.forward = Forward(room)
    room.later = lambda seconds, work: None  # type: ignore[method-assign]
    for number in range(FRAMES // 32):
        text = damaged(rng)
        for take in (room.local.take, room.answers.take, room.remote.take_queue, room.forward.take):
            take([text])
        if number % 100 == 0:
            await asyncio.sleep(0)
            room.forward.take([f"{each.uid}.{each.dst}".encode() for each in room.pending])
    assert room.stats.local == FRAMES // 32
    assert room.stats.refused
    assert not errors(caplog)
    clock.advance(2 * 3600)
    late = [each for each in room.pending if each.deadline_ms <= clock.wall_ms()]
    room.tick()
    assert not any(each.key in room.pending for each in late)


@pytest.mark.fuzz
@pytest.mark.timeout(600)
async def test_mutated_requests_harm_nobody_but_their_sender(tmp_path: Path, caplog):
    caplog.set_level(logging.ERROR, "polybus")
    rng = random.Random(random.random())
    clock = ManualClock()
    room = make_room(tmp_path, clock, RmbOptions(twin=2))
    redis: Any = room.redis
    site = Site(HttpSettings(max_body=1 << 20))
    room.remote.register(site)
    connections = Connections(clock)

    def client() -> Peer:
        return Peer(connections, lambda connection: HttpSession(site))

    def post(path: str, body: bytes) -> bytes:
        return f"POST {path} HTTP/1.1\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body

    paths = [
        "/zbus-remote",
        "/zbus-reply",
        "/rmb-remote",
        "/rmb-reply",
        "/zbus-cmd",
        "/zbus-upload",
    ]
    fuzzed, neighbour, made = client(), client(), 0
    for number in range(FRAMES // 8):
        raw = post(rng.choice(paths), damaged(rng))
        for piece in halves(rng, raw if rng.randrange(3) else mutate(rng, [raw])):
            if piece and not fuzzed.closed:
                fuzzed.send(piece)
        made += 1
        if fuzzed.closed or rng.randrange(100) == 0:
            fuzzed.hang_up()
            fuzzed = client()
        if number % 500 == 0:
            m = json.loads(CORPUS[0]) | {"src": 3, "dst": [2], "now": clock.wall_ms() // 1000}
            m |= {"uid": f"n{number}", "cmd": "cap.echo", "exp": 30}
            neighbour.send(post("/zbus-remote", json.dumps(m).encode()))
            await asyncio.sleep(0)  # what a turn has to say leaves when it ends
            assert b'{"status": "accepted"}' in neighbour.received()
            clock.advance(0.5)
            connections.tick(clock.monotonic())
    assert made
    assert not errors(caplog)
    # Nothing that was posted reached a queue of the bus itself.
    written = {str(command[1]) for command in redis.commands if command[0] == "LPUSH"}
    assert not any(key.startswith("msgbus.system.") for key in written)
