"""The live tail of a topic.

Invariant: a viewer costs one look per `TAIL_S`, however fast records come; what comes faster than it can be shown is
counted and passed over.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import msgspec

from polybus.core.filter import Predicate
from polybus.core.topics import Topics
from polybus.errors import NoSuchTopic, PolybusError
from polybus.monitor import records
from polybus.monitor.streams import Stream

log = logging.getLogger("polybus.monitor")

TAIL_S: Final = 0.25  # between two looks at what came to a topic
TAIL_RECORDS: Final = 200  # shown per look
PING_TURNS: Final = 60  # looks without a record after which a tail says that it is alive


class Tail:
    """One viewer of what comes to a topic."""

    def __init__(
        self, topics: Topics, topic: str, passes: Predicate | None, contains: bytes
    ) -> None:
        self._topics = topics
        self._topic = topic
        self._passes = passes
        self._contains = contains
        self._position = topics.info(topic).end

    async def run(self, stream: Stream) -> None:
        """Send what comes until the viewer goes.

        Raises:
            NoSuchTopic: the topic was removed.
        """
        idle = 0
        alive = stream.write(b": hello\n\n")
        while alive:
            await asyncio.sleep(TAIL_S)
            idle += 1
            try:
                event = await self._next()
            except NoSuchTopic:
                raise
            except PolybusError as exc:
                # Said once, here and to the viewer; a topic that cannot be read now may be read later.
                log.warning("the tail of %s ends: %s", self._topic, exc)
                stream.send("gone", msgspec.json.encode(exc.text))
                return
            if event is not None:
                idle = 0
                alive = stream.send("records", msgspec.json.encode(event))
            elif idle >= PING_TURNS:
                idle = 0
                alive = stream.write(b": still here\n\n")
            else:
                alive = not stream.closed

    async def _next(self) -> dict[str, Any] | None:
        info = self._topics.info(self._topic)
        skipped = max(0, info.end - TAIL_RECORDS - self._position)
        start = self._position = max(self._position + skipped, info.first)
        if start >= info.end:
            self._position = min(start, info.end)
            return None
        found = await records.read(self._topics, self._topic, start, TAIL_RECORDS)
        if found:
            self._position = found[-1].offset + 1
        shown = [
            records.shown(record, records.PREVIEW)
            for record in found
            if (self._passes is None or self._passes(record.tag))
            and self._contains in record.payload
        ]
        return {"skipped": skipped, "items": shown} if shown or skipped else None
