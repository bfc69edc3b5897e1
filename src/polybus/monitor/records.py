"""Records for people: found by offset, time or tag, and shown as JSON, text or bytes.

Invariant: an answer is bounded in records, in bytes and in how much of the topic it looks at, whatever was asked;
nothing here moves a group or changes a record.
"""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec
from msgspec import UNSET

from polybus.core.filter import Predicate, parse_filter
from polybus.core.topics import Topics
from polybus.errors import OutOfRange
from polybus.model import record as model
from polybus.monitor import shapes
from polybus.monitor.turns import Turns

PREVIEW: Final = 4096  # bytes of a payload in a list
WHOLE: Final = 256 * 1024  # and of one record that was asked for by itself
MAX_SCAN: Final = 20_000  # records looked at for one answer with a filter
READ: Final = 500
READ_BYTES: Final = 4 * 1024 * 1024

Format = Literal["json", "text", "base64"]
_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def show(payload: bytes, limit: int, *, raw: bool = False) -> tuple[Format, str, bool]:
    """A payload as text, how that is to be read, and whether something was left out."""
    part = payload[:limit]
    truncated = len(part) < len(payload)
    text = None if raw else _decode(part, truncated)
    if text is None:
        return "base64", _base64(part), truncated
    if not truncated and text[:1] in ("{", "["):
        try:
            # Laid out without being read: numbers stay as they were written.
            return "json", msgspec.json.format(part, indent=2).decode(), False
        except msgspec.DecodeError:
            pass
    return "text", text, truncated


def _decode(part: bytes, truncated: bool) -> str | None:
    """The text, or None for bytes that are none; a cut may go through the last character."""
    for lost in range(4 if truncated else 1):
        try:
            text = part[: len(part) - lost].decode()
        except UnicodeDecodeError:
            continue
        return None if _CONTROL.search(text) else text
    return None


def _base64(data: bytes) -> str:
    # msgspec writes bytes as base64; the quotes are not part of it.
    return msgspec.json.encode(data)[1:-1].decode()


def shown(record: model.Record, limit: int, *, raw: bool = False) -> shapes.Record:
    """One record."""
    format, payload, truncated = show(record.payload, limit, raw=raw)
    return shapes.Record(
        offset=record.offset,
        time_ms=record.time_ms,
        key=record.key.decode("utf-8", "backslashreplace"),
        tag=record.tag,
        id=record.id,
        headers=dict(record.headers),
        size=len(record.payload),
        format=format,
        payload=payload,
        truncated=truncated,
    )


async def browse(topics: Topics, topic: str, question: shapes.RecordQuestion) -> shapes.Records:
    """The records that were asked for, in log order.

    Raises:
        NoSuchTopic; InvalidName: the tag filter does not parse; StorageError.
    """
    info = topics.info(topic)
    passes = parse_filter(question.tag) if question.tag else None
    if question.offset is not UNSET:
        start = min(max(question.offset, info.first), info.end)
    elif question.time_ms is not UNSET:
        start = await topics.engine.offset_at(topic, question.time_ms)
    else:
        # Of a filtered topic the last records may hold none that passes, so look further back.
        start = max(info.first, info.end - (MAX_SCAN if passes else question.limit))
    unplaced = question.offset is UNSET and question.time_ms is UNSET
    newest = unplaced and passes is not None
    found, position, scanned = await _scan(topics, topic, start, passes, question, newest)
    if newest:
        found = found[-question.limit :]
    turns = Turns()
    items = []
    for record in found:
        items.append(shown(record, PREVIEW, raw=question.raw == "base64"))
        if turns.over():
            await turns.rest()
    now = topics.info(topic)
    return shapes.Records(
        topic=topic, first=now.first, end=now.end, next=position, scanned=scanned, items=items
    )


async def _scan(
    topics: Topics,
    topic: str,
    start: int,
    passes: Predicate | None,
    question: shapes.RecordQuestion,
    all_of_it: bool,
) -> tuple[list[model.Record], int, int]:
    found: list[model.Record] = []
    position, scanned, turns = start, 0, Turns()
    most = READ if passes else question.limit
    while scanned < MAX_SCAN and position < topics.info(topic).end:
        records = await read(topics, topic, position, most)
        if not records:
            break
        for record in records:
            position = record.offset + 1
            scanned += 1
            if passes is None or passes(record.tag):
                found.append(record)
                if len(found) >= question.limit and not all_of_it:
                    return found, position, scanned
            if turns.over():
                await turns.rest()
    return found, position, scanned


async def read(topics: Topics, topic: str, start: int, most: int) -> list[model.Record]:
    """Some records from `start` on; what retention has taken meanwhile is passed over."""
    try:
        return list(await topics.engine.read(topic, start, most, READ_BYTES))
    except OutOfRange:
        info = topics.info(topic)
        if start >= info.end:
            return []
        return list(await topics.engine.read(topic, info.first, most, READ_BYTES))


async def one(topics: Topics, topic: str, offset: int, *, raw: bool = False) -> shapes.Record:
    """One record with much more of its payload.

    Raises:
        NoSuchTopic; OutOfRange: there is no record at that offset.
    """
    info = topics.info(topic)
    records = []
    if info.first <= offset < info.end:
        records = list(await topics.engine.read(topic, offset, 1, READ_BYTES))
    if not records or records[0].offset != offset:
        raise OutOfRange(topic, offset, info.first, info.end)
    return shown(records[0], WHOLE, raw=raw)
