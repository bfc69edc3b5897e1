"""What the node writes to stderr: text on a terminal, one JSON object per line otherwise.

Invariant: a line about a connection carries its id, as a field of its own, so that one `grep` tells
that connection's story.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Final, TextIO

import msgspec

from polybus.server.config import Log

# Given as `extra=connection.subject`.
FIELDS: Final = ("connection", "peer")


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


class JsonFormatter(logging.Formatter):
    """One JSON object per record, with stable keys."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": record.getMessage(),
        }
        line |= {key: vars(record)[key] for key in FIELDS if key in vars(record)}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class TextFormatter(logging.Formatter):
    """Time of day, level and text; the texts about a connection name it in words."""

    def format(self, record: logging.LogRecord) -> str:
        clock = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        line = f"{clock} {record.levelname.lower():7} {record.getMessage()}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def set_up_logging(settings: Log, stream: TextIO | None = None) -> None:
    """Send everything under `polybus` to `stream` (stderr), in the form that the settings ask for.

    Only programs call this; an embedded node leaves logging to the program around it.
    """
    stream = stream or sys.stderr
    as_text = settings.format == "text" or (settings.format == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter() if as_text else JsonFormatter())
    logger = logging.getLogger("polybus")
    logger.handlers = [handler]
    logger.setLevel(settings.level.upper())
    logger.propagate = False
    # asyncio reports here what it could not hand to anybody; it must not get lost.
    asyncio_logger = logging.getLogger("asyncio")
    asyncio_logger.handlers = [handler]
    asyncio_logger.propagate = False
