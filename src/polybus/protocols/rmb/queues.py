"""The names of everything the bus keeps in Redis, per generation (protocol page §1.2, §3.2).

Invariant: no other file spells a key. Keys that begin with `polybus.` are ours and unknown to the originals.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from polybus.protocols.rmb.message import REPLY_QUEUE, Generation, Message, encode
from polybus.protocols.rmb.options import PushSide
from polybus.protocols.rmb.resp import Command

LOCAL: Final = "msgbus.system.local"
REMOTE: Final = "msgbus.system.remote"
REPLY: Final = REPLY_QUEUE
FORWARD: Final = "msgbus.system.forward"
PROXY_REQUEST: Final = "msgbus.system.proxy.request"
PROXY_REPLY: Final = "msgbus.system.proxy.reply"
BACKLOG: Final = "msgbus.system.backlog"
RETRY: Final = "msgbus.system.retry"
COUNTER: Final = "msgbus.counter."
PENDING: Final = "polybus.rmb.pending"
# Sorted set: commands that handlers declare, until when (ms)
SERVICES: Final = "polybus.rmb.services"
OWN: Final = "polybus.rmb.twin"  # whose Redis this is, for clients that ask their own twin
PROXY_REQUEST_CMD: Final = "system.proxy.request"
UPLOAD_CMD: Final = "msgbus.system.file.upload"

MAX_DIGITS: Final = 10  # of a twin's number
DECLARED_S: Final = 30  # how long a declaration stands; our handlers repeat it every third of that
MAX_TTL: Final = 10 * 365 * 86400  # Redis refuses what overflows its clock
RETURN_TTL: Final = 1800  # seconds that an answer waits for its reader (protocol page §2)
# What stands under `msgbus.` beside the queues of handlers: a message from elsewhere must not land there.
_RESERVED: Final = ("system.", "backlog.", "counter.", "proxy.backlog.")
_OWN_KEYS: Final = (*(f"msgbus.{name}" for name in _RESERVED), "polybus.rmb.")


def handler_queue(cmd: str) -> str:
    """Where the handlers of a command wait."""
    return f"msgbus.{cmd}"


def is_reserved(cmd: str) -> bool:
    """Whether a command's queue would be one of the bus's own keys."""
    return cmd.startswith(_RESERVED)


def is_own_key(key: str) -> bool:
    """Whether a key is the bus's own: an answer put there would come back as a message, again and again."""
    return key.startswith(_OWN_KEYS)


def declare(commands: Iterable[str], now_ms: int) -> Command:
    """What offers the commands of handlers to other wires, for a while."""
    until = now_ms + DECLARED_S * 1000
    return ("ZADD", SERVICES, *(part for cmd in commands for part in (until, cmd)))


class Layout:
    """Which keys a node uses, by its generation, and which end of a queue is the oldest."""

    def __init__(self, generation: Generation, push_side: PushSide) -> None:
        self.generation = generation
        left = push_side == "left"
        self.push = "LPUSH" if left else "RPUSH"
        self.pop = "RPOP" if left else "LPOP"
        self.blocking_pop = "BRPOP" if left else "BLPOP"

    def store(self, m: Message, text: bytes, ttl: int) -> list[Command]:
        """Keep a request: `m` as stamped, `text` as the client wrote it."""
        ttl = min(ttl, MAX_TTL)
        match self.generation:
            case "rs":
                return [("SETEX", f"msgbus.backlog.{m.uid}", ttl, encode(m, "rs"))]
            case "documented":
                return [("SETEX", f"backlog.{m.uid}", ttl, encode(m, "rs"))]
            case _:
                return [("HSET", BACKLOG, m.uid, text)]

    def drop(self, uid: str) -> list[Command]:
        """Forget a request where the generation deletes it; the second one lets it expire (protocol page §3.4)."""
        return [("HDEL", BACKLOG, uid)] if self.generation in ("v1", "v2") else []

    def forward(self, uid: str, dst: list[int]) -> list[Command]:
        """Queue a request for its destinations."""
        if self.generation == "documented":
            return [(self.push, FORWARD, uid)]
        return [(self.push, FORWARD, *(f"{uid}.{d}" for d in dst))]

    def parse_forward(self, item: str) -> tuple[str, int | None]:
        """Id and destination of an entry; None means every destination."""
        uid, dot, number = item.rpartition(".")
        is_number = number.isascii() and number.isdigit() and len(number) <= MAX_DIGITS
        if self.generation == "documented" or not dot or not is_number:
            return item, None
        return uid, int(number)

    def deliver(self, ret: str, text: bytes) -> list[Command]:
        """Give an answer to its client."""
        found: list[Command] = [("LPUSH", ret, text)]
        if self.generation == "v2":
            found.append(("EXPIRE", ret, RETURN_TTL))
        return found
