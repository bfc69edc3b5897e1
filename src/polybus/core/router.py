"""The facade that rooms talk to: attach, register, call, reply, subscribe, publish.

Invariant: a wire's own clients are matched by its own rules first; other wires are reached by the shared name only
(DESIGN 3). The router never raises for a reason that lies with one party of many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from polybus.core.calls import Calls
from polybus.core.endpoint import Endpoint, Identity, Traffic
from polybus.core.policy import OpenPolicy, Policy, Verb
from polybus.core.services import Registration, Services
from polybus.core.subscriptions import Rules, Subscriptions
from polybus.errors import Draining, NoSuchService, NotAuthorized
from polybus.model.clock import Clock
from polybus.model.message import Call, Publication, Reply, Status

MAX_OPEN_CALLS: Final = (
    65536  # of one caller; what would wait beyond that costs memory and helps nobody
)


class Router:
    """One bus."""

    def __init__(self, clock: Clock, policy: Policy | None = None) -> None:
        self.clock = clock
        self.policy: Policy = policy or OpenPolicy()
        self.services = Services()
        self.calls = Calls()
        self.draining = False
        self.endpoints: set[Endpoint] = set()
        self.past: dict[str, Traffic] = {}
        """What endpoints that have gone had counted, by wire: totals must not fall when one leaves."""
        self._subscriptions: dict[str, Subscriptions[Endpoint]] = {}
        self._shared_subscriptions: Subscriptions[Endpoint] = Subscriptions()
        self.subscription_epoch = 0
        """Rises with every subscribe and unsubscribe; a cached list of recipients is right while it stands."""

    # -- parties ---------------------------------------------------------------------------------------------------

    def attach(self, endpoint: Endpoint) -> None:
        """A party has come."""
        self.endpoints.add(endpoint)

    def detach(self, endpoint: Endpoint) -> None:
        """A party has gone: its names, subscriptions and calls go with it. Idempotent."""
        if endpoint not in self.endpoints:
            return
        endpoint.closed = True
        self.endpoints.discard(endpoint)
        self.past.setdefault(endpoint.wire, Traffic()).add(endpoint.traffic)
        self.services.drop(endpoint)
        removed = self._shared_subscriptions.remove_all(endpoint)
        own = self._subscriptions.get(endpoint.wire)
        if own is not None:
            removed += own.remove_all(endpoint)
        if removed:
            self.subscription_epoch += 1
        self.calls.endpoint_gone(endpoint)

    def check(self, identity: Identity, verb: Verb, name: str) -> None:
        """Raise NotAuthorized unless the policy allows it."""
        if not self.policy.may(identity, verb, name):
            raise NotAuthorized(str(identity), verb, name)

    # -- services and calls -------------------------------------------------------------------------------------------

    def register(
        self, endpoint: Endpoint, name: str, shared: str | None, *, prefix: bool = False
    ) -> Registration:
        """Let an endpoint answer a name (see `Services.register`).

        Raises:
            NameTaken, NotAuthorized, Draining.
        """
        if self.draining:
            raise Draining("the node is stopping")
        self.check(endpoint.identity, "register", name if shared is None else shared)
        return self.services.register(endpoint, name, shared, prefix=prefix)

    def unregister(self, endpoint: Endpoint, name: str) -> bool:
        """Give a name up; calls in progress go on."""
        return self.services.unregister(endpoint, name)

    def route(self, endpoint: Endpoint, name: str, shared: str | None) -> Registration:
        """Who answers a call of this endpoint to `name`; right until `services.epoch` or `policy.epoch` changes.

        Raises:
            NoSuchService, NotAuthorized, Draining.
        """
        if self.draining:
            raise Draining("the node is stopping")
        self.check(endpoint.identity, "call", name if shared is None else shared)
        found = self.services.find(endpoint.wire, name, shared)
        if found is None:
            raise NoSuchService(name)
        return found

    def call(self, call: Call, name: str | None = None) -> None:
        """Send a call on its way; its end comes through `caller.deliver_reply`, in every case but a raised error.

        Args:
            name: the wire's own spelling, when it differs from the shared `call.name`.

        Raises:
            NoSuchService, NotAuthorized, Draining: no reply will come.
        """
        registration = self.route(call.caller, call.name if name is None else name, call.name)
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

    # -- publications -------------------------------------------------------------------------------------------------

    def add_wire(self, wire: str, rules: Rules) -> None:
        """Declare how a wire's own publications meet its own subscriptions."""
        self._subscriptions[wire] = Subscriptions(rules)

    def subscribe(self, endpoint: Endpoint, topic: str, shared: str | None) -> bool:
        """Subscribe to `topic` of the endpoint's wire, and to the shared pattern for what other wires publish.

        Returns:
            False when it was subscribed already.

        Raises:
            NotAuthorized.
        """
        self.check(endpoint.identity, "subscribe", topic if shared is None else shared)
        added = self._subscriptions[endpoint.wire].add(topic, endpoint)
        if added:
            if shared is not None:
                self._shared_subscriptions.add(shared, endpoint)
            self.subscription_epoch += 1
        return added

    def unsubscribe(self, endpoint: Endpoint, topic: str, shared: str | None) -> bool:
        """Take a subscription back; False when there was none."""
        removed = self._subscriptions[endpoint.wire].remove(topic, endpoint)
        if removed:
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
        return taken

    # -- time -------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """End calls that are past their deadline."""
        self.calls.tick(now)

    def drain(self) -> None:
        """Take nothing new from now on; calls that are open may still end."""
        self.draining = True
        self.services.epoch += 1  # cached routes were found by a node that still took calls
