"""How much one identity may take of a node: connections, calls in flight, bytes per second, topics.

Invariant: an identity that no quota names costs nothing on any path; what is counted for one that has a quota is
given back exactly once.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from polybus.core.endpoint import Endpoint, Identity
from polybus.core.policy import check_who, is_meant
from polybus.errors import ConfigError, LimitExceeded
from polybus.model.units import SIZE

log = logging.getLogger("polybus.limits")

MAX_NAMES: Final = 100_000  # services, and as many subscriptions, of one connection
MAX_NAMES_SIZE: Final = 128 << 20  # of all of them; a hundred thousand names of ten segments fit
SEGMENT_COST: Final = 128  # bytes; the segments of a name cost more than its text
MAX_DEBT: Final = 10.0  # seconds; who is held back longer would be taken for dead by its own wire


def size_of_name(name: str) -> int:
    """What a name or pattern counts for towards `MAX_NAMES_SIZE`."""
    return len(name) + SEGMENT_COST * (name.count("/") + 1)


_PART: Final = re.compile(r"(\d+)\s+(connections?|calls?|topics?)|([\d.]+\s*\w+)/s")


@dataclass(frozen=True, slots=True)
class Quota:
    """What each identity that `who` names may have; None is as much as it likes."""

    who: str  # kind, kind:name, or * for everybody
    connections: int | None = None
    calls: int | None = None  # that wait for their answers
    bytes_per_s: int | None = None  # that it sends
    topics: int | None = None  # that it declared

    @classmethod
    def parse(cls, text: str) -> Self:
        """A quota as the operator writes it: `WHO at most 10 connections 100 calls 1MiB/s 5 topics`.

        Raises:
            ConfigError: it does not read so.
        """
        who, _, rest = text.partition(" at most ")
        found: dict[str, int] = {}
        for part in _PART.finditer(rest):
            if part[2]:
                found[part[2].rstrip("s") + "s"] = int(part[1])
            else:
                found["bytes_per_s"] = _size(text, part[3])
        if not found or _PART.sub("", rest).strip(", \t"):
            example = "`WHO at most 10 connections 100 calls 1MiB/s 5 topics`"
            raise ConfigError(f"{text!r} is no limit; write {example}, or some of these")
        check_who(who.strip())
        return cls(who.strip(), **found)


def _size(text: str, part: str) -> int:
    try:
        return int(SIZE.parse(part))
    except ValueError as exc:
        raise ConfigError(f"{text!r}: {exc}") from exc


@dataclass(frozen=True, slots=True)
class Owner:
    """Whom a new topic is counted for."""

    name: str
    limit: int


class Usage:
    """What one identity with a quota has at this moment."""

    __slots__ = ("calls", "debt", "held", "identity", "members", "quota", "seen", "warned")

    def __init__(self, identity: Identity, quota: Quota) -> None:
        self.identity = identity
        self.quota = quota
        self.members: set[Endpoint] = set()
        self.calls = 0
        self.seen: dict[int, int] = {}
        """By the id of each member: bytes that were counted already."""
        self.debt = 0.0
        self.held = False
        self.warned = False


class Quotas:
    """All quotas of a node; `on` is false when there are none."""

    def __init__(self, quotas: Sequence[Quota] = (), endpoints: Iterable[Endpoint] = ()) -> None:
        """Begin to count, with the parties that are there already."""
        self._quotas = tuple(quotas)
        self.on = bool(self._quotas)
        self._usages: dict[Identity, Usage] = {}
        self._ticked: float | None = None
        for endpoint in endpoints:
            usage = self.of(endpoint.identity)
            if usage is not None:
                self._add(usage, endpoint)

    def of(self, identity: Identity) -> Usage | None:
        """What is counted for an identity; None for one without a quota. The first line that names it counts."""
        if not self.on:
            return None
        usage = self._usages.get(identity)
        if usage is None and identity.kind != "local":
            quota = next((q for q in self._quotas if is_meant(q.who, identity)), None)
            if quota is not None:
                usage = self._usages[identity] = Usage(identity, quota)
        return usage

    # -- connections -------------------------------------------------------------------------------------------------

    def join(self, endpoint: Endpoint) -> None:
        """A party comes.

        Raises:
            LimitExceeded: its identity has as many connections as it may.
        """
        usage = self.of(endpoint.identity)
        if usage is None:
            return
        limit = usage.quota.connections
        if limit is not None and len(usage.members) >= limit:
            text = f"too many connections of {usage.identity}"
            if not usage.warned:
                log.warning("%s: more than %d", text, limit)
            usage.warned = True
            raise LimitExceeded(text, limit=limit, actual=len(usage.members) + 1)
        usage.warned = False
        self._add(usage, endpoint)

    def _add(self, usage: Usage, endpoint: Endpoint) -> None:
        usage.members.add(endpoint)
        usage.seen[endpoint.id] = endpoint.traffic.bytes_in
        if usage.held:
            endpoint.hold_input(True)

    def leave(self, endpoint: Endpoint) -> None:
        """A party has gone."""
        usage = self._usages.get(endpoint.identity)
        if usage is None or endpoint not in usage.members:
            return
        usage.members.discard(endpoint)
        usage.debt += endpoint.traffic.bytes_in - usage.seen.pop(endpoint.id)
        if not usage.members and not usage.calls and not usage.held:
            del self._usages[endpoint.identity]

    def release(self) -> None:
        """Hold nobody back any more: other quotas take over."""
        for usage in self._usages.values():
            if usage.held:
                usage.held = False
                for member in usage.members:
                    member.hold_input(False)

    # -- calls -------------------------------------------------------------------------------------------------------

    def counts_calls(self, identity: Identity) -> bool:
        """Whether calls of an identity have to be counted, so that no wire may take a short cut around the core."""
        usage = self.of(identity)
        return usage is not None and usage.quota.calls is not None

    def admit_call(self, identity: Identity) -> Usage | None:
        """Whom one more call would be counted for; None when it is not counted.

        Raises:
            LimitExceeded: as many calls of that identity wait for their answers as may.
        """
        usage = self.of(identity)
        if usage is None or usage.quota.calls is None:
            return None
        if usage.calls >= usage.quota.calls:
            text = f"too many calls of {identity} wait for their answers"
            raise LimitExceeded(text, limit=usage.quota.calls, actual=usage.calls + 1)
        return usage

    # -- bytes -------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Hold back the input of identities that sent more than they may; about ten times a second."""
        passed = 0.0 if self._ticked is None else now - self._ticked
        self._ticked = now
        for usage in self._usages.values():
            rate = usage.quota.bytes_per_s
            if rate is not None:
                self._settle(usage, rate, min(passed, 1.0))

    def _settle(self, usage: Usage, rate: int, passed: float) -> None:
        seen = usage.seen
        for member in usage.members:
            total = member.traffic.bytes_in
            usage.debt += total - seen[member.id]
            seen[member.id] = total
        usage.debt = min(max(0.0, usage.debt - rate * passed), rate * MAX_DEBT)
        held = usage.debt > 0
        if held != usage.held:
            usage.held = held
            for member in usage.members:
                member.hold_input(held)

    # -- topics ------------------------------------------------------------------------------------------------------

    def owner(self, identity: Identity) -> Owner | None:
        """Whom the topics that an identity declares are counted for; None when they are not."""
        usage = self.of(identity)
        if usage is None or usage.quota.topics is None:
            return None
        return Owner(str(identity), usage.quota.topics)
