"""The options of `format("polybus")`: parsed once, in one place, with errors that name the option.

Invariant: an option that is misspelt or does not fit is refused before anything is connected.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from polybus.errors import ConfigError, InvalidName
from polybus.model.pattern import check_pattern, matches
from polybus.spark.link import Place
from polybus.transports.url import Address, parse_address

DEFAULT_URL: Final = "polybus://127.0.0.1:15555"
# Some hundred ms of work: many tasks, and their start is no matter
ROWS_PER_PARTITION: Final = 500_000

Position = str | int
"""An offset, "earliest", "latest", or a time as "@" and milliseconds."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the user said, with defaults filled in."""

    place: Place
    topics: tuple[str, ...]
    starting: Mapping[str, Position]
    ending: Mapping[str, Position]
    group: str
    rows_per_partition: int
    min_partitions: int
    max_rows: int
    max_bytes: int
    fail_on_data_loss: bool
    include_headers: bool
    pushdown: bool
    sink: str
    batch: int
    checkpoint: str


KNOWN: Final = {
    name.lower(): name
    for name in (
        *("url", "token", "tlsCa", "tlsCert", "tlsKey", "retrySeconds"),
        *("topics", "topic", "path", "paths", "startingOffsets", "endingOffsets", "group"),
        *("rowsPerPartition", "minPartitions", "maxRowsPerTrigger", "maxBytesPerTrigger"),
        *("failOnDataLoss", "includeHeaders", "pushdown"),
        *("sink", "batch", "checkpointLocation"),
    )
}
ANY_TOPIC: Final = "*"  # the key of a position that holds for every topic without its own


def parse_options(given: Mapping[str, str], *, streaming: bool = False) -> Options:
    """Everything a reader or writer is told.

    Raises:
        ConfigError: naming the option.
    """
    options = {key.lower(): str(value) for key, value in given.items()}
    for key in options:
        if key not in KNOWN:
            known = ", ".join(KNOWN.values())
            raise ConfigError(f"option {key}: there is no such option; known are {known}")
    start = options.get("startingoffsets", "latest" if streaming else "earliest")
    said = (options.get(name, "") for name in ("topics", "topic", "path", "paths"))
    topics = parse_topics(next(filter(None, said), ""))
    return Options(
        place=_place(options),
        topics=topics,
        starting=parse_positions("startingOffsets", start, topics),
        ending=parse_positions("endingOffsets", options.get("endingoffsets", "latest"), topics),
        group=options.get("group", ""),
        rows_per_partition=_number(options, "rowsPerPartition", ROWS_PER_PARTITION, least=1),
        min_partitions=_number(options, "minPartitions", 1, least=1),
        max_rows=_number(options, "maxRowsPerTrigger", 0, least=0),
        max_bytes=_number(options, "maxBytesPerTrigger", 0, least=0),
        fail_on_data_loss=_flag(options, "failOnDataLoss", True),
        include_headers=_flag(options, "includeHeaders", True),
        pushdown=_flag(options, "pushdown", False),
        sink=options.get("sink", ""),
        batch=_number(options, "batch", 0, least=0),
        checkpoint=options.get("checkpointlocation", ""),
    )


def _place(options: Mapping[str, str]) -> Place:
    text = options.get("url") or os.environ.get("POLYBUS_URL") or DEFAULT_URL
    try:
        address = parse_url(text)
    except ConfigError as exc:
        raise ConfigError(f"option url: {exc.text}") from exc
    tls = {
        key: options[name]
        for key, name in (("ca", "tlsca"), ("cert", "tlscert"), ("key", "tlskey"))
        if name in options
    }
    if tls and address.scheme != "tls":
        raise ConfigError("option url: TLS options need an address that begins with polybus+tls://")
    address = Address(
        address.scheme, address.host, address.port, address.path, "", {**address.options, **tls}
    )
    patience = _number(options, "retrySeconds", 60, least=0)
    token = options.get("token", os.environ.get("POLYBUS_TOKEN", ""))
    return Place(address, token, float(patience))


def parse_url(text: str) -> Address:
    """An address as the SDK takes it.

    Raises:
        ConfigError.
    """
    if text.startswith("polybus+"):
        return parse_address(text.removeprefix("polybus+"))
    if text.startswith("polybus:"):
        return parse_address("tcp" + text.removeprefix("polybus"))
    return parse_address(text)


def parse_topics(text: str) -> tuple[str, ...]:
    """Names and patterns, joined by commas, as a JSON array, or as PySpark spells a list that is given as an option.

    Raises:
        ConfigError.
    """
    parts: list[object]
    if text.lstrip().startswith("["):
        try:
            parts = ast.literal_eval(text) if "'" in text else json.loads(text)
        except (ValueError, SyntaxError) as exc:
            raise ConfigError(f"option topics: {text!r} is no JSON array: {exc}") from exc
    else:
        parts = [part.strip() for part in text.split(",") if part.strip()]
    try:
        return tuple(check_pattern(str(part)) for part in parts)
    except InvalidName as exc:
        raise ConfigError(f"option topics: {exc.text}") from exc


def parse_positions(name: str, text: str, topics: Sequence[str] = ()) -> dict[str, Position]:
    """A position for every topic, or a JSON object with one per topic; others then get the default.

    Each must be one of `topics`, if there are any: a misspelt one would be read from elsewhere without a word.

    Raises:
        ConfigError.
    """
    if not text.lstrip().startswith("{"):
        return {ANY_TOPIC: _position(name, text.strip())}
    try:
        found = json.loads(text)
    except ValueError as exc:
        raise ConfigError(f"option {name}: {text!r} is no JSON object: {exc}") from exc
    for topic in found if topics else ():
        if not any(matches(pattern, topic) for pattern in topics):
            raise ConfigError(f"option {name}: {topic} is not among the topics {', '.join(topics)}")
    default = "earliest" if name == "startingOffsets" else "latest"
    return {ANY_TOPIC: default, **{topic: _position(name, at) for topic, at in found.items()}}


def _position(name: str, value: object) -> Position:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if value in ("earliest", "latest"):
        return str(value)
    if isinstance(value, str):
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            time = None
        if time is not None:
            time = time if time.tzinfo else time.replace(tzinfo=UTC)
            return f"@{round(time.timestamp() * 1000)}"
    raise ConfigError(
        f"option {name}: {value!r} is neither earliest, latest, a time as 2026-01-31T12:00:00Z, "
        'nor a JSON object with an offset or one of these per topic, as {"orders": 17}'
    )


def _number(options: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    text = options.get(name.lower())
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise ConfigError(f"option {name}: {text!r} is no whole number from {least} on")
    return value


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name.lower())
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"option {name}: {text!r} is neither true nor false")
    return text.lower() == "true"
