"""Every error polybus raises, with a stable number and a hint that says what to do.

Invariants: a code is never reused, and `ALL` holds each concrete class exactly once; the CLI's `errors lookup`
and the reference page are made from it. A field of an error is always there: its default stands where a peer that
named the error did not tell it.

    PolybusError
    ├─ ProtocolError            LocalProtocolError | RemoteProtocolError
    ├─ NotReachable             NoSuchService | NoSuchTopic | NoSuchGroup | PeerUnavailable
    ├─ Refused                  NotAuthorized | LimitExceeded | NameTaken | InvalidName | Conflict
    ├─ TimedOut                 CallTimeout | AckTimeout
    ├─ Interrupted              ConnectionLost | ServiceFailed | Draining | SlowConsumer
    ├─ StorageError             StorageFull | CorruptRecord | OutOfRange | FormatTooNew | FolderInUse
    └─ ConfigError
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class PolybusError(Exception):
    """The root of the tree; `text` is for people, `code` for programs, `hint` says what to do next."""

    code: ClassVar[int] = 1000
    hint: ClassVar[str] = "Look at the node's log for the connection named in the message."

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class ProtocolError(PolybusError):
    """Bytes or an order of events that a wire does not allow."""

    code = 1100
    hint = "One of the two sides does not speak the wire it claims to speak."


class LocalProtocolError(ProtocolError):
    """Our own side asked for something that the wire cannot say."""

    code = 1101
    hint = "Correct the call: the message says what the wire allows."


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the wire does not allow; its connection is closed."""

    code = 1102
    hint = "Check the peer's version and that it was pointed at the right port."


class NotReachable(PolybusError):
    """Nobody is there to take it."""

    code = 1200
    hint = "See `polybus service ls` and `polybus topic ls` for what is there."


class NoSuchService(NotReachable):
    """No endpoint has registered a name that answers this call."""

    code = 1201
    hint = "Start the service, or look for a spelling mistake with `polybus service ls`."
    name: str = ""

    def __init__(self, name: str, text: str | None = None) -> None:
        super().__init__(text or f"no such service: {name}")
        self.name = name


class NoSuchTopic(NotReachable):
    """The durable topic does not exist on this node."""

    code = 1202
    hint = "Declare it with `polybus topic add NAME`, or produce with `create` (`polybus pub --create`)."
    topic: str = ""

    def __init__(self, topic: str) -> None:
        super().__init__(f"no such topic: {topic}")
        self.topic = topic


class NoSuchGroup(NotReachable):
    """The topic has no consume group of that name."""

    code = 1203
    hint = "See `polybus group ls TOPIC`; consuming with a new name declares it."
    topic: str = ""
    group: str = ""

    def __init__(self, topic: str, group: str) -> None:
        super().__init__(f"no such group: {group} on topic {topic}")
        self.topic = topic
        self.group = group


class PeerUnavailable(NotReachable):
    """The node or peer could not be connected."""

    code = 1204
    hint = "Check that the node runs and that the address is right: `polybus doctor`."


class Refused(PolybusError):
    """Understood, and not allowed."""

    code = 1300
    hint = "The message names the rule that refused it."


class NotAuthorized(Refused):
    """The policy does not let this identity do this with this name."""

    code = 1301
    hint = "Ask the operator for a rule that allows it, or connect with another identity."
    identity: str = ""
    verb: str = ""
    name: str = ""

    def __init__(self, identity: str, verb: str, name: str) -> None:
        super().__init__(f"{identity} may not {verb} {name}")
        self.identity = identity
        self.verb = verb
        self.name = name


class LimitExceeded(Refused):
    """A bound was met; `limit` and `actual` are in the unit that the text names."""

    code = 1302
    hint = "Send less at once, or raise the limit in the node's configuration."
    limit: int = 0
    actual: int = 0

    def __init__(self, text: str, *, limit: int, actual: int) -> None:
        super().__init__(f"{text} ({actual} > {limit})")
        self.limit = limit
        self.actual = actual


class NameTaken(Refused):
    """Another endpoint owns the name already."""

    code = 1303
    hint = "`polybus service ls` shows the owner."
    name: str = ""

    def __init__(self, name: str) -> None:
        super().__init__(f"name already taken: {name}")
        self.name = name


class InvalidName(Refused):
    """The text is no name, pattern, topic or group."""

    code = 1304
    hint = "Segments are joined by `/`; wildcards stand alone in a segment and only in patterns."
    name: str = ""
    reason: str = ""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"invalid name {name!r}: {reason}")
        self.name = name
        self.reason = reason


class Conflict(Refused):
    """The request contradicts what is already there."""

    code = 1305
    hint = "Read the present state first, then ask again."


class TimedOut(PolybusError):
    """The time given is over."""

    code = 1400
    hint = "Give it more time, or look why the other side is slow with `polybus top`."


class CallTimeout(TimedOut):
    """No reply came before the call's deadline; whether the service acted is not known."""

    code = 1401


class AckTimeout(TimedOut):
    """The node did not acknowledge in time; whether the record is stored is not known."""

    code = 1402
    hint = "Produce again with the same id: it is stored once."


class Interrupted(PolybusError):
    """It began, and something went away."""

    code = 1500
    hint = "Try again; the text says what went away."


class ConnectionLost(Interrupted):
    """The connection ended with this request under way."""

    code = 1501


class ServiceFailed(Interrupted):
    """The service answered with an error, or went away before it answered.

    `detail` keeps the service's own payload, whatever its shape.
    """

    code = 1502
    hint = "The text is the service's own; look at its log."
    detail: bytes = b""

    def __init__(self, text: str, detail: bytes = b"") -> None:
        super().__init__(text)
        self.detail = detail


class Draining(Interrupted):
    """The node is stopping and takes nothing new."""

    code = 1503
    hint = "Connect again: another node, or this one after its restart, will take it."


class SlowConsumer(Interrupted):
    """The endpoint did not take what was sent to it; `pending_bytes` was its queue."""

    code = 1504
    hint = "Read faster, subscribe to less, or raise `limits.pending_bytes`."
    pending_bytes: int = 0

    def __init__(self, text: str, pending_bytes: int) -> None:
        super().__init__(text)
        self.pending_bytes = pending_bytes


class StorageError(PolybusError):
    """The durable log could not do it."""

    code = 1600
    hint = "See `polybus topic verify` and the node's log."


class StorageFull(StorageError):
    """No space; nothing of this batch is visible and the log stays usable for readers."""

    code = 1601
    hint = "Free disk space or tighten retention; producing works again by itself."


class CorruptRecord(StorageError):
    """A chunk fails its checksum."""

    code = 1602
    hint = "Run `polybus topic verify`; restore the segment from a backup."
    segment: str = ""
    position: int = 0
    reason: str = ""

    def __init__(self, segment: str, position: int, reason: str) -> None:
        super().__init__(f"corrupt chunk in {segment} at byte {position}: {reason}")
        self.segment = segment
        self.position = position
        self.reason = reason


class OutOfRange(StorageError):
    """The offset lies outside of what the topic still holds."""

    code = 1603
    hint = "Read from `first` on: earlier records were removed by retention."
    topic: str = ""
    offset: int = 0
    first: int = 0
    end: int = 0

    def __init__(self, topic: str, offset: int, first: int, end: int) -> None:
        super().__init__(f"offset {offset} of {topic} is outside of {first}..{end}")
        self.topic = topic
        self.offset = offset
        self.first = first
        self.end = end


class FormatTooNew(StorageError):
    """The data folder was written by a newer version."""

    code = 1604
    hint = "Run the newer polybus again, or restore a backup made by this version."


class FolderInUse(StorageError):
    """Another node has the data folder open."""

    code = 1605
    hint = "Stop the other node, or give this one its own `--data` folder."


class ConfigError(PolybusError):
    """A setting is missing, misspelt or out of bounds."""

    code = 1700
    hint = "`polybus config show` prints every setting with its origin."


def _concrete(cls: type[PolybusError]) -> list[type[PolybusError]]:
    return [cls, *(found for sub in cls.__subclasses__() for found in _concrete(sub))]


ALL: tuple[type[PolybusError], ...] = tuple(_concrete(PolybusError))

BY_CODE: dict[int, type[PolybusError]] = {cls.code: cls for cls in ALL}


def fields_of(error: PolybusError) -> dict[str, str | int]:
    """The data an error carries beside its text, in a form every wire can spell."""
    return {k: v for k, v in vars(error).items() if k != "text" and isinstance(v, (str, int))}


def from_code(code: int, text: str, fields: Mapping[str, str | int] | None = None) -> PolybusError:
    """The error a peer named by number, with the peer's text and data.

    An unknown number, from a newer peer, becomes the root class. The constructor is not run: the text is the peer's.
    """
    cls = BY_CODE.get(code, PolybusError)
    error = cls.__new__(cls)
    PolybusError.__init__(error, text)
    vars(error).update(fields or {})
    return error
