"""A program that produces into an engine and says on stdout what was acknowledged, until it is killed.

Lines: `try TOPIC NUMBER` before an append, `ack TOPIC NUMBER OFFSET` after its callback, `moved TOPIC FLOOR` after a
committed move of the group. Numbers rise per topic over all runs, so that order, loss and invention can be told.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

from polybus.core.engine import Append, GroupState, Move, TopicOptions
from polybus.errors import PolybusError
from polybus.model.clock import SystemClock
from polybus.model.record import NewRecord
from polybus.storage.engine import EmbeddedEngine, StorageOptions

TOPICS = ("a", "b", "c")
SIZES = StorageOptions(
    log_file=1 << 20, log_total=4 << 20, move_after=1 << 20, segment=1 << 20, upkeep_s=0.2
)


def say(text: str) -> None:
    # One write per line: a kill never leaves half of one in a pipe.
    os.write(1, text.encode() + b"\n")


async def produce(engine: EmbeddedEngine, topic: str, start: int, rng: random.Random) -> None:
    loop = asyncio.get_running_loop()
    number = start
    while True:
        futures = []
        for _ in range(rng.randrange(1, 40)):
            batch = range(number, number + rng.choice((1, 1, 1, 3, 20)))
            number = batch.stop
            records = [NewRecord(b"%s %d " % (topic.encode(), n) + bytes(n % 300)) for n in batch]
            future = loop.create_future()

            def done(
                offset: int,
                error: PolybusError | None,
                batch: range = batch,
                future: asyncio.Future[None] = future,
            ) -> None:
                assert error is None, error
                for n, value in enumerate(batch):
                    say(f"ack {topic} {value} {offset + n}")
                future.set_result(None)

            say(f"try {topic} {batch.stop - 1}")
            engine.append(topic, records, done)
            futures.append(future)
        await asyncio.gather(*futures)
        floor = engine.topic(topic).end // 2
        await engine.commit([Move(topic, "g", floor), Append("moves", [NewRecord(b"%d" % floor)])])
        say(f"moved {topic} {floor}")


async def main() -> None:
    folder, seed = Path(sys.argv[1]), int(sys.argv[2])
    engine = EmbeddedEngine(folder, SystemClock(), options=SIZES)
    await engine.start()
    known = {info.name for info in engine.topics()}
    for topic in (*TOPICS, "moves"):
        if topic not in known:
            await engine.declare(topic, TopicOptions())
    say("ready")
    tasks = []
    for topic in TOPICS:
        if not engine.groups(topic):
            await engine.save_group(topic, GroupState("g", {}, 0))
        # The next number follows the last record, acknowledged or not.
        info = engine.topic(topic)
        last = -1
        if info.end:
            (record,) = await engine.read(topic, info.end - 1, 1, 1)
            last = int(record.payload.split()[1])
        tasks.append(produce(engine, topic, last + 1, random.Random(f"{seed}{topic}")))
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    asyncio.run(main())
