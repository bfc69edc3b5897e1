"""Who answers which name.

Each wire has its own namespace with its own spelling; every registration that has a shared name also stands in the
shared one (DESIGN 3, "native first, bridge second"). Invariant: `epoch` changes with every change of any of them, so
a route that was found under the present epoch is still right.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import chain

from polybus.core.endpoint import Endpoint, Traffic
from polybus.errors import LimitExceeded, NameTaken
from polybus.model.ids import counter
from polybus.model.name import MAX_NAME_BYTES, prefixes


class Registration:
    """One endpoint's claim on one name of its wire."""

    __slots__ = ("age", "endpoint", "name", "prefix", "shared", "traffic", "wire")

    def __init__(
        self, endpoint: Endpoint, wire: str, name: str, shared: str | None, prefix: bool, age: int
    ) -> None:
        self.endpoint = endpoint
        self.wire = wire
        self.name = name
        self.shared = shared
        self.prefix = prefix
        """Whether names below it, cut at `/`, are answered as well."""
        self.age = age
        self.traffic = Traffic()


class Services:
    """All registrations of the node."""

    def __init__(self) -> None:
        self.epoch = 0
        self.on_change: list[Callable[[], None]] = []
        """Told after every change; they return at once."""
        self.past: dict[str, Traffic] = {}
        """What registrations that have gone had counted, by wire."""
        self._own: dict[str, dict[str, Registration]] = {}
        self._shared: dict[str, list[Registration]] = {}
        self._next_age = counter()

    def __iter__(self) -> Iterator[Registration]:
        return (found for found in self.all() if not found.endpoint.closed)

    def all(self) -> Iterator[Registration]:
        """With those of parties that are leaving: what they counted is not in `past` yet."""
        return chain.from_iterable([names.values() for names in self._own.values()])

    def __len__(self) -> int:
        return sum(map(len, self._own.values()))

    def of(self, wire: str) -> Collection[Registration]:
        """All of one wire, likewise."""
        return self._own.get(wire, {}).values()

    def counts(self) -> dict[str, int]:
        """How many there are of each wire that has any."""
        return {wire: len(names) for wire, names in self._own.items() if names}

    def register(
        self, endpoint: Endpoint, name: str, shared: str | None, *, prefix: bool = False
    ) -> Registration:
        """Claim a name of the endpoint's wire.

        Args:
            name: in the wire's own spelling; exclusive there.
            shared: the shared name, or None for one that only this wire can spell.

        Raises:
            NameTaken: the wire's namespace has it, whoever owns it.
            LimitExceeded: it is too long.
        """
        if len(name) > MAX_NAME_BYTES:
            text = "characters in the name of a service"
            raise LimitExceeded(text, limit=MAX_NAME_BYTES, actual=len(name))
        names = self._own.setdefault(endpoint.wire, {})
        holder = names.get(name)
        if holder is not None:
            if not holder.endpoint.closed:
                raise NameTaken(name)
            self.unregister(holder.endpoint, name)
        registration = Registration(endpoint, endpoint.wire, name, shared, prefix, self._next_age())
        names[name] = registration
        if shared is not None:
            self._shared.setdefault(shared, []).append(registration)  # appended, so oldest first
        if endpoint.registrations is None:
            endpoint.registrations = {}
        endpoint.registrations[name] = registration
        self._changed()
        return registration

    def unregister(self, endpoint: Endpoint, name: str) -> bool:
        """Give a name up; False if this endpoint does not own it."""
        registration = (endpoint.registrations or {}).pop(name, None)
        if registration is None:
            return False
        self._forget(registration)
        self._changed()
        return True

    def leave(self, endpoint: Endpoint) -> Iterator[None]:
        """Steps that give up the names of a `closed` endpoint, one each; none of them leads to it any more."""
        if endpoint.registrations:
            self._changed()
        return self._give_up(endpoint)

    def _give_up(self, endpoint: Endpoint) -> Iterator[None]:
        while endpoint.registrations:
            self._forget(endpoint.registrations.popitem()[1])
            yield
        endpoint.registrations = None

    def owner(self, wire: str, name: str) -> Registration | None:
        """Who holds exactly this name on that wire."""
        found = self._own.get(wire, {}).get(name)
        return None if found is None or found.endpoint.closed else found

    def answers(self, registration: Registration) -> bool:
        """Whether calls of other wires to this very name come here: the oldest claim, while it lasts."""
        claims = self._shared.get(registration.shared or "", ())
        return next((c for c in claims if not c.endpoint.closed), None) is registration

    def find(self, wire: str, name: str, shared: str | None) -> Registration | None:
        """Who answers a call made on `wire` to its own `name`, which is `shared` in the shared namespace.

        The wire's own namespace is asked first, by its own spelling; only when that has no answer the others are: the
        longest name wins, then the oldest. Registrations of the same wire are not asked again under the shared
        spelling, since that wire keeps the two spellings apart.
        """
        own = self._own.get(wire)
        if own:
            found = _walk_own(own, name)
            if found is not None:
                return found
        return self._walk_shared(shared, wire) if shared else None

    def _walk_shared(self, name: str, asking_wire: str) -> Registration | None:
        for registration in self._shared.get(name, ()):
            if registration.wire != asking_wire and not registration.endpoint.closed:
                return registration
        for prefix in prefixes(name):
            for registration in self._shared.get(prefix, ()):
                if (
                    registration.wire != asking_wire
                    and registration.prefix
                    and not registration.endpoint.closed
                ):
                    return registration
        return None

    def _forget(self, registration: Registration) -> None:
        del self._own[registration.wire][registration.name]
        self.past.setdefault(registration.wire, Traffic()).add(registration.traffic)
        if registration.shared is not None:
            claims = self._shared[registration.shared]
            claims.remove(registration)
            if not claims:
                del self._shared[registration.shared]

    def _changed(self) -> None:
        self.epoch += 1
        for told in self.on_change:
            told()


def _walk_own(names: dict[str, Registration], name: str) -> Registration | None:
    found = names.get(name)
    if found is not None and not found.endpoint.closed:
        return found if name else None  # protocol page GSB §6: the empty name never matches
    for prefix in prefixes(name):
        found = names.get(prefix)
        if found is not None and found.prefix and not found.endpoint.closed:
            return found
    return None
