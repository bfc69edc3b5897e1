"""kill -9 under load, ten times: nothing acknowledged is lost, nothing is invented, the order is kept."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from polybus.model.clock import SystemClock
from polybus.storage.engine import EmbeddedEngine
from polybus.storage.verify import verify_folder
from tests.crash.driver import SIZES, TOPICS
from tests.storage.client import read_all

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]
DRIVER = Path(__file__).with_name("driver.py")
SEED = 20


class Journal:
    """What the driver said in all its runs."""

    def __init__(self) -> None:
        self.acked: dict[str, dict[int, int]] = defaultdict(dict)
        self.tried: dict[str, int] = defaultdict(lambda: -1)
        self.moved: dict[str, int] = defaultdict(int)

    def read(self, output: str) -> None:
        for line in output.splitlines():
            match line.split():
                case ["ack", topic, number, offset]:
                    self.acked[topic][int(offset)] = int(number)
                case ["try", topic, number]:
                    self.tried[topic] = int(number)
                case ["moved", topic, floor]:
                    self.moved[topic] = int(floor)
                case ["ready"]:
                    pass
                case _:
                    raise AssertionError(line)


async def test_ten_kills_lose_and_invent_nothing(tmp_path: Path, unit: float):
    folder = tmp_path / "data"
    journal = Journal()
    rng = random.Random(SEED)
    for kill in range(10):
        command = [sys.executable, str(DRIVER), str(folder), str(kill)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            timer = time.monotonic() + rng.uniform(0.2, 1.5) * unit
            output = []
            while time.monotonic() < timer:
                output.append(process.stdout.readline())
            process.kill()
            output.append(process.stdout.read())
        journal.read("".join(output))
        await check(folder, journal)
    assert sum(map(len, journal.acked.values())) > 1000
    assert verify_folder(folder).problems == []


async def check(folder: Path, journal: Journal) -> None:
    engine = EmbeddedEngine(folder, SystemClock(), options=SIZES)
    await engine.start()
    try:
        for topic in TOPICS:
            records = await read_all(engine, topic)
            numbers = [int(record.payload.split()[1]) for record in records]
            assert numbers == list(range(len(numbers))), f"{topic}: order or density broken"
            lost = {
                offset: number
                for offset, number in journal.acked[topic].items()
                if offset >= len(numbers) or numbers[offset] != number
            }
            assert not lost
            assert len(numbers) - 1 <= journal.tried[topic], "a record that nobody produced"
            expected = [b"%s %d " % (topic.encode(), n) + bytes(n % 300) for n in numbers]
            assert [record.payload for record in records] == expected
            (group,) = engine.groups(topic)
            assert group.floor >= journal.moved[topic]
        floors = [int(record.payload) for record in await read_all(engine, "moves")]
        assert max(floors, default=0) <= max(engine.groups(t)[0].floor for t in TOPICS)
    finally:
        await engine.stop()
