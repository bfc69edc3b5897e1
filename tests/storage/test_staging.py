"""Bulk writers: staged chunks are invisible, published whole and once, and bad ones are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from polybus.core.engine import TopicOptions
from polybus.errors import Conflict, CorruptRecord, LimitExceeded, NoSuchTopic
from polybus.model.chunk import encode_chunk
from polybus.model.clock import ManualClock
from polybus.model.record import NewRecord
from polybus.storage import staging
from tests.storage.client import fetch_all, payloads, put, read_all
from tests.storage.conftest import Opener


def chunk(*values: bytes, times: list[int] | None = None) -> bytes:
    return encode_chunk(0, [NewRecord(value, tag="s") for value in values], times)


async def test_published_chunks_follow_what_is_there_in_order(opened: Opener, tmp_path: Path):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    await put(engine, "t", b"0")
    tickets = [await engine.stage("t", chunk(b"1", b"2")), await engine.stage("t", chunk(b"3"))]
    assert engine.topic("t").end == 1
    assert await engine.publish_staged("t", "sink", 5, tickets) == 1
    assert await put(engine, "t", b"4") == 4
    expected = [b"0", b"1", b"2", b"3", b"4"]
    assert payloads(await read_all(engine, "t")) == expected
    assert payloads(await fetch_all(engine, "t", 1)) == expected
    await engine.move_all()
    assert payloads(await read_all(engine, "t")) == expected
    assert list((tmp_path / "data" / "staged").iterdir()) == []


async def test_a_repeat_of_a_batch_does_nothing_also_after_restart(opened: Opener):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    ticket = await engine.stage("t", chunk(b"a"))
    await engine.stop()
    engine = await opened()
    assert await engine.publish_staged("t", "sink", 5, [ticket]) == 0
    for batch in (5, 4):
        assert await engine.publish_staged("t", "sink", batch, [ticket]) == 0
    await engine.stop()
    engine = await opened()
    assert await engine.publish_staged("t", "sink", 5, ["whatever"]) == 0
    assert await engine.publish_staged("t", "sink", 6, []) == 1
    other = await engine.stage("t", chunk(b"b"))
    assert await engine.publish_staged("t", "other sink", 1, [other]) == 1
    assert payloads(await read_all(engine, "t")) == [b"a", b"b"]


async def test_times_of_staged_records_are_kept_within_the_topic_s(
    opened: Opener, clock: ManualClock
):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    await put(engine, "t", b"x")
    begun = clock.wall_ms()
    clock.advance(10)
    times = [begun - 5, begun + 3000, begun + 10**8]
    ticket = await engine.stage("t", chunk(b"a", b"b", b"c", times=times))
    none = await engine.stage("t", chunk(b"d", times=[0]))
    await engine.publish_staged("t", "s", 1, [ticket, none])
    for _ in "tail", "segment":
        found = [record.time_ms - begun for record in await read_all(engine, "t")]
        assert found == [0, 0, 3000, 10_000, 10_000]
        assert await engine.offset_at("t", begun + 1) == 2
        await engine.move_all()


async def test_a_wrong_ticket_publishes_nothing(opened: Opener):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    await engine.declare("u", TopicOptions())
    ticket = await engine.stage("t", chunk(b"a"))
    foreign = await engine.stage("u", chunk(b"a"))
    for tickets in (
        [ticket, foreign],
        [ticket, ticket],
        [ticket, "../version"],
        [ticket, ticket[:-1] + "x"],
    ):
        with pytest.raises(Conflict):
            await engine.publish_staged("t", "s", 1, tickets)
    assert engine.topic("t").end == 0
    assert await engine.publish_staged("t", "s", 1, [ticket]) == 0


async def test_a_chunk_that_is_damaged_or_too_large_is_refused(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    with pytest.raises(CorruptRecord):
        await engine.stage("t", chunk(b"a")[:-1] + b"x")
    with pytest.raises(NoSuchTopic):
        await engine.stage("none", chunk(b"a"))
    monkeypatch.setattr(staging, "MAX_STAGED_BYTES", 1000)
    bomb = encode_chunk(0, [NewRecord(bytes(100_000))], compression="zlib")
    assert len(bomb) < 1000
    with pytest.raises(LimitExceeded):
        await engine.stage("t", bomb)


async def test_a_published_chunk_that_is_lost_is_reported(opened: Opener, tmp_path: Path):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    ticket = await engine.stage("t", chunk(b"a"))
    await engine.publish_staged("t", "s", 1, [ticket])
    whole = (tmp_path / "data" / "staged" / ticket).read_bytes()
    (tmp_path / "data" / "staged" / ticket).unlink()
    assert engine.cached("t", 0, 1, 1) is None
    with pytest.raises(CorruptRecord, match="gone"):
        await engine.read("t", 0, 1, 1)
    (tmp_path / "data" / "staged" / ticket).write_bytes(whole)
    assert payloads(await read_all(engine, "t")) == [b"a"]
