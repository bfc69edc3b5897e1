"""This node towards the trackers it has joined, and as a tracker towards the servers it tracks (protocol page §9).

Invariant: a tracker hears of this node when connected, at every change and every 30 seconds; a connection that ends
is opened again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from polybus.errors import ConnectionLost, PolybusError
from polybus.protocols.zbus.connection import ZbusConnection, open_connection
from polybus.protocols.zbus.info import encode_info

if TYPE_CHECKING:
    from polybus.protocols.zbus.room import ZbusRoom

log = logging.getLogger("polybus.zbus.tracker")

REPORT: Final = 30.0  # seconds
RETRY: Final = 3.0


class Uplinks:
    """All connections that the room opens by itself; they live in tasks that `stop` ends."""

    def __init__(self, room: ZbusRoom) -> None:
        self._room = room
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed: list[asyncio.Event] = []

    def start(self) -> None:
        """Join the trackers, and track whoever announces itself."""
        self._room.tracker.dial = self.dial
        for tracker in self._room.options.trackers:
            changed = asyncio.Event()
            self._changed.append(changed)
            self._spawn(self._report(tracker, changed))
        if self._changed:
            self._room.tracker.on_change.append(self._tell)

    async def stop(self) -> None:
        """End all connections."""
        self._room.tracker.dial = None
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _tell(self) -> None:
        for changed in self._changed:
            changed.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _report(self, tracker: str, changed: asyncio.Event) -> None:
        while True:
            try:
                connection = await open_connection(tracker)
            except PolybusError as exc:
                log.debug("tracker %s: %s", tracker, exc)
                await asyncio.sleep(RETRY)
                continue
            log.info("joined tracker %s", tracker)
            try:
                await self._keep_reporting(connection, changed)
            except ConnectionLost:
                log.info("lost tracker %s", tracker)
            finally:
                connection.abort()
            await asyncio.sleep(RETRY)

    async def _keep_reporting(self, connection: ZbusConnection, changed: asyncio.Event) -> None:
        while True:
            changed.clear()
            event = {"live": True, "serverInfo": self._room.infos.server()}
            headers = {"cmd": "track_pub", "ack": "0", "content-type": "application/json"}
            connection.send(headers, encode_info(event))
            waits = [asyncio.ensure_future(changed.wait())]
            waits.append(asyncio.ensure_future(connection.closed.wait()))
            try:
                await asyncio.wait(waits, timeout=REPORT, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in waits:
                    each.cancel()

    def dial(self, address: str, up: Callable[[], None], down: Callable[[], None]) -> Watch:
        """Watch a server: `up` when it is reached, `down` once when it is not, or no longer."""
        return Watch(self._spawn(self._watch(address, up, down)))

    async def _watch(self, address: str, up: Callable[[], None], down: Callable[[], None]) -> None:
        try:
            connection = await open_connection(address)
            try:
                up()
                await connection.closed.wait()
            finally:
                connection.abort()
        except PolybusError as exc:
            log.info("server %s cannot be tracked: %s", address, exc)
        down()


class Watch:
    """One watched server (`tracker.Link`)."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def close(self) -> None:
        """Stop watching."""
        self._task.cancel()
