"""What tests do with an engine: append and wait, read all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from polybus.core.engine import Engine
from polybus.errors import PolybusError
from polybus.model.chunk import parse_chunk
from polybus.model.record import NewRecord, Record


def begin(engine: Engine, topic: str, *records: NewRecord) -> asyncio.Future[int]:
    """Append without waiting."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def done(offset: int, error: PolybusError | None) -> None:
        if error is None:
            future.set_result(offset)
        else:
            future.set_exception(error)

    engine.append(topic, records, done)
    return future


async def put(engine: Engine, topic: str, *payloads: bytes | NewRecord) -> int:
    """Append in one call and wait; the first offset."""
    records = [p if isinstance(p, NewRecord) else NewRecord(p) for p in payloads]
    return await begin(engine, topic, *records)


async def read_all(engine: Engine, topic: str) -> list[Record]:
    """Every record a topic holds, by `read`."""
    info = engine.topic(topic)
    found: list[Record] = []
    at = info.first
    while at < info.end:
        more = await engine.read(topic, at, 1000, 1 << 20)
        assert more
        assert [record.offset for record in more] == list(range(at, at + len(more)))
        found += more
        at += len(more)
    return found


async def fetch_all(engine: Engine, topic: str, max_bytes: int = 4096) -> list[Record]:
    """Every record a topic holds, by `fetch`, which finds the same whoever verifies it."""
    info = engine.topic(topic)
    either: list[list[Record]] = []
    for verify in (True, False):
        found: list[Record] = []
        at = info.first
        while at < info.end:
            part = await engine.fetch(topic, at, info.end, max_bytes, verify=verify)
            for chunk in part.chunks:
                found += parse_chunk(chunk).slice(at, info.end)
                at = found[-1].offset + 1
            assert at == part.next
        either.append(found)
    assert either[0] == either[1]
    return either[0]


def payloads(records: Sequence[Record]) -> list[bytes]:
    return [record.payload for record in records]
