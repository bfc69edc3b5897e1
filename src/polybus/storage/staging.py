"""Staged chunks: written by bulk writers, synced, and invisible until they are published.

Invariant: a ticket names a file that is whole and synced; a file without publication lasts a day.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from polybus.errors import Conflict, LimitExceeded
from polybus.model.chunk import HEADER_BYTES, parse_chunk, parse_header
from polybus.storage.files import Files

LAST_MS: Final = 24 * 3600 * 1000  # longer than any bulk job between staging and commit
MAX_STAGED_BYTES: Final = (
    64 << 20
)  # of one chunk, unpacked: what a reader must hold in memory at once


def check_staged(chunk: bytes) -> None:
    """Look at a chunk that comes from elsewhere.

    Raises:
        CorruptRecord: it is no chunk, or its columns lie.
        LimitExceeded: it is too large.
    """
    header = parse_header(chunk, "staged chunk")
    size = max(len(chunk), header.payload_plain)
    if size > MAX_STAGED_BYTES:
        raise LimitExceeded("bytes in one staged chunk", limit=MAX_STAGED_BYTES, actual=size)
    parse_chunk(chunk, "staged chunk").check("staged chunk")


def write_staged(files: Files, folder: Path, topic: int, chunk: bytes, now_ms: int) -> str:
    """Keep a chunk and return its ticket; runs in a thread."""
    check_staged(chunk)
    ticket = f"{topic:08x}-{now_ms:015d}-{secrets.token_hex(8)}"
    file = files.open(folder / ticket, create=True)
    try:
        file.write(0, [chunk])
        file.sync()
    except OSError:
        files.unlink(folder / ticket)
        raise
    finally:
        file.close()
    files.sync_folder(folder)
    return ticket


def find_staged(files: Files, folder: Path, topic: int, ticket: str) -> tuple[int, int]:
    """Records and bytes of a staged chunk; runs in a thread.

    Raises:
        Conflict: no such ticket for this topic.
    """
    path = folder / ticket
    if ticket != path.name or not ticket.startswith(f"{topic:08x}-"):
        raise Conflict(f"the ticket {ticket!r} is not one of this topic")
    try:
        file = files.open(path)
    except FileNotFoundError as exc:
        raise Conflict(f"the ticket {ticket!r} is not known, or was published or expired") from exc
    try:
        header = parse_header(file.read(0, HEADER_BYTES), ticket)
        return header.count, header.length
    finally:
        file.close()


def expired_tickets(names: list[str], now_ms: int) -> list[str]:
    """Those of the staged files that are older than a day."""
    return [name for name in names if _made_ms(name) < now_ms - LAST_MS]


def _made_ms(ticket: str) -> int:
    parts = ticket.split("-")
    return int(parts[1]) if len(parts) == 3 and parts[1].isdigit() else 0
