"""The embedded engine does what the contract says, before and after moving and restarting."""

from __future__ import annotations

import asyncio

import pytest

from polybus.core.engine import Append, GroupState, Move, TopicOptions
from polybus.errors import (
    Draining,
    FolderInUse,
    InvalidName,
    LimitExceeded,
    NoSuchGroup,
    NoSuchTopic,
    OutOfRange,
)
from polybus.model.chunk import MAX_RECORDS
from polybus.model.clock import ManualClock
from polybus.model.ends import ends_of
from polybus.model.record import NewRecord
from polybus.storage import batches
from polybus.storage.engine import StorageOptions
from tests.storage.client import begin, fetch_all, payloads, put, read_all
from tests.storage.conftest import Opener

FULL = NewRecord(b"payload", b"key", "tag", {"a": "1", "b": "ü"}, "id-1")


async def test_a_new_folder_has_no_topics(opened: Opener):
    assert (await opened()).topics() == []


async def test_offsets_are_dense_from_zero(opened: Opener):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    assert [await put(engine, "t", b"a"), await put(engine, "t", b"b", b"c")] == [0, 1]
    assert await put(engine, "t", *[b"x"] * 20) == 3
    assert (engine.topic("t").first, engine.topic("t").end) == (0, 23)


async def test_what_is_read_equals_what_was_put_in_tail_segment_and_after_restart(opened: Opener):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    await put(engine, "t", FULL, b"plain")
    await put(engine, "t", *[NewRecord(b"%d" % n, tag="x" if n % 2 else "") for n in range(30)])
    tail = await read_all(engine, "t")
    assert (tail[0].payload, tail[0].key, tail[0].tag) == (b"payload", b"key", "tag")
    assert (tail[0].headers, tail[0].id) == ({"a": "1", "b": "ü"}, "id-1")
    assert payloads(tail[1:]) == [b"plain"] + [b"%d" % n for n in range(30)]
    assert await fetch_all(engine, "t") == tail
    await engine.move_all()
    assert await read_all(engine, "t") == tail
    assert await fetch_all(engine, "t") == tail
    await engine.stop()
    engine = await opened()
    assert await read_all(engine, "t") == tail
    assert await fetch_all(engine, "t", 1) == tail


@pytest.mark.parametrize("durability", ["sync", "os"])
async def test_plain_payloads_get_their_offsets_between_other_records(opened: Opener, durability):
    engine = await opened()
    await engine.declare("t", TopicOptions(durability=durability))
    stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    before = put(engine, "t", b"before")
    ends = ends_of([b"1", b"22", b""] * 50)
    parts = [b"12", b"212" * 49, b"2"]
    assert engine.append_joined("t", ends, parts, lambda o, e: stored.set_result(o))
    assert [await before, await stored] in ([0, 1], [150, 0])
    assert await put(engine, "t", b"after") == 151
    found = payloads(await read_all(engine, "t"))
    assert sorted(found) == sorted([b"before", *[b"1", b"22", b""] * 50, b"after"])
    await engine.stop()
    assert payloads(await read_all(await opened(), "t")) == found


async def test_more_joined_payloads_than_a_chunk_holds_are_cut_between_two(opened: Opener):
    engine = await opened(options=StorageOptions(upkeep_s=3600))
    await engine.declare("t", TopicOptions())
    stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    wanted = [b"%d" % number for number in range(3 * MAX_RECORDS // 2)]
    whole = b"".join(wanted)
    parts = [whole[at : at + 1000] for at in range(0, len(whole), 1000)]
    engine.append_joined("t", ends_of(wanted), parts, lambda o, e: stored.set_result(o))
    assert await stored == 0
    assert payloads(await read_all(engine, "t")) == wanted


async def test_plain_payloads_are_refused_as_others_are(opened: Opener):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    with pytest.raises(NoSuchTopic):
        engine.append_joined("nobody", ends_of([b"x"]), [b"x"], lambda offset, error: None)
    large = [bytes(9000)] * 2
    with pytest.raises(LimitExceeded):
        engine.append_joined("t", ends_of(large), large, lambda offset, error: None)
    with pytest.raises(LimitExceeded):
        engine.append("t", [NewRecord(bytes(2000))] * 10, lambda offset, error: None)
    assert engine.topic("t").end == 0


async def test_a_read_across_segments_and_tail_is_whole(opened: Opener):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    expected = []
    for turn in range(8):
        for n in range(20):
            expected.append(b"%d-%d" % (turn, n) + bytes(500))
            await put(engine, "t", expected[-1])
        if turn < 7:
            await engine.move_all()
    await put(engine, "t", *(more := [b"%d" % n for n in range(10)]))
    assert payloads(await read_all(engine, "t")) == expected + more
    assert payloads(await fetch_all(engine, "t")) == expected + more


async def test_nothing_beyond_the_high_water_offset_is_read(opened: Opener):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    await put(engine, "t", b"a")
    future = begin(engine, "t", NewRecord(b"b"))
    assert engine.topic("t").end == 1
    assert payloads(engine.cached("t", 0, 10, 100) or []) == [b"a"]
    assert engine.cached("t", 1, 10, 100) == []
    assert (await engine.fetch("t", 0, 10, 100)).next == 1 or future.done()
    await future
    assert payloads(await engine.read("t", 1, 10, 100)) == [b"b"]


async def test_reads_respect_bounds_but_give_at_least_one(opened: Opener):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    await put(engine, "t", *[bytes(100)] * 10)
    for _ in "tail", "segment":
        assert len(await engine.read("t", 0, 3, 10_000)) == 3
        assert len(await engine.read("t", 0, 10, 250)) == 2
        assert len(await engine.read("t", 9, 10, 1)) == 1
        assert await engine.read("t", 10, 10, 100) == []
        await engine.move_all()


async def test_out_of_range_is_an_error(opened: Opener):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    await put(engine, "t", b"a", b"b")
    await engine.trim("t", 1)
    for start in (0, 3):
        with pytest.raises(OutOfRange) as caught:
            await engine.read("t", start, 1, 1)
        assert (caught.value.first, caught.value.end) == (1, 2)
        with pytest.raises(OutOfRange):
            await engine.fetch("t", start, 9, 9)
    assert engine.cached("t", 0, 1, 1) is None


async def test_record_time_never_decreases_and_is_never_in_the_future(
    opened: Opener, clock: ManualClock
):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    now = clock.wall_ms()
    await put(engine, "t", NewRecord(b"old", time_ms=now - 50), NewRecord(b"new"))
    await put(engine, "t", NewRecord(b"future", time_ms=now + 10**9))
    await put(engine, "t", NewRecord(b"older", time_ms=now - 99))
    clock.advance(-1)
    await put(engine, "t", b"clock went back")
    times = [record.time_ms - now for record in await read_all(engine, "t")]
    assert times == [0, 0, 0, 0, 0] or times == sorted(times)
    assert max(times) == 0


async def test_offset_at_finds_the_first_record_of_a_time(opened: Opener, clock: ManualClock):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    begun = clock.wall_ms()
    for n in range(6):
        clock.advance(1)
        await put(engine, "t", b"x", *([b"y"] * 9 if n == 3 else ()))
        if n == 1:
            await engine.move_all()
    at = [await engine.offset_at("t", begun + ms) for ms in (0, 1000, 1001, 2000, 3001, 4000)]
    assert at == [0, 0, 1, 1, 3, 3]
    assert await engine.offset_at("t", begun + 4001) == 13
    assert await engine.offset_at("t", begun + 6001) == 15
    await engine.move_all()
    assert [await engine.offset_at("t", begun + ms) for ms in (1001, 4001, 9999)] == [1, 13, 15]
    await engine.trim("t", 5)
    assert await engine.offset_at("t", 0) == 5


async def test_a_commit_stores_records_and_moves_groups_together(opened: Opener):
    engine = await opened()
    await engine.declare("a", TopicOptions())
    await engine.declare("b", TopicOptions())
    await put(engine, "a", *[b"x"] * 9)
    await engine.save_group("a", GroupState("g", {"window": 3, "on": True, "tag": "t"}, 0))
    moved = Move("a", "g", 2, (4, 5), {3: 2})
    offsets = await engine.commit([Append("b", [NewRecord(b"1"), NewRecord(b"2")]), moved])
    assert offsets == [0, -1]
    engine.move(Move("a", "g", 5))
    assert await engine.commit([Append("b", [NewRecord(b"3")])]) == [2]
    expected = GroupState("g", {"window": 3, "on": True, "tag": "t"}, 5, {5}, {})
    assert engine.groups("a") == [expected]
    await engine.stop()
    engine = await opened()
    assert engine.groups("a") == [expected]
    assert payloads(await read_all(engine, "b")) == [b"1", b"2", b"3"]


async def test_moves_nobody_waits_for_share_a_commit(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    await put(engine, "t", *[b"x"] * 100)
    await engine.save_group("t", GroupState("g", {}, 0))
    monkeypatch.setattr(batches, "LOOSE_S", 3600)
    before = engine._intake.sequence
    for floor in range(1, 51):
        engine.move(Move("t", "g", floor))
        await asyncio.sleep(0)
    assert engine._intake.sequence == before
    await put(engine, "t", b"y")
    assert engine._intake.sequence == before + 1
    assert engine.groups("t")[0].floor == 50


async def test_a_move_that_gets_no_company_goes_alone(opened: Opener, unit: float):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    await put(engine, "t", b"x")
    await engine.save_group("t", GroupState("g", {}, 0))
    engine.move(Move("t", "g", 1))
    for _ in range(200):
        if engine.groups("t")[0].floor:
            break
        await asyncio.sleep(0.01 * unit)
    assert engine.groups("t")[0].floor == 1


async def test_a_move_goes_with_the_next_record_and_is_never_left_behind(opened: Opener):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    await put(engine, "t", *[b"x"] * 9)
    await engine.save_group("t", GroupState("g", {}, 0))
    engine.move(Move("t", "g", 3))
    await put(engine, "t", b"y")
    assert engine.groups("t")[0].floor == 3
    engine.move(Move("t", "g", 4))
    await engine.move_all()
    assert engine.groups("t")[0].floor == 4
    engine._intake.pause()  # as when the mover is far behind
    engine.move(Move("t", "g", 5))
    await engine.declare("u", TopicOptions())
    assert engine.groups("t")[0].floor == 5
    engine.move(Move("t", "g", 6))
    await engine.stop()
    assert (await opened()).groups("t")[0].floor == 6


async def test_a_commit_with_an_unknown_part_stores_nothing(opened: Opener):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    good = Append("t", [NewRecord(b"x")])
    with pytest.raises(NoSuchTopic):
        await engine.commit([good, Append("none", [NewRecord(b"x")])])
    with pytest.raises(NoSuchGroup):
        await engine.commit([good, Move("t", "none", 1)])
    with pytest.raises(NoSuchGroup):
        engine.move(Move("t", "none", 1))
    with pytest.raises(LimitExceeded):
        await engine.commit([good, Append("t", [NewRecord(bytes(20_000))])])
    assert engine.topic("t").end == 0


async def test_groups_are_saved_replaced_and_forgotten(opened: Opener):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    await engine.save_group("t", GroupState("g", {}, 7, {9}, {8: 3}))
    await engine.save_group("t", GroupState("h", {}, 1))
    await engine.save_group("t", GroupState("g", {"x": "y"}, 2))
    await engine.move_all()
    await engine.remove_group("t", "h")
    with pytest.raises(NoSuchGroup):
        await engine.remove_group("t", "h")
    await engine.stop()
    assert (await opened()).groups("t") == [GroupState("g", {"x": "y"}, 2)]


async def test_a_repeated_id_is_stored_once_over_restarts(opened: Opener, clock: ManualClock):
    engine = await opened()
    await engine.declare("t", TopicOptions(dedup_ms=10_000, dedup_ids=100))
    assert await put(engine, "t", NewRecord(b"1", id="a"), NewRecord(b"2", id="b")) == 0
    assert await put(engine, "t", NewRecord(b"2", id="b")) == 1
    await engine.move_all()
    await engine.stop()
    engine = await opened()
    mixed = [NewRecord(b"2", id="b"), NewRecord(b"3", id="c"), NewRecord(b"3", id="c")]
    assert await put(engine, "t", *mixed) == 1
    assert payloads(await read_all(engine, "t")) == [b"1", b"2", b"3"]
    clock.advance(11)
    assert await put(engine, "t", NewRecord(b"2 again", id="b")) == 3


async def test_the_window_of_ids_is_bounded_in_number(opened: Opener):
    engine = await opened()
    await engine.declare("t", TopicOptions(dedup_ids=3))
    for n in range(5):
        await put(engine, "t", NewRecord(b"", id=str(n)))
    assert await put(engine, "t", NewRecord(b"", id="3")) == 3
    assert await put(engine, "t", NewRecord(b"", id="1")) == 5


async def test_a_repeat_is_confirmed_only_with_its_first_time(opened: Opener):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    first = begin(engine, "t", NewRecord(b"x", id="a"))
    again = begin(engine, "t", NewRecord(b"x", id="a"))
    assert not again.done()
    assert await again == await first == 0
    assert first.done()


async def test_offsets_go_on_after_a_topic_was_emptied(opened: Opener):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    await put(engine, "t", *[b"x"] * 12)
    await engine.move_all()
    await put(engine, "t", b"y")
    await engine.trim("t", 99)
    info = engine.topic("t")
    assert (info.first, info.end, info.oldest_ms) == (13, 13, 0)
    await engine.stop()
    engine = await opened()
    assert await put(engine, "t", b"z") == 13
    assert payloads(await read_all(engine, "t")) == [b"z"]
    await engine.move_all()
    assert payloads(await read_all(engine, "t")) == [b"z"]


async def test_a_removed_topic_starts_again_at_zero_with_nothing_left(opened: Opener):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    await put(engine, "t", b"old", NewRecord(b"i", id="i"))
    await engine.save_group("t", GroupState("g", {}, 1))
    await engine.move_all()
    await engine.remove("t")
    with pytest.raises(NoSuchTopic):
        await put(engine, "t", b"x")
    with pytest.raises(NoSuchTopic):
        engine.topic("t")
    await engine.declare("t", TopicOptions())
    assert engine.groups("t") == []
    assert await put(engine, "t", NewRecord(b"new", id="i")) == 0
    await engine.stop()
    engine = await opened()
    assert payloads(await read_all(engine, "t")) == [b"new"]


async def test_options_are_kept_and_changed(opened: Opener):
    engine = await opened()
    await engine.declare("t", TopicOptions(retain_ms=5, extra={"mask": "3"}))
    assert engine.topic("t").options.extra == {"mask": "3"}
    await put(engine, "t", b"x")
    info = await engine.declare("t", TopicOptions(durability="os"))
    assert (info.options.durability, info.end) == ("os", 1)
    await engine.stop()
    assert (await opened()).topic("t").options == TopicOptions(durability="os")


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/../b", "..", "ä/ö", "x" * 300, "a.b~c"])
async def test_any_name_stays_one_folder_inside(opened: Opener, tmp_path, name: str):
    engine = await opened()
    await engine.declare(name, TopicOptions())
    await put(engine, name, b"x")
    await engine.move_all()
    assert len(list((tmp_path / "data" / "topics").iterdir())) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"data"}
    await engine.stop()
    engine = await opened()
    assert payloads(await read_all(engine, name)) == [b"x"]


@pytest.mark.parametrize("name", ["", "a//b", "a/*", "a\nb"])
async def test_an_illegal_name_is_refused(opened: Opener, name: str):
    engine = await opened()
    with pytest.raises(InvalidName):
        await engine.declare(name, TopicOptions())
    assert engine.topics() == []


async def test_too_large_an_append_is_refused_at_once(opened: Opener):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    for records in ([NewRecord(bytes(17_000))], [NewRecord(bytes(9000))] * 2):
        with pytest.raises(LimitExceeded) as caught:
            engine.append("t", records, lambda offset, error: None)
        assert caught.value.actual > caught.value.limit
    assert await put(engine, "t", b"x") == 0


async def test_a_full_queue_asks_to_pause_but_takes_the_record(opened: Opener):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    stored: list[int] = []
    answers = [
        engine.append("t", [NewRecord(bytes(8000))], lambda offset, _: stored.append(offset))
        for _ in range(20)
    ]
    assert answers[0]
    assert not answers[-1]
    await put(engine, "t", b"last")
    assert stored == list(range(20))


async def test_records_of_a_lax_topic_keep_their_order_beside_commits(opened: Opener):
    engine = await opened()
    await engine.declare("lax", TopicOptions(durability="os"))
    await engine.declare("strict", TopicOptions())
    futures = []
    for n in range(10):
        futures.append(begin(engine, "lax", NewRecord(b"%d" % n)))
        if n % 3 == 0:
            both = [Append("lax", [NewRecord(b"c")]), Append("strict", [NewRecord(b"s")])]
            futures.append(asyncio.ensure_future(engine.commit(both)))  # type: ignore[arg-type]
            await asyncio.sleep(0)
    await asyncio.gather(*futures)
    assert await engine.commit([Append("lax", [NewRecord(b"end")])]) == [14]
    found = payloads(await read_all(engine, "lax"))
    assert [p for p in found if p.isdigit()] == [b"%d" % n for n in range(10)]
    await engine.stop()
    engine = await opened()
    assert payloads(await read_all(engine, "lax")) == found


async def test_a_second_engine_on_the_folder_is_refused(opened: Opener):
    await opened()
    with pytest.raises(FolderInUse):
        await opened()


async def test_a_stopped_engine_takes_nothing_and_can_be_stopped_again(opened: Opener):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    await engine.stop()
    await engine.stop()
    with pytest.raises(Draining):
        await put(engine, "t", b"x")
    with pytest.raises(Draining):
        await engine.commit([Append("t", [NewRecord(b"x")])])


async def test_a_callback_that_fails_harms_nobody(opened: Opener):
    engine = await opened()
    await engine.declare("t", TopicOptions())
    seen: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: seen.append(context["message"]))

    def fail(offset: int, error: object) -> None:
        raise RuntimeError

    engine.append("t", [NewRecord(b"x")], fail)
    assert await put(engine, "t", b"y") == 1
    assert seen == ["a producer's callback failed"]


async def test_compressed_topics_read_the_same(opened: Opener):
    engine = await opened()
    await engine.declare("t", TopicOptions(compression="zlib"))
    expected = [b"%d" % n * 50 for n in range(100)]
    await put(engine, "t", *expected)
    before = engine.topic("t").bytes
    await engine.move_all()
    assert engine.topic("t").bytes < before
    assert payloads(await read_all(engine, "t")) == expected


async def test_there_are_no_other_nodes(opened: Opener):
    engine = await opened()
    await engine.claim("a", prefix=False)
    await engine.release("a")
    assert not engine.forward_call(None)  # type: ignore[arg-type]
    engine.forward_publication(None)  # type: ignore[arg-type]
