"""Measures the durable log beside its floors, in one run on one folder.

The floors: a raw loop of write and fdatasync of the same bytes, and a bare group commit in Python with
one callback per record and no encoding. Every case runs once per round and the table shows medians of
rounds, so that a busy machine disturbs all alike.

    python benches/log/run.py [--quick] [--folder PATH] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

import polybus.model.arrow  # noqa: F401  (its import is no part of a read)
from polybus.core.endpoint import Endpoint
from polybus.core.engine import TopicOptions
from polybus.core.group_options import GroupOptions
from polybus.core.topics import Topics
from polybus.errors import PolybusError
from polybus.model.chunk import encode_chunk, parse_chunk
from polybus.model.clock import SystemClock
from polybus.model.record import Delivery, NewRecord
from polybus.storage.checkpoint import Changes, Checkpoint, Meta, collect, segment_key, segment_row
from polybus.storage.engine import EmbeddedEngine, StorageOptions
from polybus.storage.segment import Segment, segment_name
from polybus.storage.state import State, folder_name
from polybus.storage.topic_log import TopicLog

KIB = b"\x5a" * 1024
FILE_BYTES = 64 << 20
Rates = dict[str, float]


# -- floors -----------------------------------------------------------------------------------------------------------


def log_file(folder: Path) -> int:
    """A file as the commit log uses them: allocated, and written before."""
    fd = os.open(folder / "floor", os.O_RDWR | os.O_CREAT)
    for position in range(0, FILE_BYTES, 1 << 20):
        os.pwrite(fd, bytes(1 << 20), position)
    os.fsync(fd)
    return fd


def raw_loop(folder: Path, size: int, seconds: float) -> float:
    """Writes of `size` bytes and syncs per second."""
    fd = log_file(folder)
    data = os.urandom(size)
    count = position = 0
    end = time.perf_counter() + seconds
    begun = time.perf_counter()
    while time.perf_counter() < end:
        os.pwrite(fd, data, position)
        os.fdatasync(fd)
        position = position + size if position + 2 * size < FILE_BYTES else 0
        count += 1
    took = time.perf_counter() - begun
    os.close(fd)
    return count / took


class BareCommit:
    """Group commit with nothing in it: bytes in, one callback per record."""

    def __init__(self, folder: Path) -> None:
        self._fd = log_file(folder)
        self._loop = asyncio.get_running_loop()
        self._mutex = threading.Lock()
        self._wake = threading.Lock()
        self._wake.acquire()
        self._queue: list[tuple[bytes, Callable[[], None]]] = []
        self._idle = True
        self._stopped = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def append(self, data: bytes, done: Callable[[], None]) -> None:
        with self._mutex:
            self._queue.append((data, done))
            if not self._idle:
                return
            self._idle = False
        self._wake.release()

    def _run(self) -> None:
        position = 0
        while True:
            self._wake.acquire()
            while True:
                with self._mutex:
                    taken = self._queue
                    if not taken:
                        self._idle = True
                        break
                    self._queue = []
                data = b"".join([item[0] for item in taken])
                os.pwrite(self._fd, data, position)
                os.fdatasync(self._fd)
                position = position + len(data) if position + 2 * len(data) < FILE_BYTES else 0
                self._loop.call_soon_threadsafe(self._done, taken)
            if self._stopped:
                return

    def _done(self, taken: list[tuple[bytes, Callable[[], None]]]) -> None:
        for _, done in taken:
            done()

    def stop(self) -> None:
        self._stopped = True
        self._wake.release()
        self._thread.join()
        os.close(self._fd)


async def keep_in_flight(
    append: Callable[[Callable[..., None]], None], in_flight: int, seconds: float
) -> float:
    """Begin another append whenever one is done; appends per second."""
    finished = asyncio.get_running_loop().create_future()
    count, open_ = 0, in_flight
    end = time.perf_counter() + seconds

    def done(offset: int = 0, error: PolybusError | None = None) -> None:
        nonlocal count, open_
        if error is not None:
            raise error
        count += 1
        if time.perf_counter() < end:
            append(done)
            return
        open_ -= 1
        if not open_:
            finished.set_result(None)

    begun = time.perf_counter()
    for _ in range(in_flight):
        append(done)
    await finished
    return count / (time.perf_counter() - begun)


# -- the engine -------------------------------------------------------------------------------------------------------


def appender(
    engine: EmbeddedEngine, topics: int, batch: int
) -> Callable[[Callable[..., None]], None]:
    names = [f"t{n}" for n in range(topics)]
    records = [NewRecord(KIB)] * batch
    number = 0

    def append(done: Callable[..., None]) -> None:
        nonlocal number
        number += 1
        engine.append(names[number % topics], records, done)

    return append


async def warm_up(engine: EmbeddedEngine, topics: int = 1) -> None:
    """Bring the log to where it is after a minute of traffic: its files have been used before, and every topic has a
    segment."""
    for _ in range(2):
        await keep_in_flight(appender(engine, topics, 100), 4, 0.3)
        await engine.move_all()


async def with_engine(
    folder: Path, topics: int, work: Callable[[EmbeddedEngine], Awaitable[float]]
) -> float:
    engine = EmbeddedEngine(folder / "data", SystemClock())
    await engine.start()
    try:
        for n in range(topics):
            await engine.declare(f"t{n}", TopicOptions())
        return await work(engine)
    finally:
        await engine.stop()
        shutil.rmtree(folder / "data")


async def appends(folder: Path, seconds: float, rates: Rates) -> None:
    for group in (1, 64, 512):
        rates[f"raw {group}"] = raw_loop(folder, group * 1024, seconds) * group
    rates["raw 100"] = raw_loop(folder, 100 * 1024, seconds) * 100
    for in_flight in (1, 64, 512):
        bare = BareCommit(folder)
        rates[f"bare {in_flight}"] = await keep_in_flight(
            lambda done, bare=bare: bare.append(KIB, done), in_flight, seconds
        )
        bare.stop()

        async def single(engine: EmbeddedEngine, in_flight: int = in_flight) -> float:
            await warm_up(engine)
            return await keep_in_flight(appender(engine, 1, 1), in_flight, seconds)

        rates[f"engine {in_flight}"] = await with_engine(folder, 1, single)

    async def many(engine: EmbeddedEngine) -> float:
        await warm_up(engine, 1000)
        return await keep_in_flight(appender(engine, 1000, 1), 512, seconds)

    rates["1000 topics 512"] = await with_engine(folder, 1000, many)

    async def batches(engine: EmbeddedEngine) -> float:
        await warm_up(engine)
        return 100 * await keep_in_flight(appender(engine, 1, 100), 4, seconds)

    rates["batches of 100"] = await with_engine(folder, 1, batches)


class Caller(asyncio.Protocol):
    """One end of a pair that calls its other end without pause: what a node under calls does, in small."""

    stopped = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not Caller.stopped:
            message = json.loads(data)
            message["id"] += 1
            self._transport.write(json.dumps(message).encode())


async def start_calls(pairs: int) -> list[asyncio.BaseTransport]:
    Caller.stopped = False
    transports: list[asyncio.BaseTransport] = []
    loop = asyncio.get_running_loop()
    for _ in range(pairs):
        one, other = socket.socketpair()
        for end in (one, other):
            transport, _protocol = await loop.create_connection(Caller, sock=end)
            transports.append(transport)
        transport.write(b'{"id": 0, "name": "wallet/stellar/balance", "body": [1, 2, 3]}')
    return transports


async def commit_latency(folder: Path, seconds: float, rates: Rates) -> None:
    """Commit times, alone and while calls keep the event loop busy all the time.

    A commit is measured from its hand-over to the commit thread until that reports it synced; an append from the call
    to its callback, which also waits for the turns of the busy loop.
    """

    async def measure(engine: EmbeddedEngine) -> float:
        commits: list[float] = []
        log = engine._commit_log
        submit, report = log.submit, log._report
        begun_at: dict[int, float] = {}

        def submitted(batch: Any) -> None:
            begun_at[batch.sequence] = time.perf_counter()
            submit(batch)

        def reported(batches: list[Any], error: Any) -> None:
            now = time.perf_counter()
            commits.extend(now - begun_at.pop(batch.sequence, now) for batch in batches)
            report(batches, error)

        engine._intake._submit, log._report = submitted, reported
        for name, pairs in (("idle", 0), ("saturated", 32)):
            transports = await start_calls(pairs)
            commits.clear()
            appends_: list[float] = []
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                begun = time.perf_counter()
                future = asyncio.get_running_loop().create_future()
                engine.append("t0", [NewRecord(KIB)], lambda o, e, f=future: f.set_result(o))
                await future
                appends_.append(time.perf_counter() - begun)
            Caller.stopped = True
            for transport in transports:
                transport.close()
            for what, times in (("commit", sorted(commits)), ("append", sorted(appends_))):
                rates[f"{what} p50 ms, {name}"] = statistics.median(times) * 1000
                rates[f"{what} p99 ms, {name}"] = times[int(len(times) * 0.99)] * 1000
        return 0.0

    await with_engine(folder, 1, measure)


async def reading(folder: Path, records: int, rates: Rates) -> None:
    """Sequential reads of 200-byte records."""

    async def measure(engine: EmbeddedEngine) -> float:
        await engine.declare("t0", TopicOptions())
        payload = os.urandom(200)
        for start in range(0, records, 4096):
            chunk = encode_chunk(0, [NewRecord(payload)] * min(4096, records - start))
            ticket = await engine.stage("t0", chunk)
            await engine.publish_staged("t0", "bench", start, [ticket])
        await engine.move_all()
        end = engine.topic("t0").end
        for name in ("arrow", "records"):
            at, seen = 0, 0
            begun = time.perf_counter()
            while at < end:
                if name == "arrow":
                    part = await engine.fetch("t0", at, end, 8 << 20)
                    for raw in part.chunks:
                        seen += parse_chunk(raw).to_arrow("t0", at, end).num_rows
                    at = part.next
                else:
                    found = await engine.read("t0", at, 4096, 8 << 20)
                    seen += len(found)
                    at += len(found)
            assert seen == end
            rates[f"read {name}"] = seen / (time.perf_counter() - begun)
        return 0.0

    await with_engine(folder, 1, measure)


class Consumer(Endpoint):
    """A member in the same process: acknowledges at the end of the turn all it got in it."""

    __slots__ = ("got", "member", "on_done")

    def __init__(self, on_done: Callable[[int], None]) -> None:
        super().__init__()
        self.got: list[int] = []
        self.member: Any = None
        self.on_done = on_done

    def deliver_record(self, delivery: Delivery) -> None:
        if not self.got:
            asyncio.get_running_loop().call_soon(self.acknowledge)
        self.got.append(delivery.record.offset)

    def acknowledge(self) -> None:
        got, self.got = self.got, []
        self.member.ack(got)
        self.member.credit(len(got))
        self.on_done(len(got))


async def consuming(folder: Path, records: int, rates: Rates) -> None:
    """Records of 1 KiB through a group with acknowledgements, one and eight members, 256 in flight each."""

    async def measure(engine: EmbeddedEngine) -> float:
        topics = Topics(engine, SystemClock())
        await topics.start()
        for start in range(0, records, 1000):
            future = asyncio.get_running_loop().create_future()
            batch = [NewRecord(KIB)] * min(1000, records - start)
            engine.append("t0", batch, lambda o, e, f=future: f.set_result(o))
            await future
        for members in (1, 8):
            left, finished = records, asyncio.get_running_loop().create_future()

            def done(count: int) -> None:
                nonlocal left
                left -= count
                if not left:
                    finished.set_result(None)  # noqa: B023

            name = f"g{members}"
            await topics.groups.declare("t0", name, GroupOptions(window=256))
            begun = time.perf_counter()
            for _ in range(members):
                consumer = Consumer(done)
                consumer.member = topics.groups.join(consumer, "t0", name)
                consumer.member.credit(256)
            await finished
            rates[f"consume {members}"] = records / (time.perf_counter() - begun)
        await topics.stop()
        return 0.0

    await with_engine(folder, 1, measure)


FILL = """
import asyncio, os, sys
from pathlib import Path
from polybus.core.engine import TopicOptions
from polybus.model.clock import SystemClock
from polybus.model.record import NewRecord
from polybus.storage.engine import EmbeddedEngine, StorageOptions

async def main():
    left, topics, move_after = map(int, sys.argv[2:])
    options = StorageOptions(move_after=move_after)
    engine = EmbeddedEngine(Path(sys.argv[1]), SystemClock(), options=options)
    await engine.start()
    for number in range(topics):
        await engine.declare(f"t{number}", TopicOptions())
    batch = [NewRecord(bytes(1024))] * (1000 // topics)
    while left > 0:
        futures = []
        for number in range(4 * topics):
            future = asyncio.get_running_loop().create_future()
            told = lambda offset, error, f=future: f.set_result(offset)
            engine.append(f"t{number % topics}", batch, told)
            futures.append(future)
        await asyncio.gather(*futures)
        left -= 4 * 1024 * 1000
    os._exit(0)

asyncio.run(main())
"""


async def reopening(folder: Path, sizes: list[int], rates: Rates) -> None:
    """Opening after a kill with so many MiB, with a log full of small topics, and with a simulated topic of 100 GB."""
    path = folder / "kill"
    usual = StorageOptions()
    for size in sizes:
        await fill(path, size << 20, 1, usual.move_after)
        rates[f"reopen s, {size} MiB, killed"] = await open_seconds(path)
        rates[f"reopen s, {size} MiB, stopped"] = await open_seconds(path)
        shutil.rmtree(path)
    await fill(path, usual.log_total, 1000, 2 * usual.log_total)
    rates["reopen s, log full of 1,000 topics"] = await open_seconds(path)
    shutil.rmtree(path)
    path = folder / "sparse"
    make_sparse(path, 1600)
    rates["reopen s, 100 GB sparse"] = await open_seconds(path)
    shutil.rmtree(path)


async def fill(path: Path, size: int, topics: int, move_after: int) -> None:
    """Write so many bytes, one record of each topic after the other where there are many, and be killed."""
    numbers = [str(number) for number in (size, topics, move_after)]
    command = [sys.executable, "-c", FILL, str(path), *numbers]
    await asyncio.to_thread(subprocess.run, command, check=True)


async def open_seconds(path: Path) -> float:
    engine = EmbeddedEngine(path, SystemClock())
    begun = time.perf_counter()
    await engine.start()
    took = time.perf_counter() - begun
    await engine.stop()
    return took


def make_sparse(folder: Path, count: int) -> None:
    """A data folder with one topic of `count` segments of 64 MiB of which only the last chunk is there."""
    for name in ("log", "topics", "staged", "checkpoint"):
        (folder / name).mkdir(parents=True)
    state = State(folder)
    topic = TopicLog(1, "t", TopicOptions(), 1, folder / "topics" / folder_name(1, "t"))
    topic.folder.mkdir()
    state.add(topic)
    per_segment = 60_000
    rows: dict[bytes, object] = {}
    for number in range(count):
        base = number * per_segment
        chunk = encode_chunk(base + per_segment - 100, [NewRecord(KIB, time_ms=1)] * 100)
        segment = Segment(topic.folder / segment_name(base, 0), base, 0, base + per_segment)
        segment.length, segment.last_position, segment.chunks = (
            64 << 20,
            (64 << 20) - len(chunk),
            60,
        )
        segment.first_ms = segment.last_ms = 1
        with segment.path.open("wb") as file:
            file.truncate(segment.length)
            if number == count - 1:
                file.seek(segment.last_position)
                file.write(chunk)
        rows[segment_key(1, base)] = segment_row(segment)
        topic.moved = segment.end
    changes: Changes = collect(state, Meta(next_topic=2), 1)
    changes.put |= rows
    checkpoint = Checkpoint(folder / "checkpoint")
    checkpoint.open()
    checkpoint.save(changes)
    checkpoint.close()
    (folder / "version").write_text("1\n")


# -- the table --------------------------------------------------------------------------------------------------------


def table(rates: Rates) -> str:
    def ratio(a: str, b: str) -> str:
        return f"{rates[a] / rates[b]:.2f}"

    rows = [("case", "records/s", "floor", "ratio", "goal")]
    for n in (1, 64, 512):
        goal = "≥ 0.5" if n > 1 else ""
        row = f"appends of 1 KiB, {n} in flight", f"{rates[f'engine {n}']:,.0f}"
        floor = f"bare Python {rates[f'bare {n}']:,.0f}, raw {rates[f'raw {n}']:,.0f}"
        rows.append((*row, floor, ratio(f"engine {n}", f"bare {n}"), goal))
    row = "batches of 100", f"{rates['batches of 100']:,.0f}"
    rows.append((*row, f"raw {rates['raw 100']:,.0f}", ratio("batches of 100", "raw 100"), "≥ 0.5"))
    row = "1,000 topics, 512 in flight", f"{rates['1000 topics 512']:,.0f}"
    floor = f"one topic {rates['engine 512']:,.0f}"
    rows.append((*row, floor, ratio("1000 topics 512", "engine 512"), "≥ 0.7"))
    for n in (1, 8):
        members = "1 member" if n == 1 else f"{n} members"
        rows.append(
            (f"consume 1 KiB with acks, {members}", f"{rates[f'consume {n}']:,.0f}", "", "", "")
        )
    for name in ("arrow", "records"):
        goal = "≥ 1,000,000" if name == "arrow" else ""
        rows.append(
            (f"sequential read of 200 B as {name}", f"{rates[f'read {name}']:,.0f}", "", "", goal)
        )
    for name in sorted(rates):
        if name.startswith(("append p", "commit", "reopen")):
            goal = "≤ 5 × idle" if name == "commit p99 ms, saturated" else ""
            shown = ratio(name, "commit p99 ms, idle") if goal else ""
            rows.append((name, f"{rates[name]:.3f}", "", shown, goal))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = [
        "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


async def measure(folder: Path, quick: bool) -> Rates:
    rounds: list[Rates] = []
    seconds = 0.5 if quick else 2.0
    for _ in range(1 if quick else 3):
        rates: Rates = {}
        await appends(folder, seconds, rates)
        await commit_latency(folder, seconds, rates)
        await consuming(folder, 20_000 if quick else 200_000, rates)
        await reading(folder, 100_000 if quick else 1_000_000, rates)
        rounds.append(rates)
    await reopening(folder, [64] if quick else [64, 1024], rounds[0])
    names = list(rounds[0])
    return {n: statistics.median(r[n] for r in rounds if n in r) for n in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="half a minute, to see that it runs")
    parser.add_argument(
        "--folder", type=Path, help="on the disk to measure; default: a temporary one"
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        rates = uvloop.run(measure(Path(name), args.quick))
    print(json.dumps(rates, indent=1) if args.json else table(rates))


if __name__ == "__main__":
    main()
