"""The twin directory: who a number is, where it listens and which key is its own.

Invariant: what is believed was read within the cache time, or from the file as it is now; an entry that cannot be
understood is refused with its number, and a directory that became unreadable leaves the last good one in use.
"""

from __future__ import annotations

import asyncio
import json
import logging
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from polybus.errors import ConfigError
from polybus.protocols.rmb.keys import parse_account, parse_public_key
from polybus.protocols.rmb.message import GENERATIONS, Generation
from polybus.protocols.rmb.peers import Answer, Place, parse_place

log = logging.getLogger("polybus.rmb")

LOOK_AGAIN: Final = 1.0  # seconds between looks at the file
MISSING: Final = 5.0  # seconds until a twin that there is not is asked for again
MAX_MISSING: Final = 4096  # such twins that are remembered
MAX_LOOKUPS: Final = 10  # at a time, as the real daemon (protocol page §3.5)
GRAPHQL: Final = "graphql+"
_FIELDS: Final = frozenset(
    {"id", "address", "public_key", "account", "generation", "allow_unsigned", "name"}
)


class Twin(msgspec.Struct, frozen=True):
    """One entry."""

    id: int
    place: Place
    public_key: bytes | None = None
    generation: Generation | None = None
    allow_unsigned: bool = False
    account: str = ""

    @property
    def address(self) -> str:
        return str(self.place)


def parse_twin(raw: Any) -> Twin:
    """An entry of a directory.

    Raises:
        ConfigError: a field is missing, unknown or of the wrong kind.
    """
    if not isinstance(raw, dict):
        raise ConfigError(f"{raw!r:.80} is no twin")
    number = raw.get("id")
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 2**32:
        raise ConfigError(f"a twin's id is a number, not {number!r:.80}")
    where = f"twin {number}: "
    unknown = sorted(set(raw) - _FIELDS)
    if unknown:
        raise ConfigError(
            f"{where}unknown key {unknown[0]!r}; known are {', '.join(sorted(_FIELDS))}"
        )
    address, generation = raw.get("address"), raw.get("generation")
    unsigned = raw.get("allow_unsigned", False)
    if not isinstance(address, str) or not isinstance(unsigned, bool):
        raise ConfigError(f"{where}address is a text and allow_unsigned true or false")
    if generation is not None and generation not in GENERATIONS:
        raise ConfigError(f"{where}generation is one of {', '.join(GENERATIONS)}")
    try:
        key = _key_of(raw)
        place = parse_place(address)
    except ConfigError as exc:
        raise ConfigError(where + exc.text) from None
    if key is None and not unsigned:
        raise ConfigError(f"{where}it has neither public_key nor account, nor allow_unsigned")
    return Twin(number, place, key, generation, unsigned, raw.get("account", ""))


def _key_of(raw: dict[str, Any]) -> bytes | None:
    text, account = raw.get("public_key"), raw.get("account")
    if not isinstance(text, str | None) or not isinstance(account, str | None):
        raise ConfigError("public_key and account are texts")
    from_text = None if text is None else parse_public_key(text)
    from_account = None if account is None else parse_account(account)
    if from_text is not None and from_account is not None and from_text != from_account:
        raise ConfigError("public_key and account are two different keys")
    return from_text or from_account


def parse_directory(text: str) -> dict[int, Twin]:
    """A directory as TOML (`[[twin]]`) or as a JSON list.

    Raises:
        ConfigError.
    """
    try:
        if text.lstrip().startswith(("[", "{")) and not text.lstrip().startswith("[["):
            entries = json.loads(text)
        else:
            entries = tomllib.loads(text).get("twin", [])
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"the twin directory is neither TOML nor JSON: {exc}") from exc
    if not isinstance(entries, list):
        raise ConfigError("the twin directory is no list")
    twins: dict[int, Twin] = {}
    for raw in entries:
        twin = parse_twin(raw)
        if twin.id in twins:
            raise ConfigError(f"twin {twin.id} is listed twice")
        twins[twin.id] = twin
    return twins


class Directory(Protocol):
    """Where twins are looked up."""

    def knows(self, twin: int) -> bool:
        """Whether `get` can tell without asking anybody."""

    def get(self, twin: int) -> Twin | None:
        """The entry, as far as it is known now."""

    async def fetch(self, twin: int) -> Twin | None:
        """The entry, asked for if need be; None when there is none or nobody answers."""

    def forget(self, twin: int) -> None:
        """Believe the entry no longer: its address did not work."""

    def all(self) -> Iterable[Twin]:
        """Those known now."""


class FileDirectory:
    """A file, read again when it changes."""

    def __init__(self, path: Path, monotonic: Callable[[], float]) -> None:
        """Raises:
        ConfigError: it cannot be read now.
        """
        self._path = path
        self._monotonic = monotonic
        self._looked = monotonic()
        self._version = self._stat()
        self._twins = self._read()

    def knows(self, twin: int) -> bool:
        return True

    def get(self, twin: int) -> Twin | None:
        now = self._monotonic()
        if now - self._looked >= LOOK_AGAIN:
            self._look(now)
        return self._twins.get(twin)

    async def fetch(self, twin: int) -> Twin | None:
        return self.get(twin)

    def forget(self, twin: int) -> None:
        self._look(self._monotonic())

    def all(self) -> Iterable[Twin]:
        return self._twins.values()

    def _look(self, now: float) -> None:
        self._looked = now
        try:
            version = self._stat()
            if version == self._version:
                return
            self._version = version
            self._twins = self._read()
            log.info("read the twin directory again: %d twins", len(self._twins))
        except ConfigError as exc:
            log.warning("keeping the last good twin directory: %s", exc.text)

    def _stat(self) -> tuple[int, int, int]:
        try:
            found = self._path.stat()
        except OSError as exc:
            raise ConfigError(f"cannot read {self._path}: {exc.strerror}") from exc
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> dict[int, Twin]:
        try:
            return parse_directory(self._path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(f"cannot read {self._path}: {exc}") from exc
        except ConfigError as exc:
            raise ConfigError(f"{self._path}: {exc.text}") from None


class Fetch(Protocol):
    """How a directory reaches the network (see `Peers.fetch`)."""

    async def __call__(self, url: str, body: bytes | None = None) -> Answer: ...


class _Cached:
    """What the two directories on the network share: entries believed for a while, few questions at a time."""

    def __init__(self, url: str, fetch: Fetch, monotonic: Callable[[], float], ttl: float) -> None:
        self._url = url
        self._fetch = fetch
        self._monotonic = monotonic
        self._ttl = ttl
        self._twins: dict[int, tuple[float, Twin]] = {}
        self._doubted: dict[int, tuple[float, Twin]] = {}
        """Entries whose address did not work: used again when nothing newer is to be had."""
        self._missing: dict[int, float] = {}
        self._asking: dict[int, asyncio.Task[Twin | None]] = {}
        self._lookups = asyncio.Semaphore(MAX_LOOKUPS)

    def knows(self, twin: int) -> bool:
        return self.get(twin) is not None

    def get(self, twin: int) -> Twin | None:
        found = self._twins.get(twin)
        return found[1] if found is not None and found[0] > self._monotonic() else None

    def forget(self, twin: int) -> None:
        found = self._twins.pop(twin, None)
        if found is not None:
            self._doubted[twin] = found

    def all(self) -> Iterable[Twin]:
        return [twin for _until, twin in self._twins.values()]

    async def fetch(self, twin: int) -> Twin | None:
        found = self.get(twin)
        if found is not None or self._missing.get(twin, 0.0) > self._monotonic():
            return found
        asking = self._asking.get(twin)
        if asking is None:
            asking = self._asking[twin] = asyncio.create_task(self._look_up(twin))
        return await asyncio.shield(asking)  # others may wait for the same

    async def _look_up(self, twin: int) -> Twin | None:
        said = False
        try:
            async with self._lookups:
                said = self.get(twin) is not None or await self._ask(twin)
        except ConfigError as exc:
            log.warning("cannot look up twin %d at %s: %s", twin, self._url, exc.text)
        finally:
            del self._asking[twin]
        doubted = self._doubted.pop(twin, None)
        found = self.get(twin)
        if found is None and not said and doubted is not None:
            self._twins[twin] = doubted
            found = self.get(twin)
        if found is None and said:
            if len(self._missing) >= MAX_MISSING:
                self._missing.clear()
            self._missing[twin] = self._monotonic() + MISSING
        return found

    async def _ask(self, twin: int) -> bool:
        """Ask for a twin; False when nobody was asked, since the answer is known.

        Raises:
            ConfigError: no answer, or none that can be understood.
        """
        raise NotImplementedError

    def _believe(self, twin: Twin) -> None:
        self._twins[twin.id] = (self._monotonic() + self._ttl, twin)


class UrlDirectory(_Cached):
    """A JSON list at a URL, fetched whole."""

    _next = 0.0

    async def _ask(self, twin: int) -> bool:
        if self._monotonic() < self._next:
            return False  # the list was fetched a moment ago
        answer = await self._fetch(self._url)
        if answer.status != 200:
            raise ConfigError(answer.phrase or answer.reason)
        self._next = self._monotonic() + MISSING
        for entry in parse_directory(answer.body.decode("utf-8", "replace")).values():
            self._believe(entry)
        return True


class GraphqlDirectory(_Cached):
    """A TFGrid GraphQL endpoint, asked for one twin at a time."""

    async def _ask(self, twin: int) -> bool:
        query = "query twin($id: Int!) { twins(where: {twinID_eq: $id}) { twinID accountID ip } }"
        body = json.dumps({"query": query, "variables": {"id": twin}}).encode()
        answer = await self._fetch(self._url, body)
        if answer.status != 200:
            raise ConfigError(answer.phrase or answer.reason)
        try:
            entries = json.loads(answer.body)["data"]["twins"]
            for entry in entries:
                found = {
                    "id": entry["twinID"],
                    "account": entry["accountID"],
                    "address": entry["ip"].partition("/")[0],
                }
                self._believe(parse_twin(found))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as exc:
            raise ConfigError(f"the answer is no list of twins: {exc!r}") from exc
        return True


def open_directory(
    source: str, fetch: Fetch, monotonic: Callable[[], float], ttl: float
) -> Directory:
    """The directory at a path, at `http(s)://…` or at `graphql+http(s)://…`.

    Raises:
        ConfigError: the file cannot be read.
    """
    if source.startswith(GRAPHQL):
        return GraphqlDirectory(source.removeprefix(GRAPHQL), fetch, monotonic, ttl)
    if source.startswith(("http://", "https://")):
        return UrlDirectory(source, fetch, monotonic, ttl)
    return FileDirectory(Path(source), monotonic)
