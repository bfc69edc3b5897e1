"""The twin directory: its two spellings, its sources, and how long it is believed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from polybus.errors import ConfigError
from polybus.model.clock import ManualClock
from polybus.protocols.rmb.keys import encode_account
from polybus.protocols.rmb.peers import Answer, Place, parse_place
from polybus.protocols.rmb.twins import (
    FileDirectory,
    GraphqlDirectory,
    UrlDirectory,
    parse_directory,
)
from tests.protocols.rmb.peer import foreign_peer
from tests.protocols.rmb.twins import Twin, World, signer_of, until
from tests.protocols.rmb.vectors import SIGNATURES

KEY = SIGNATURES[0]["public_key_hex"]
ACCOUNT = SIGNATURES[0]["ss58"]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("10.0.0.1", Place("10.0.0.1", 8051)),
        ("node.example", Place("node.example", 8051)),
        ("node.example:80", Place("node.example", 80)),
        ("::1", Place("::1", 8051)),
        ("302:9e63:7d43:b742::1", Place("302:9e63:7d43:b742::1", 8051)),
        ("[::1]:9000", Place("::1", 9000)),
        ("http://node.example", Place("node.example", 80)),
        ("https://node.example", Place("node.example", 443, True)),
        ("https://node.example:8443/", Place("node.example", 8443, True)),
    ],
)
def test_an_address_is_a_host_a_port_or_a_url(text, place):
    assert parse_place(text) == place


@pytest.mark.parametrize(
    "text", ["", "host:port", "host/path", "a b:99999", "user@host", "http://"]
)
def test_an_address_that_is_none_is_refused(text):
    with pytest.raises(ConfigError):
        parse_place(text)


def test_toml_and_json_mean_the_same():
    toml = f'[[twin]]\nid = 1\naddress = "a"\npublic_key = "0x{KEY}"\n[[twin]]\nid = 2\n'
    toml += f'address = "b:1"\naccount = "{ACCOUNT}"\ngeneration = "v1"\nallow_unsigned = true\n'
    entries = [
        {"id": 1, "address": "a", "public_key": KEY},
        {
            "id": 2,
            "address": "b:1",
            "account": ACCOUNT,
            "generation": "v1",
            "allow_unsigned": True,
        },
    ]
    twins = parse_directory(toml)
    assert twins == parse_directory(json.dumps(entries))
    assert twins[1].public_key == twins[2].public_key == bytes.fromhex(KEY)
    assert (twins[2].generation, twins[2].allow_unsigned) == ("v1", True)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"id": "1", "address": "a", "public_key": KEY}, "id is a number"),
        ({"id": -1, "address": "a", "public_key": KEY}, "id is a number"),
        ({"id": True, "address": "a", "public_key": KEY}, "id is a number"),
        ({"id": 1, "public_key": KEY}, "address is a text"),
        ({"id": 1, "address": "a"}, "neither public_key nor account"),
        ({"id": 1, "address": "a", "public_key": "12"}, "twin 1: '12' is no public key"),
        ({"id": 1, "address": "a", "public_key": 12}, "are texts"),
        ({"id": 1, "address": "a", "account": "5x"}, "no SS58 account"),
        (
            {"id": 1, "address": "a", "account": ACCOUNT, "public_key": "ab" * 32},
            "two different keys",
        ),
        ({"id": 1, "address": "a", "public_key": KEY, "generation": "v3"}, "generation is one of"),
        ({"id": 1, "address": "a", "public_key": KEY, "key": "x"}, "unknown key 'key'"),
        ({"id": 1, "address": "a:b", "public_key": KEY}, "bad address"),
        (7, "is no twin"),
    ],
)
def test_an_entry_with_a_mistake_is_refused_by_its_number(entry, why):
    with pytest.raises(ConfigError, match=why):
        parse_directory(json.dumps([entry]))


@pytest.mark.parametrize("text", ["{", "[1", '{"twin": 1}', "a = ", "[" * 100_000])
def test_text_that_is_no_directory_is_refused(text):
    with pytest.raises(ConfigError):
        parse_directory(text)


def test_a_twin_that_is_listed_twice_is_refused():
    entry = {"id": 1, "address": "a", "public_key": KEY}
    with pytest.raises(ConfigError, match="listed twice"):
        parse_directory(json.dumps([entry, entry]))


def write(path: Path, *numbers: int) -> None:
    entries = [{"id": n, "address": f"host-{n}", "public_key": KEY} for n in numbers]
    path.write_text(json.dumps(entries))


def test_a_file_is_read_again_when_it_changes(tmp_path: Path, clock: ManualClock):
    path = tmp_path / "twins.json"
    write(path, 1)
    directory = FileDirectory(path, clock.monotonic)
    write(path, 1, 2)
    assert directory.get(2) is None  # looked at a moment ago
    clock.advance(1)
    assert directory.get(2) is not None
    write(path, 3)
    directory.forget(1)
    assert directory.get(1) is None
    assert [twin.id for twin in directory.all()] == [3]


def test_a_file_that_became_unreadable_leaves_the_last_good_one(
    tmp_path: Path, clock: ManualClock, caplog
):
    path = tmp_path / "twins.json"
    write(path, 1)
    directory = FileDirectory(path, clock.monotonic)
    for text in (b"{", b"\xff"):
        path.write_bytes(text)
        clock.advance(1)
        assert directory.get(1) is not None
    path.unlink()
    clock.advance(1)
    assert directory.get(1) is not None
    assert caplog.text.count("keeping the last good") == 3


def test_a_file_that_is_not_there_is_refused_at_the_start(tmp_path: Path, clock: ManualClock):
    with pytest.raises(ConfigError, match="No such file"):
        FileDirectory(tmp_path / "none", clock.monotonic)


class Site:
    """An HTTP server of a few lines that answers every request with one body."""

    def __init__(self) -> None:
        self.port = 0
        self.requests: list[tuple[str, bytes]] = []
        self.status = 200
        self.answers: dict[int, object] = {}
        self.graphql = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        size = next(
            (int(line[15:]) for line in head.split("\r\n") if line.startswith("content-length")), 0
        )
        body = await reader.readexactly(size)
        self.requests.append((head.split("\r\n")[0], body))
        text = json.dumps(self._answer(body)).encode()
        writer.write(
            f"HTTP/1.1 {self.status} X\r\ncontent-length: {len(text)}\r\n\r\n".encode() + text
        )
        writer.close()

    def _answer(self, body: bytes) -> object:
        if not self.graphql:
            return list(self.answers.values())
        number = json.loads(body)["variables"]["id"]
        found = self.answers.get(number)
        return {"data": {"twins": [found] if found else []}}


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    made = Site()
    listening = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = listening.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        listening.close()


@pytest.mark.parametrize("graphql", [False, True], ids=["list", "graphql"])
async def test_a_directory_on_the_network_is_asked_and_believed_for_a_while(
    world: World, clock: ManualClock, graphql: bool
):
    async with site() as directory:
        one, two = Twin(world, 1), Twin(world, 2)
        world.twins = {1: one, 2: two}
        directory.graphql = graphql
        for twin in (one, two):
            key = signer_of(twin.number).public_key
            address = f"127.0.0.1:{twin.port}"
            account = encode_account(key)
            directory.answers[twin.number] = (
                {"twinID": twin.number, "accountID": account, "ip": address}
                if graphql
                else {"id": twin.number, "account": account, "address": address}
            )
        url = f"{'graphql+' if graphql else ''}http://127.0.0.1:{directory.port}/twins"
        world.directory = url  # type: ignore[assignment]
        for twin in (one, two):
            await twin.start_redis()
            await twin.start()
        two.echo()
        assert (await one.read(await one.push()))["src"] == 2
        asked = len(directory.requests)
        assert (await one.read(await one.push()))["src"] == 2
        assert len(directory.requests) == asked
        cached = json.loads(await one.client.get("twin.2"))
        assert (cached["version"], cached["id"], cached["entities"]) == (1, 2, [])
        assert cached["address"] == f"127.0.0.1:{two.port}"
        clock.advance(601)
        assert (await one.read(await one.push()))["src"] == 2
        assert len(directory.requests) > asked
        assert "not found" in (await one.read(await one.push(dst=[999])))["err"]
        # A list that cannot be had leaves what was read within the cache time.
        directory.status = 500
        one.room.directory.forget(2)
        assert (await one.read(await one.push()))["src"] == 2
        clock.advance(601)
        assert "not found" in (await one.read(await one.push()))["err"]


@pytest.mark.parametrize("graphql", [False, True], ids=["list", "graphql"])
async def test_a_twin_of_a_directory_on_the_network_is_tried_as_often_as_any(world: World, graphql):
    """Its entry is doubted after the first attempt, and nothing newer is to be had at once."""
    async with site() as directory, foreign_peer() as peer:
        peer.answers = [0]
        account = encode_account(signer_of(2).public_key)
        address = f"127.0.0.1:{peer.port}"
        directory.graphql = graphql
        directory.answers[2] = (
            {"twinID": 2, "accountID": account, "ip": address}
            if graphql
            else {"id": 2, "account": account, "address": address}
        )
        one = Twin(world, 1)
        world.twins = {1: one}
        prefix = "graphql+" if graphql else ""
        world.directory = f"{prefix}http://127.0.0.1:{directory.port}/twins"  # type: ignore[assignment]
        await one.start_redis()
        await one.start()
        answer = await one.read(await one.push(**{"try": 3}))
        assert "failed to deliver message" in answer["err"]
        assert len(peer.posted) == 3


async def test_a_twin_that_there_is_not_is_asked_for_once_in_a_while(clock: ManualClock):
    asked: list[str] = []

    async def fetch(url: str, body: bytes | None = None) -> Answer:
        asked.append(url)
        await asyncio.sleep(0)
        return Answer(200, b'{"data": {"twins": []}}')

    made = GraphqlDirectory("http://nowhere", fetch, clock.monotonic, 600)
    assert await asyncio.gather(*(made.fetch(5) for _ in range(20))) == [None] * 20
    assert await made.fetch(5) is None
    assert len(asked) == 1
    clock.advance(6)
    assert await made.fetch(5) is None
    assert len(asked) == 2


async def test_answers_that_are_no_directory_are_refused(clock: ManualClock):
    bodies = [b"", b"[]", b'{"data": null}', b'{"data": {"twins": [{}]}}', b"5", b"[" * 100_000]

    async def fetch(url: str, body: bytes | None = None) -> Answer:
        return Answer(200, bodies[0])

    while bodies:
        for kind in (GraphqlDirectory, UrlDirectory):
            made = kind("http://nowhere", fetch, clock.monotonic, 600)
            assert await made.fetch(1) is None
            assert list(made.all()) == []
        bodies.pop(0)
    await until(lambda: True)
