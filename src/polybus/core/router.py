"""The facade that rooms talk to: attach, register, call, reply, subscribe, publish.

Invariant: a wire's own clients are matched by its own rules first; other wires are reached by the shared name only
(DESIGN 3). The router never raises for a reason that lies with one party of many.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

from polybus.core.calls import Calls
from polybus.core.chores import Chores
from polybus.core.endpoint import Endpoint, Identity, Traffic
from polybus.core.limits import MAX_NAMES, MAX_NAMES_SIZE, Quota, Quotas, size_of_name
from polybus.core.policy import OpenPolicy, Policy, Verb
from polybus.core.services import Registration, Services
from polybus.core.subscriptions import Rules, Subscriptions
from polybus.errors import Draining, LimitExceeded, NoSuchService, NotAuthorized, PolybusError
from polybus.model.clock import Clock
from polybus.model.message import Call, Publication, Reply, Status
from polybus.model.name import MAX_NAME_BYTES
from polybus.model.pattern import is_pattern

if TYPE_CHECKING:
    from polybus.core.journal import Journal
    from polybus.core.watch import Watch

# Of one caller; what would wait beyond that costs memory and helps nobody
MAX_OPEN_CALLS: Final = 65536


class Router:
    """One bus."""

    def __init__(
        self, clock: Clock, policy: Policy | None = None, *, max_names: int = MAX_NAMES
    ) -> None:
        self.clock = clock
        self.policy: Policy = policy or OpenPolicy()
        self.quotas = Quotas()
        self.max_names = max_names
        """How many services, and how many subscriptions, one endpoint may have."""
        self.chores = Chores()
        self.services = Services()
        self.calls = Calls()
        self.journal: Journal | None = None
        """Where rows go; None when no journal is kept."""
        self.draining = False
        self.endpoints: set[Endpoint] = set()
        self.past: dict[str, Traffic] = {}
        """What endpoints that have gone had counted, by wire: totals must not fall when one leaves."""
        self._subscriptions: dict[str, Subscriptions[Endpoint]] = {}
        self._shared_subscriptions: Subscriptions[Endpoint] = Subscriptions(on_walk=self._walked)
        self.subscription_epoch = 0
        """Rises with every subscribe and unsubscribe; a cached list of recipients is right while it stands."""
        self.visited = 0
        """How many nodes the look-ups of all publications so far have walked: what `Toll` charges the publisher for."""

    # -- parties ---------------------------------------------------------------------------------------------------

    def attach(self, endpoint: Endpoint) -> None:
        """A party has come.

        Raises:
            LimitExceeded: its identity has as many connections as it may.
        """
        if endpoint not in self.endpoints:
            self.quotas.join(endpoint)
            self.endpoints.add(endpoint)

    def detach(self, endpoint: Endpoint) -> None:
        """A party has gone: its names, subscriptions and calls go with it. Idempotent.

        From now on nothing is routed to it; where there is much to clear and to tell others, that takes some turns.
        """
        if endpoint not in self.endpoints:
            return
        endpoint.closed = True
        self.endpoints.discard(endpoint)
        self.quotas.leave(endpoint)
        self.past.setdefault(endpoint.wire, Traffic()).add(endpoint.traffic)
        endpoint.names_size = 0
        indexes = [
            self._shared_subscriptions,
            *filter(None, [self._subscriptions.get(endpoint.wire)]),
        ]
        if any(index.count_of(endpoint) for index in indexes):
            self.subscription_epoch += 1
        self.chores.add(
            chain(
                # First: a party may come back and register anew once the few names that such a one has are cleared.
                self.services.leave(endpoint),
                self.calls.leave(endpoint),
                *(index.leave(endpoint) for index in indexes),
            )
        )

    def check(self, identity: Identity, verb: Verb, name: str) -> None:
        """Raise NotAuthorized unless the policy allows it."""
        if not self.policy.may(identity, verb, name):
            raise NotAuthorized(str(identity), verb, name)

    def may_keep(self, endpoint: Endpoint) -> bool:
        """Whether the present rules let a party have the services and subscriptions that it has."""
        may, who = self.policy.may, endpoint.identity
        for found in (endpoint.registrations or {}).values():
            name = found.name if found.shared is None else found.shared
            if not may(who, "register", f"{name}/**" if found.prefix else name):
                return False
        own = self._subscriptions.get(endpoint.wire)
        topics = own.patterns_of(endpoint) if own is not None else ()
        # What has no shared name was asked about as it is spelled.
        alone = (topic for topic in topics if not is_pattern(topic.removeprefix("/")))
        asked = (*self._shared_subscriptions.patterns_of(endpoint), *alone)
        return all(may(who, "subscribe", topic) for topic in asked)

    def set_quotas(self, quotas: Sequence[Quota]) -> None:
        """Count by other quotas from now on; calls that are open were counted by the old ones."""
        self.quotas.release()
        self.quotas = Quotas(quotas, self.endpoints)

    @staticmethod
    def _sized(endpoint: Endpoint, name: str) -> int:
        """How large the names of an endpoint are with this one.

        Raises:
            LimitExceeded: larger than a connection may make them; texts and segments both cost memory.
        """
        size = endpoint.names_size + size_of_name(name)
        if size > MAX_NAMES_SIZE:
            text = "the names of one connection are too large together"
            raise LimitExceeded(text, limit=MAX_NAMES_SIZE, actual=size)
        return size

    # -- services and calls -------------------------------------------------------------------------------------------

    def register(
        self, endpoint: Endpoint, name: str, shared: str | None, *, prefix: bool = False
    ) -> Registration:
        """Let an endpoint answer a name (see `Services.register`).

        Raises:
            NameTaken, NotAuthorized, LimitExceeded, Draining.
        """
        if self.draining:
            raise Draining("the node is stopping")
        asked = name if shared is None else shared
        # Whoever answers a prefix answers all names below it, so a rule has to cover those too.
        self.check(endpoint.identity, "register", f"{asked}/**" if prefix else asked)
        held = len(endpoint.registrations or ())
        if held >= self.max_names:
            text = "too many services of one connection"
            raise LimitExceeded(text, limit=self.max_names, actual=held + 1)
        size = self._sized(endpoint, name)
        found = self.services.register(endpoint, name, shared, prefix=prefix)
        endpoint.names_size = size
        return found

    def unregister(self, endpoint: Endpoint, name: str) -> bool:
        """Give a name up; calls in progress go on."""
        removed = self.services.unregister(endpoint, name)
        if removed:
            endpoint.names_size -= size_of_name(name)
        return removed

    def route(
        self, endpoint: Endpoint, name: str, shared: str | None, who: Identity | None = None
    ) -> Registration:
        """Who answers a call of this endpoint to `name`; right until `services.epoch` or `policy.epoch` changes.

        Args:
            who: on whose behalf the endpoint calls, when that is not its own identity.

        Raises:
            NoSuchService, NotAuthorized, Draining.
        """
        if self.draining:
            raise Draining("the node is stopping")
        self.check(who or endpoint.identity, "call", name if shared is None else shared)
        found = self.services.find(endpoint.wire, name, shared)
        if found is None:
            raise NoSuchService(name)
        return found

    def call(self, call: Call, name: str | None = None) -> None:
        """Send a call on its way; its end comes through `caller.deliver_reply`, in every case but a raised error.

        Args:
            name: the wire's own spelling, when it differs from the shared `call.name`.

        Raises:
            NoSuchService, NotAuthorized, LimitExceeded, Draining: no reply will come.
        """
        own = call.name if name is None else name
        try:
            registration = self.route(call.caller, own, call.name, call.identity)
            if self.quotas.on and call.wants_reply:
                call.charged = self.quotas.admit_call(call.identity or call.caller.identity)
        except PolybusError as exc:
            if self.calls.watch is not None:
                self.calls.watch.call_refused(call, exc)
            raise
        registration.traffic.calls += 1
        self.calls.open(call, registration, self.clock.monotonic())
        if len(call.caller.calls_made or ()) > MAX_OPEN_CALLS:
            self.fail(call, Status.REFUSED, b"too many calls wait for their answers")
        else:
            registration.endpoint.deliver_call(call)

    def reply(self, reply: Reply) -> bool:
        """A service's answer, or a part of it; False when nobody waits for it any more."""
        return self.calls.reply(reply)

    def fail(self, call: Call, status: Status, text: bytes | None = None) -> None:
        """End a call on behalf of an endpoint that cannot pass it on."""
        self.calls.fail(call, status, text)

    def cancel(self, call: Call) -> None:
        """The caller gives up."""
        self.calls.cancel(call)

    def note_by(self, watch: Watch, journal: Journal | None) -> None:
        """Have calls noted from now on, and rows kept if there is a journal."""
        self.calls.watch = watch
        self.journal = journal
        self.services.epoch += 1  # cached routes were found by a node that did not look at calls

    def captures_call(self, shared: str | None, who: Identity) -> bool:
        """Whether the core must see calls to this name, as they are kept in full or counted for who makes them.

        Right while the routes are.
        """
        watch = self.calls.watch
        if shared is not None and self.quotas.counts_calls(who):
            return True
        if watch is None or watch.captures is None or shared is None:
            return False
        return bool(watch.captures.of_call(shared))

    # -- publications -------------------------------------------------------------------------------------------------

    def add_wire(self, wire: str, rules: Rules) -> None:
        """Declare how a wire's own publications meet its own subscriptions."""
        self._subscriptions[wire] = Subscriptions(rules, self._walked)

    def subscribe(self, endpoint: Endpoint, topic: str, shared: str | None) -> bool:
        """Subscribe to `topic` of the endpoint's wire, and to the shared pattern for what other wires publish.

        Returns:
            False when it was subscribed already.

        Raises:
            NotAuthorized, LimitExceeded.
        """
        self.check(endpoint.identity, "subscribe", topic if shared is None else shared)
        if len(topic) > MAX_NAME_BYTES:
            text = "characters in the topic of a subscription"
            raise LimitExceeded(text, limit=MAX_NAME_BYTES, actual=len(topic))
        own = self._subscriptions[endpoint.wire]
        held = own.count_of(endpoint)
        if held >= self.max_names:
            text = "too many subscriptions of one connection"
            raise LimitExceeded(text, limit=self.max_names, actual=held + 1)
        size = self._sized(endpoint, topic)
        added = own.add(topic, endpoint)
        if added:
            endpoint.names_size = size
            if shared is not None:
                self._shared_subscriptions.add(shared, endpoint)
            self.subscription_epoch += 1
        return added

    def unsubscribe(self, endpoint: Endpoint, topic: str, shared: str | None) -> bool:
        """Take a subscription back; False when there was none."""
        removed = self._subscriptions[endpoint.wire].remove(topic, endpoint)
        if removed:
            endpoint.names_size -= size_of_name(topic)
            if shared is not None:
                self._shared_subscriptions.remove(shared, endpoint)
            self.subscription_epoch += 1
        return removed

    def subscribed(self, wire: str) -> int:
        """How many subscriptions the clients of a wire have."""
        own = self._subscriptions.get(wire)
        return 0 if own is None else len(own)

    def recipients(self, wire: str, topic: str, shared: str | None) -> Sequence[Endpoint]:
        """Everybody whom a publication made on `wire` reaches, each once; right until `subscription_epoch` changes."""
        found = self._subscriptions[wire].matching(topic)
        if shared is not None and len(self._shared_subscriptions):
            others = self._shared_subscriptions.matching(shared)
            found += tuple(e for e in others if e.wire != wire)
        return found

    def _walked(self, visited: int) -> None:
        self.visited += visited

    def publish(self, publication: Publication) -> int:
        """Deliver to everybody subscribed; how many endpoints took it.

        Raises:
            NotAuthorized.
        """
        shared = publication.name
        publisher: Endpoint = publication.publisher
        self.check(publisher.identity, "publish", publication.topic if shared is None else shared)
        taken = 0
        for endpoint in self.recipients(publisher.wire, publication.topic, shared):
            taken += endpoint.deliver_publication(publication)
        if self.journal is not None:
            name = publication.topic if shared is None else shared
            size = publication.size
            who = publisher.identity.text
            self.journal.note("publish", publisher.wire, name, who, (size, size * taken))
        return taken

    # -- time -------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """End calls that are past their deadline, and hold back who sends more than it may."""
        self.calls.tick(now)
        if self.quotas.on:
            self.quotas.tick(now)

    def drain(self) -> None:
        """Take nothing new from now on; calls that are open may still end."""
        self.draining = True
        self.services.epoch += 1  # cached routes were found by a node that still took calls
