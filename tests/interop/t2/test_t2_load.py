"""The load generator of the benchmark believes no server: one wrong frame voids its figures."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest

from tests.interop.t2.servers import Server, folder

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

SOURCE = Path(__file__).parents[3] / "benches" / "t2" / "load.c"
FAULTY_FRAME = 200

Fault = Callable[[bytes, bytes], list[bytes]]
FAULTS: dict[str, Fault] = {
    "lost": lambda one, two: [two],
    "doubled": lambda one, two: [one, one, two],
    "swapped": lambda one, two: [two, one],
    "changed": lambda one, two: [one[:-1] + bytes([one[-1] ^ 1]), two],
    "cut": lambda one, two: [(len(one) - 5).to_bytes(4, "big") + one[4:-1], two],
}


@pytest.fixture(scope="session")
def load(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("bench") / "load"
    warnings = ["-Wall", "-Wextra", "-Wconversion", "-Werror"]
    subprocess.run(["cc", "-O2", *warnings, "-o", program, SOURCE], check=True)
    return program


async def run(load: Path, address: str, mode: str, receivers: int, pid: int) -> tuple[int, str]:
    arguments = [address, mode, "16", str(receivers), "plain", "0.3", str(pid)]
    process = await asyncio.create_subprocess_exec(
        load, *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output, _ = await process.communicate(b"x" * 64)
    assert process.returncode is not None
    return process.returncode, output.decode()


async def frame(reader: asyncio.StreamReader) -> bytes:
    header = await reader.readexactly(4)
    return header + await reader.readexactly(int.from_bytes(header, "big"))


class FaultyProxy:
    """Passes on what it gets, but for one fault in what the server sends on one connection."""

    def __init__(self, path: str, fault: Fault, faulty_connection: int) -> None:
        self._path = path
        self._fault = fault
        self._left = faulty_connection

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_faulty = self._left == 0
        self._left -= 1
        up_reader, up_writer = await asyncio.open_unix_connection(self._path)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pass(reader, up_writer, 0))
                tasks.create_task(self._pass(up_reader, writer, FAULTY_FRAME if is_faulty else 0))
        for end in (writer, up_writer):
            end.close()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, faulty: int
    ) -> None:
        number = 0
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                number += 1
                frames = [await frame(reader)]
                if number == faulty:
                    frames = self._fault(frames[0], await frame(reader))
                writer.write(b"".join(frames))
                await writer.drain()
        writer.close()


@pytest.mark.parametrize("transport", ["tcp", "unix"])
@pytest.mark.parametrize(("mode", "receivers"), [("publish", 1), ("publish", 8), ("request", 1)])
async def test_a_sound_server_gets_figures_without_loss(
    load: Path, real_t2: Server, mode: str, receivers: int, transport: str
):
    address = real_t2.addresses[transport]
    code, output = await run(load, address, mode, receivers, real_t2.process.pid)
    assert code == 0, output
    result = json.loads(output)
    assert result["lost"] == 0
    assert 0 < result["messages"] < result["sent"]
    assert 0 < result["server_cpu_s"] < result["seconds"] * 2
    assert 0 < result["p50_us"] <= result["p99_us"]


@pytest.mark.parametrize("connection", [0, 1], ids=["sender", "receiver"])
@pytest.mark.parametrize(
    ("mode", "fault"),
    # Neighbours in a stream of requests may be an Ack and a reply that have nothing to do with each
    # other, and whose order is free.
    [pair for pair in product(["publish", "request"], FAULTS) if pair != ("request", "swapped")],
)
async def test_a_fault_voids_the_run(
    load: Path, real_t2: Server, mode: str, fault: str, connection: int
):
    path = real_t2.addresses["unix"].removeprefix("unix:")
    proxy = FaultyProxy(path, FAULTS[fault], connection)
    with folder() as place:
        async with await asyncio.start_unix_server(proxy.serve, place / "proxy"):
            address = f"unix:{place}/proxy"
            code, output = await run(load, address, mode, 1, real_t2.process.pid)
    assert code == 1, output
    assert output.startswith(("load: not the frame that comes next", "load: not a number in"))
