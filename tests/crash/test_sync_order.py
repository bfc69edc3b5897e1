"""The acknowledgement leaves after the sync: seen in the system calls of a real process."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]
PRODUCER = """
import asyncio, os, sys
from pathlib import Path
from polybus.core.engine import TopicOptions
from polybus.model.clock import SystemClock
from polybus.model.record import NewRecord
from polybus.storage.engine import EmbeddedEngine

async def main():
    engine = EmbeddedEngine(Path(sys.argv[1]), SystemClock())
    await engine.start()
    await engine.declare("t", TopicOptions())
    for number in range(50):
        future = asyncio.get_running_loop().create_future()
        record = NewRecord(b"record-%04d" % number)
        engine.append("t", [record], lambda offset, error: future.set_result(offset))
        assert await future == number
        os.write(1, b"ack-%04d" % number)
    await engine.stop()

asyncio.run(main())
"""
WRITE = re.compile(r"pwrite(?:v2?|64)\((\d+), .*record-(\d{4})")
SYNCED = re.compile(r"fdatasync(?:\(\d+\)| resumed>\)).*= 0")
ACK = re.compile(r'write\(1, "ack-(\d{4})"')


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_each_ack_follows_the_sync_of_its_write(tmp_path: Path):
    trace = tmp_path / "trace"
    command = [
        "strace",
        "-f",
        "-s",
        "4096",
        "-e",
        "trace=pwrite64,pwritev,pwritev2,fdatasync,write",
    ]
    command += ["-o", str(trace), sys.executable, "-c", PRODUCER, str(tmp_path / "data")]
    subprocess.run(command, check=True, timeout=100, stdout=subprocess.DEVNULL)
    state: dict[str, str] = {}
    acked = 0
    for line in trace.read_text(errors="replace").splitlines():
        if match := WRITE.search(line):
            state.setdefault(match[2], "written")
        elif SYNCED.search(line):
            state = {n: "synced" if s == "written" else s for n, s in state.items()}
        elif match := ACK.search(line):
            assert state.get(match[1]) == "synced", match[1]
            acked += 1
    assert acked == 50
