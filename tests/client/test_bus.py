"""What the bus promises beside its verbs: order, refusals, cancelling, draining, bounds."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
from pathlib import Path
from typing import Any

import pytest

import polybus
from polybus.client import Bus, Subscription, SyncBus
from polybus.client.subscription import Inbox
from polybus.errors import (
    CallTimeout,
    ConfigError,
    ConnectionLost,
    InvalidName,
    LimitExceeded,
    LocalProtocolError,
    NameTaken,
    NoSuchGroup,
    NoSuchService,
    NoSuchTopic,
    NotAuthorized,
    OutOfRange,
    PeerUnavailable,
    Refused,
    RemoteProtocolError,
    ServiceFailed,
    SlowConsumer,
)
from polybus.model.record import NewRecord
from tests.client.conftest import Bench, start_node


async def until(condition) -> None:
    """Let the event loop turn until something is so; the test's time limit is the bound."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


# -- life --


async def test_a_bus_that_is_not_open_says_so(memory: Bench):
    bus = memory.connect()
    assert not bus.connected
    assert "closed" in repr(bus)
    for verb in (bus.call("x"), bus.publish("x"), bus.produce("t"), bus.topics()):
        with pytest.raises(ConnectionLost, match="not open"):
            await verb
    with pytest.raises(ConnectionLost):
        await bus.subscribe("x")


async def test_nobody_there_is_peer_unavailable(tmp_path):
    for url in (f"polybus+unix://{tmp_path}/none", "memory:none", "polybus://127.0.0.1:1"):
        with pytest.raises(PeerUnavailable):
            await polybus.connect(url)


@pytest.mark.parametrize(
    "url", ["http://x", "polybus", "polybus://", "polybus+tcp+x://h", "gsb://"]
)
def test_a_url_that_makes_no_sense_is_refused_at_once(url: str):
    with pytest.raises(ConfigError):
        polybus.connect(url)


async def test_the_url_and_the_token_may_come_from_the_environment(memory: Bench, monkeypatch):
    monkeypatch.setenv("POLYBUS_URL", memory.url)
    async with polybus.connect() as bus:
        assert bus.url == memory.url
    monkeypatch.delenv("POLYBUS_URL")
    assert polybus.connect().url == "polybus://127.0.0.1:15555"


async def test_a_peer_that_speaks_something_else_is_told_apart(unit):
    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(other, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises((RemoteProtocolError, PeerUnavailable)):
        await polybus.connect(f"polybus://127.0.0.1:{port}")
    server.close()
    await server.wait_closed()


async def test_closing_fails_what_is_under_way_and_may_be_done_twice(memory: Bench):
    async with memory.connect() as service, memory.connect() as caller:
        started = asyncio.Event()

        @service.serve("slow")
        async def slow() -> None:
            started.set()
            await asyncio.Event().wait()

        await service.services()
        call = asyncio.create_task(caller.call("slow"))
        await started.wait()
        await caller.close()
        await caller.close()
        with pytest.raises(ConnectionLost):
            await call


async def test_draining_finishes_what_is_being_answered_and_takes_nothing_new(memory: Bench):
    started, go_on = asyncio.Event(), asyncio.Event()
    async with memory.connect() as service, memory.connect() as caller:

        @service.serve("slow")
        async def slow() -> str:
            started.set()
            await go_on.wait()
            return "done"

        await service.services()
        call = asyncio.create_task(caller.call("slow", type=str))
        await started.wait()
        draining = asyncio.create_task(service.drain())
        waiting = asyncio.create_task(service.wait())
        await until(lambda: not list(memory.node.router.services))
        with pytest.raises(NoSuchService):
            await caller.call("slow")
        go_on.set()
        assert await call == "done"
        await draining
        await waiting


# -- services --


async def test_handlers_given_before_opening_are_registered_by_opening(memory: Bench):
    bus = memory.connect()

    @bus.serve("early")
    def early() -> str:
        return "bird"

    async with bus:
        assert await bus.call("early", type=str) == "bird"
    async with memory.connect() as first:
        await first.serve("early", early)
        with pytest.raises(NameTaken):
            await bus.open()


async def test_a_decorated_handler_answers_the_very_next_call(memory: Bench):
    async with memory.connect() as bus:

        @bus.serve("now")
        async def now() -> int:
            return 1

        assert await bus.call("now", type=int) == 1


async def test_a_decorator_that_could_not_register_is_heard_of(memory: Bench):
    async with memory.connect() as owner:
        await owner.serve("taken", lambda: None)
        with pytest.raises(NameTaken):
            async with memory.connect() as bus:
                bus.serve("taken")(lambda: None)
        async with memory.connect() as bus:
            bus.serve("taken")(lambda: None)
            with pytest.raises(NameTaken):
                await bus.publish("anything")
            await bus.publish("anything")


@pytest.mark.parametrize("name", ["", "a//b", "a/*", "/a"])
async def test_an_illegal_name_is_refused(memory: Bench, name: str):
    async with memory.connect() as bus:
        with pytest.raises(InvalidName):
            await bus.serve(name, lambda: None)
        await bus.serve("legal", lambda: None)


async def test_a_name_is_served_once_by_one_bus(memory: Bench):
    async with memory.connect() as bus:
        await bus.serve("a", lambda: None)
        with pytest.raises(NameTaken):
            await bus.serve("a", lambda: None)


async def test_what_a_handler_raises_reaches_the_caller_by_its_kind(memory: Bench):
    async with memory.connect() as bus:

        @bus.serve("refuses")
        def refuses() -> None:
            raise NotAuthorized("you", "call", "this")

        @bus.serve("fails")
        async def fails() -> None:
            raise ServiceFailed("text", b'{"code":7}')

        @bus.serve("breaks")
        async def breaks():
            yield 1
            raise ValueError("half way")

        @bus.serve("odd")
        def odd() -> object:
            return object()

        with pytest.raises(Refused, match="you may not call this"):
            await bus.call("refuses")
        with pytest.raises(ServiceFailed) as caught:
            await bus.call("fails")
        assert caught.value.detail == b'{"code":7}'
        with pytest.raises(ServiceFailed, match="cannot be sent"):
            await bus.call("odd")
        parts = bus.call_streaming("breaks", type=int)
        assert await anext(parts) == 1
        with pytest.raises(ServiceFailed, match="half way"):
            await anext(parts)


# -- calls --


async def test_a_call_that_takes_too_long_times_out_and_is_cancelled_at_the_service(memory: Bench):
    async with memory.connect() as service, memory.connect() as caller:
        ended = asyncio.Event()

        @service.serve("slow")
        async def slow() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        await service.services()
        with pytest.raises(CallTimeout, match="slow"):
            await caller.call("slow", timeout=0.01)
        await ended.wait()
        with pytest.raises(CallTimeout):
            await anext(caller.call_streaming("slow", timeout=0.01))


async def test_a_cancelled_call_is_cancelled_at_the_service(memory: Bench):
    async with memory.connect() as service, memory.connect() as caller:
        started, ended = asyncio.Event(), asyncio.Event()

        @service.serve("slow")
        async def slow() -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        await service.services()
        call = asyncio.create_task(caller.call("slow", timeout=None))
        await started.wait()
        call.cancel()
        await ended.wait()
        assert memory.node.router.calls.pending == 0


async def test_a_stream_that_is_left_early_is_cancelled_at_the_service(memory: Bench):
    async with memory.connect() as bus:
        ended = asyncio.Event()

        @bus.serve("endless")
        async def endless():
            try:
                while True:
                    yield b"x"
                    await asyncio.sleep(0)
            finally:
                ended.set()

        parts = bus.call_streaming("endless")
        assert await anext(parts) == b"x"
        await parts.aclose()
        await ended.wait()


async def test_an_empty_reply_is_one_part_and_an_empty_stream_is_none(memory: Bench):
    async with memory.connect() as bus:

        @bus.serve("empty")
        def empty() -> None:
            return None

        @bus.serve("nothing")
        async def nothing():
            for number in range(0):
                yield number

        assert [part async for part in bus.call_streaming("empty")] == [b""]
        assert await bus.call("nothing") == b""


async def test_a_stream_that_is_not_read_is_bounded(memory: Bench, monkeypatch):
    monkeypatch.setattr("polybus.protocols.native.replies.MAX_UNREAD_BYTES", 1000)
    async with memory.connect() as bus:

        @bus.serve("much")
        async def much():
            for _ in range(20):
                yield b"x" * 100

        parts = bus.call_streaming("much")
        assert await anext(parts) == b"x" * 100
        await until(lambda: not memory.node.router.calls.pending)
        with pytest.raises(SlowConsumer):
            [part async for part in parts]
        with pytest.raises(LimitExceeded):
            await bus.call("much")


async def test_a_payload_larger_than_a_frame_is_refused_before_it_is_sent(memory: Bench):
    async with memory.connect() as bus:
        await bus.serve("echo", lambda body: body)
        with pytest.raises(LimitExceeded) as caught:
            await bus.call("echo", bytes(65 * 1024 * 1024))
        assert caught.value.limit == 64 * 1024 * 1024
        with pytest.raises(LimitExceeded):
            await bus.publish("x", bytes(65 * 1024 * 1024))
        assert await bus.call("echo", b"still there") == b"still there"


async def test_a_push_is_not_answered(memory: Bench):
    async with memory.connect() as bus:
        got = asyncio.Queue[bytes]()

        @bus.serve("log")
        def log(line: bytes) -> None:
            got.put_nowait(line)

        await bus.services()
        await bus.push("log", b"line")
        await bus.push("nobody", b"line")
        assert await got.get() == b"line"
        assert memory.node.router.calls.pending == 0


# -- wrong arguments --


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"key": "text"}, "key must be bytes, not str"),
        ({"tag": b"eu"}, "tag must be str, not bytes"),
        ({"id": 7}, "id must be str, not int"),
        ({"headers": {"n": 5}}, "header 'n' must be str, not int"),
        ({"headers": {5: "n"}}, "name of a header must be str, not int"),
        ({"headers": []}, "headers must be a mapping of str to str, not list"),
        ({"headers": {"n": "\ud800"}}, "cannot be sent"),
    ],
)
async def test_a_wrong_argument_of_a_record_is_an_error_of_its_producer_alone(
    memory: Bench, wrong: dict[str, object], named: str
):
    async with memory.connect() as bus, memory.connect() as service:
        await service.serve("slow", lambda body: asyncio.sleep(0.01, b"done"))
        await bus.declare_topic("t")
        outcomes = await asyncio.gather(
            bus.call("slow"),
            bus.produce("t", b"one"),
            bus.produce("t", b"bad", **wrong),  # type: ignore[arg-type]
            bus.produce_many("t", [b"x", NewRecord(b"bad", **wrong)]),  # type: ignore[arg-type]
            bus.produce("t", b"two"),
            return_exceptions=True,
        )
        for outcome in outcomes[2:4]:
            assert isinstance(outcome, LocalProtocolError)
            assert named in outcome.text
        assert [outcomes[0], outcomes[1], outcomes[4]] == [b"done", 0, 1]


async def test_a_record_made_by_hand_may_hold_any_bytes_but_no_text(memory: Bench):
    async with memory.connect() as bus:
        await bus.declare_topic("t")
        await bus.produce_many("t", [NewRecord(bytearray(b"x")), NewRecord(memoryview(b"y"))])  # type: ignore[arg-type]
        with pytest.raises(LocalProtocolError, match="payload must be bytes, not str"):
            await bus.produce_many("t", [NewRecord("text")])  # type: ignore[arg-type]
        with pytest.raises(LocalProtocolError, match="time_ms must be int, not str"):
            await bus.produce_many("t", [NewRecord(b"", time_ms="now")])  # type: ignore[arg-type]
        assert [record.payload for record in await bus.fetch("t")] == [b"x", b"y"]


async def test_a_batch_without_records_is_refused_with_the_reason(memory: Bench):
    async with memory.connect() as bus:
        await bus.declare_topic("t")
        with pytest.raises(LocalProtocolError, match="at least one record"):
            await bus.produce_many("t", [])


def verbs_with_headers(bus: Bus, headers: dict[str, str]):
    parts = bus.call_streaming("a", headers=headers)
    yield bus.call("a", headers=headers)
    yield anext(parts)
    yield bus.push("a", headers=headers)
    yield bus.publish("a", headers=headers)
    yield bus.publish_nowait("a", headers=headers)


@pytest.mark.parametrize("value", [5, None, b"x", "\ud800"])
async def test_a_header_that_is_no_text_is_refused_before_anything_is_sent(memory: Bench, value):
    async with memory.connect() as bus, memory.connect() as service:
        await service.serve("slow", lambda body: asyncio.sleep(0.01, b"done"))
        innocent = asyncio.create_task(bus.call("slow"))
        for verb in verbs_with_headers(bus, {"n": value}):
            with pytest.raises(LocalProtocolError, match="header"):
                await verb
        assert await innocent == b"done"


@pytest.mark.parametrize("length", [4097, 70_000])
async def test_a_name_that_is_too_long_is_refused_before_anything_is_sent(
    memory: Bench, length: int
):
    name = "x" * length
    async with memory.connect() as bus, memory.connect() as service:
        await service.serve("slow", lambda body: asyncio.sleep(0.01, b"done"))
        innocent = asyncio.create_task(bus.call("slow"))
        for verb in (
            bus.call(name),
            anext(bus.call_streaming(name)),
            bus.push(name),
            bus.publish(name),
            bus.publish_nowait(name),
            bus.produce(name, b""),
            bus.produce_many(name, [b""]),
            bus.fetch(name),
            bus.serve(name, lambda body: body),
            bus.subscribe(name),
        ):
            with pytest.raises(InvalidName, match="longer than 4096 bytes"):
                await verb
        assert await innocent == b"done"


async def test_a_name_that_is_no_text_is_refused_before_anything_is_sent(memory: Bench):
    async with memory.connect() as bus:
        with pytest.raises(InvalidName, match="no Unicode text"):
            await bus.call("a\ud800")
        with pytest.raises(LocalProtocolError, match="must be str, not int"):
            await bus.produce(5, b"")  # type: ignore[arg-type]


# -- publications --


async def test_overlapping_subscriptions_each_get_a_publication_once(memory: Bench):
    async with memory.connect() as bus:
        one, two, three = (bus.subscribe(p) for p in ("a/*", "a/**", "a/*"))
        for subscription in (one, two, three):
            await subscription
        assert await bus.publish("a/b", b"x") == 1
        assert [(await anext(s)).payload for s in (one, two, three)] == [b"x"] * 3
        await one.close()
        assert await bus.publish("a/c", b"y") == 1
        assert (await anext(three)).payload == b"y"
        with pytest.raises(StopAsyncIteration):
            await anext(one)


async def test_a_subscription_ends_when_nobody_holds_it(memory: Bench):
    async with memory.connect() as bus:
        await bus.publish("a", b"before")

        async def read_one() -> bytes:
            async for message in bus.subscribe("a"):
                return message.payload
            raise AssertionError

        reading = asyncio.create_task(read_one())
        await until(lambda: len(memory.node.router.recipients("native", "a", "a")))
        await bus.publish("a", b"now")
        assert await reading == b"now"
        gc.collect()
        await until(lambda: not len(memory.node.router.recipients("native", "a", "a")))


async def test_what_was_received_can_be_read_after_the_end(memory: Bench):
    async with memory.connect() as bus:
        async with bus.subscribe("a") as subscription:
            await bus.publish("a", b"x")
        assert [message.payload async for message in subscription] == [b"x"]


@pytest.mark.parametrize("end", ["close", "drain"])
async def test_a_subscription_ends_with_its_bus_and_what_it_received_can_be_read(
    memory: Bench, end: str
):
    bus = await memory.connect()
    waiting, unread = bus.subscribe("a/**"), await bus.subscribe("b")

    async def read() -> list[bytes]:
        async with waiting:
            return [message.payload async for message in waiting]

    reading = asyncio.create_task(read())
    await until(lambda: memory.node.router.recipients("native", "a/b", "a/b"))
    await bus.publish("a/b", b"x")
    await bus.publish("b", b"y")
    await getattr(bus, end)()
    assert await reading == [b"x"]
    assert [message.payload async for message in unread] == [b"y"]


async def test_a_subscription_that_had_not_begun_can_begin_when_its_bus_is_open_again(
    memory: Bench,
):
    bus = memory.connect()
    subscription = bus.subscribe("a")
    async with bus:
        pass
    with pytest.raises(ConnectionLost, match="not open"):
        await subscription
    async with bus, subscription:
        await bus.publish("a", b"x")
        assert (await anext(subscription)).payload == b"x"


async def test_leaving_a_subscription_after_its_bus_replaces_no_other_error(memory: Bench):
    begun = asyncio.Event()

    async def watch(bus: Bus) -> None:
        async with bus.subscribe("a"):
            begun.set()
            await asyncio.Event().wait()

    async with memory.connect() as bus:
        watching = asyncio.create_task(watch(bus))
        await begun.wait()
        watching.cancel()
        await bus.close()
    with pytest.raises(asyncio.CancelledError):
        await watching


def test_what_is_not_read_is_bounded_and_counted(monkeypatch):
    monkeypatch.setattr("polybus.client.subscription.MAX_UNREAD_BYTES", 1000)
    inbox = Inbox()
    for _ in range(5):
        inbox.take("a", b"x" * 200, {})
    assert inbox.dropped == 3


async def test_an_illegal_pattern_is_refused(memory: Bench):
    async with memory.connect() as bus:
        with pytest.raises(InvalidName):
            await bus.subscribe("a//b")
        with pytest.raises(InvalidName):
            await bus.publish("a//b")


# -- topics --


async def test_what_cannot_be_produced_or_read_says_why(memory: Bench):
    async with memory.connect() as bus:
        for verb in (
            bus.produce("none", b"x"),
            bus.fetch("none"),
            bus.consume("none", "g").start(),
        ):
            with pytest.raises(NoSuchTopic):
                await verb
        with pytest.raises(InvalidName):
            await bus.produce("bad//name", b"x", create=True)
        await bus.declare_topic("t")
        with pytest.raises(OutOfRange):
            await bus.fetch("t", 7)
        with pytest.raises(NoSuchGroup):
            await bus.group("t", "none")
        with pytest.raises(ValueError, match="a start is"):
            await bus.declare_group("t", "g", start="middle")
        with pytest.raises(InvalidName):
            await bus.consume("t", "bad//name")


async def test_one_record_that_is_too_large_does_not_fail_the_others_of_its_turn(memory: Bench):
    async with memory.connect() as bus:
        await bus.declare_topic("t")
        large = bytes(33 * 1024 * 1024)
        results = await asyncio.gather(
            bus.produce("t", b"a"),
            bus.produce("t", large),
            bus.produce("t", b"b"),
            return_exceptions=True,
        )
        assert isinstance(results[1], LimitExceeded)
        assert sorted(r for r in results if isinstance(r, int)) == [0, 1]
        with pytest.raises(LimitExceeded, match=r"too large \(\d+ > 33554432\)"):
            await bus.produce_many("t", [b"c", large])
        assert (await bus.topic("t")).end == 2


async def test_records_produced_in_one_turn_keep_their_order_and_get_their_offsets(memory: Bench):
    async with memory.connect() as bus:
        await bus.declare_topic("t")
        bodies = [b"%d" % number for number in range(300)]
        offsets = await asyncio.gather(*(bus.produce("t", body) for body in bodies))
        assert offsets == list(range(300))
        assert [record.payload for record in await bus.fetch("t")] == bodies


async def test_members_share_the_records_of_a_group(memory: Bench):
    async with memory.connect() as one, memory.connect() as two:
        await one.produce_many("t", [b"%d" % n for n in range(8)], create=True)
        async with one.consume("t", "g", window=1) as a, two.consume("t", "g", window=1) as b:
            got = []
            for _ in range(4):
                got += [(await anext(a)).offset, (await anext(b)).offset]
        assert sorted(got) == list(range(8))


async def test_a_consumer_hears_of_the_end_of_its_topic(memory: Bench):
    async with memory.connect() as bus:
        await bus.declare_topic("t")
        async with bus.consume("t", "g") as records:
            waiting = asyncio.create_task(anext(records))
            await asyncio.sleep(0)
            await bus.remove_topic("t")
            with pytest.raises(NoSuchTopic):
                await waiting


async def test_a_consumer_that_nobody_holds_leaves_its_group(memory: Bench):
    async with memory.connect() as bus:
        await bus.produce("t", b"x", create=True)

        async def read_one() -> int:
            async for record in bus.consume("t", "g"):
                return record.offset
            raise AssertionError

        assert await read_one() == 0
        gc.collect()
        assert memory.node.topics is not None
        group = memory.node.topics.groups.get("t", "g")
        await until(lambda: not group.members)
        async with bus.consume("t", "g") as records:
            assert (await anext(records)).attempt == 2


# -- both faces --


def test_both_faces_have_the_same_verbs_with_the_same_parameters():
    def verbs(cls: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(member).parameters)
            for name, member in inspect.getmembers(cls, inspect.isfunction)
            if not name.startswith("_")
        }

    assert verbs(SyncBus) == verbs(Bus)


def test_the_package_offers_what_its_rooms_promise():
    assert set(polybus.__all__) == {"__version__", "connect", "connect_sync"}
    assert polybus.connect_sync("memory:").url == "memory:"
    assert Subscription.__name__ in polybus.client.__all__


async def test_a_memory_url_does_not_leave_the_event_loop_of_its_node(memory: Bench):
    bus = polybus.connect_sync(memory.url)
    with pytest.raises(LocalProtocolError, match="another event loop"):
        await asyncio.to_thread(bus.open)


async def test_threads_that_read_or_wait_hear_of_the_end_of_a_sync_bus(tmp_path: Path):
    bench = await start_node("unix", tmp_path)
    ended: dict[str, Any] = {}
    reading = threading.Barrier(5)

    def run(what: str, work) -> threading.Thread:
        def noted() -> None:
            try:
                ended[what] = work()
            except Exception as exc:
                ended[what] = exc

        thread = threading.Thread(target=noted, name=what, daemon=True)
        thread.start()
        return thread

    def subscriber() -> list[bytes]:
        with bus.subscribe("a/**") as subscription:
            reading.wait()
            return [message.payload for message in subscription]

    def consumer() -> None:
        with bus.consume("t", "g") as records:
            reading.wait()
            for _ in records:
                pass

    def caller() -> bytes:
        reading.wait()
        return bus.call("slow")

    def waiter() -> None:
        reading.wait()
        bus.wait()

    def use() -> None:
        with bus:
            bus.declare_topic("t")
            bus.serve("slow", lambda body: idle.wait())
            unread, seen = bus.subscribe("b").start(), bus.subscribe("a/b").start()
            works = {"subscribe": subscriber, "consume": consumer, "call": caller, "wait": waiter}
            threads = [run(what, work) for what, work in works.items()]
            reading.wait()
            bus.publish("b", b"y")
            bus.publish("a/b", b"x")
            assert next(seen).payload == b"x"  # and so have the others of this bus
        idle.set()
        for thread in threads:
            thread.join(5)
            assert not thread.is_alive(), thread.name
        assert [message.payload for message in unread] == [b"y"]
        unread.close()

    idle = threading.Event()
    bus = polybus.connect_sync(bench.url)
    await asyncio.to_thread(use)
    assert ended["subscribe"] == [b"x"]
    assert ended["wait"] is None or isinstance(ended["wait"], ConnectionLost)  # that came too late
    for what in ("consume", "call"):
        assert isinstance(ended[what], ConnectionLost), ended
    await bench.node.stop()


async def test_a_thread_that_holds_a_record_may_settle_it_after_the_end_of_its_bus(tmp_path: Path):
    bench = await start_node("unix", tmp_path)

    def use() -> None:
        with polybus.connect_sync(bench.url) as bus:
            bus.produce("t", b"x", create=True)
            records = bus.consume("t", "g").start()
            record = next(records)
        record.ack()
        records.close()
        with pytest.raises(ConnectionLost):
            next(records)
        with pytest.raises(ConnectionLost):
            bus.publish("a")

    await asyncio.to_thread(use)
    await bench.node.stop()
