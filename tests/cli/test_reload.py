"""SIGHUP to a node at work: who may do what changes, and nothing of what goes on is dropped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import polybus
from polybus.errors import NotAuthorized
from polybus.protocols.gsb.client import GsbClient
from polybus.protocols.t2.client import Connector
from polybus.protocols.zbus.client import MqClient
from tests.cli.processes import node

RELOADS = 20
OPEN = "anonymous may register call publish subscribe produce consume declare"


def write(file: Path, *rules: str) -> None:
    quoted = ", ".join(f'"{rule}"' for rule in rules)
    # Put in place whole: the signal before may still be on its way.
    fresh = file.with_suffix(".new")
    fresh.write_text(f"[policy]\nrules = [{quoted}]\n")
    fresh.replace(file)


async def echo(request: Any) -> bytes:
    return b"echo"


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


class Load:
    """Clients of four wires that call, publish and produce one after the other until they are stopped."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.heard: Counter[str] = Counter()
        self.stopped = False

    async def repeat(self, what: str, act: Callable[[], Any]) -> None:
        while not self.stopped:
            await act()
            self.done[what] += 1

    def hear(self, what: str) -> None:
        self.heard[what] += 1


@contextlib.asynccontextmanager
async def at_work(place: str) -> AsyncIterator[Load]:
    load = Load()
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        gsb_service = await enter(GsbClient(f"tcp://{place}"))
        gsb = await enter(GsbClient(f"tcp://{place}"))
        t2_service = await enter(await Connector.tcp(place).connect())
        t2 = await enter(await Connector.tcp(place).connect())
        zbus = await enter(await MqClient.connect(place))
        bus = await enter(polybus.connect(f"polybus://{place}"))
        await gsb_service.bind("/gsb", echo)
        await gsb_service.subscribe("/said", lambda *_: load.hear("gsb broadcast"))
        heard = await t2_service.subscribe_bytes("said")
        claims = await t2_service.serve_bytes("t2")
        await bus.serve("native", echo)
        await zbus.declare("kept")

        async def serve_t2() -> None:
            async for _topic, request_id, payload in claims:
                await t2_service.respond_bytes(request_id, payload)

        async def listen_t2() -> None:
            async for _topic, _payload in heard:
                load.hear("t2 publication")

        beside = [asyncio.create_task(work()) for work in (serve_t2, listen_t2)]
        acts: dict[str, Callable[[], Any]] = {
            "gsb call": lambda: gsb.call("/gsb", b"x"),
            "gsb broadcast": lambda: gsb.broadcast("/said", b"x"),
            "t2 request": lambda: t2.request_bytes("t2", b"x"),
            "t2 publication": lambda: t2.publish_bytes("said", b"x"),
            "zbus produce": lambda: zbus.produce("kept", b"x"),
            "native call": lambda: bus.call("gsb", b"x"),
            "native produce": lambda: bus.produce("kept", b"x"),
        }
        async with asyncio.TaskGroup() as group:
            for what, act in acts.items():
                group.create_task(load.repeat(what, act))
            await until(lambda: len(load.done) == len(acts))
            yield load
            load.stopped = True
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)


@pytest.mark.timeout(90)
async def test_reloading_under_load_drops_nothing(tmp_path):
    file = tmp_path / "polybus.toml"
    write(file, OPEN)
    flags = ("--config", str(file), "--listen", "tcp://127.0.0.1:0", "--data", str(tmp_path / "d"))
    with node(*flags) as (process, lines):
        place = lines[0].removeprefix("tcp://")
        async with asyncio.timeout(60):
            async with at_work(place) as load:
                for number in range(RELOADS):
                    # Other rules each time, which allow the same.
                    write(file, OPEN, f"token:nobody{number} may admin")
                    before = load.done.total()
                    os.kill(process.pid, signal.SIGHUP)
                    await until(lambda before=before: load.done.total() > before + 20)  # type: ignore[misc]
                write(file, "nonsense")
                os.kill(process.pid, signal.SIGHUP)
                before = load.done.total()
                await until(lambda: load.done.total() > before + 20)
            # Every task ended well, so every call was answered and every record acknowledged.
            assert min(load.done.values()) > 0
            assert load.heard["gsb broadcast"] >= load.done["gsb broadcast"]
            async with polybus.connect(f"polybus://{place}") as bus:
                kept = (await bus.topic("kept")).end
                assert kept == load.done["zbus produce"] + load.done["native produce"]
                write(file, "anonymous may call")
                os.kill(process.pid, signal.SIGHUP)
                with contextlib.suppress(NotAuthorized):
                    while True:
                        await bus.publish("said", b"x")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=15)
    assert said.count("the settings were read again: policy.rules") >= RELOADS
    assert "refused, the old ones stay" in said
    assert "Traceback" not in said
