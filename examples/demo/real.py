"""The published programs of the other projects, where the interop tests have built them: Rust, Java and Node.js.

Invariant: without `--real` nothing is built or fetched, and what is missing is said and done without.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import polybus
from examples.demo.habits import Habit
from examples.demo.stage import Stage
from polybus.errors import ServiceFailed

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("POLYBUS_CACHE") or Path.home() / ".cache" / "polybus")
MODULES = CACHE / "rmb-js" / "node_modules"
T2 = CACHE / "t2" / "bin" / "t2"
T2_CRATE = "t2_bus@0.2.0"
NODE_PROGRAM = ROOT / "tests" / "interop" / "rmb" / "real_client.js"
JAVA = ("java", "-Xmx128m", "--add-opens", "java.base/java.lang=ALL-UNNAMED")
KILL_S = 5


@dataclass(frozen=True, slots=True)
class Part:
    """A program: the service that it offers, or else what it is run for again and again."""

    title: str
    command: tuple[str, ...]
    service: str = ""


def build() -> None:
    """Build all of them, which takes minutes the first time."""
    from tests.interop.gsb.build import build_peer as build_gsb
    from tests.interop.rmb.npm import install
    from tests.interop.zbus.build import build_peer as build_zbus

    build_gsb()
    build_zbus()
    install()
    if not T2.exists():
        folders = ("--root", str(CACHE / "t2"), "--target-dir", str(CACHE / "t2-target"))
        subprocess.run(["cargo", "install", T2_CRATE, *folders], check=True)


def find(stage: Stage) -> tuple[list[Part], list[str]]:
    """Who takes part, and who does not and why."""
    rust, java = newest(CACHE / "gsb-peer"), newest(CACHE / "zbus-peer")
    classes = f"{java}/classes:{java}/lib/*"
    wanted = {
        Part("GSB in Rust", (str(rust), "serve", "/rust"), "rust/raw"): rust is not None,
        Part("T2 in Rust", (str(T2), "pub", "f32/plant/pressure")): T2.exists(),
        Part(
            "Zbus in Java",
            (*JAVA, "-cp", classes, "interop.Peer", "service", stage.address, "java"),
            "java",
        ): java is not None,
        Part(
            "RMB in Node.js",
            ("node", str(NODE_PROGRAM), "serve", str(stage.twins[1].redis_port)),
            "demo/echo",
        ): MODULES.exists(),
    }
    parts, without = [], []
    for part, built in wanted.items():
        if not built:
            without.append(f"{part.title} (not built; --real does)")
        elif shutil.which(part.command[0]) is None:
            without.append(f"{part.title} (there is no {part.command[0]})")
        else:
            parts.append(part)
    return parts, without


def newest(folder: Path) -> Path | None:
    """What was built last of what the interop tests keep there, by the hash of its sources."""
    return max(folder.glob("?" * 16), key=lambda each: each.stat().st_mtime, default=None)


@asynccontextmanager
async def program(stage: Stage, parts: list[Part]) -> AsyncIterator[list[Habit]]:
    """The services of some, and calls of other systems to them."""
    around = os.environ | {"GSB_URL": f"tcp://{stage.address}", "NODE_PATH": str(MODULES)}
    with (stage.folder / "real.log").open("ab") as log:
        running = [start(part, around, log) for part in parts if part.service]
        try:
            async with (
                polybus.connect(f"t2://{stage.address}") as t2,
                polybus.connect(f"gsb://{stage.address}") as gsb,
                polybus.connect(f"polybus://{stage.address}") as bus,
            ):
                calls = {
                    "rust/raw": lambda n: t2.call("rust/raw", b"from T2"),
                    "java": lambda n: gsb.call("java/plus", [n, 1]),
                    "demo/echo": lambda n: bus.call("demo/echo", b"from the SDK"),
                }

                def habit(part: Part) -> Habit:
                    if part.service:
                        return Habit(f"call to {part.title}", 5, calls[part.service])
                    where = f"tcp:{stage.address}"
                    return Habit(part.title, 2, lambda n: run(*part.command, str(n), where))

                yield [habit(part) for part in parts]
        finally:
            for process in running:
                process.terminate()
            await asyncio.gather(*(asyncio.to_thread(end, process) for process in running))


def start(part: Part, around: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a program that goes on, in a session of its own: Ctrl-C is for the demo, which ends it."""
    return subprocess.Popen(
        part.command, env=around, stdout=log, stderr=log, start_new_session=True
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a program that was asked to end; a stubborn one is killed."""
    try:
        process.wait(KILL_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


async def run(*command: str) -> None:
    """Run a program to its end."""
    process = await asyncio.create_subprocess_exec(*command)
    if code := await process.wait():
        raise ServiceFailed(f"{command[0]} ended with {code}")
