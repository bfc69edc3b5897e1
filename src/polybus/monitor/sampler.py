"""Once a second: how the bus stands, and what changed since the last look.

Invariant: nothing on the path of a message is paid for the monitor but one call when a call through the core ends;
all rates come from counters that the rooms keep anyway. A sample is taken in turns, so ten thousand connections do
not hold the loop.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from polybus._version import __version__
from polybus.core.endpoint import Endpoint, Traffic
from polybus.core.engine import TopicInfo
from polybus.core.services import Registration
from polybus.core.topic_events import TopicEvent
from polybus.core.topics import Topics
from polybus.errors import NoSuchTopic
from polybus.model.message import Call, Status
from polybus.monitor.durations import Durations, Histogram
from polybus.monitor.shapes import Disk, History, Overview, Wire
from polybus.monitor.sources import NodeHealth, Sources
from polybus.monitor.totals import Point, Rates, Totals
from polybus.monitor.turns import Turns
from polybus.transports.connection import Connection

log = logging.getLogger("polybus.monitor")

PERIOD_S: Final = 1.0
POINTS: Final = 300  # samples kept: five minutes
LAG_EVERY: Final = 5  # samples between two points of a group's lag
LAG_POINTS: Final = 60  # five minutes as well
MAX_GROUPS: Final = 2000  # whose lag is kept over time
DISK_EVERY: Final = 10
ALL_EVERY: Final = 10  # an engine may have topics that nobody told of


class Sampler:
    """The samples of one node. `on_sample` are told after each."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.clock = sources.router.clock
        self.totals = Totals()
        self.points: deque[Point] = deque(maxlen=POINTS)
        self.topic_rates = Rates()
        self.service_rates = Rates()
        self.lags: dict[tuple[str, str], deque[int]] = {}
        self.durations: dict[int, Durations] = {}
        self.histograms: dict[str, Histogram] = {}
        self.disk: Disk | None = None
        self.on_sample: list[Callable[[], None]] = []
        self._started = self.clock.monotonic()
        self._wire_rates: dict[str, tuple[float, float, float, float, float]] = {}
        self._produce_rate = 0.0
        self._count = 0
        self._infos: Sequence[TopicInfo] | None = None
        self._infos_at = 0.0
        self._health: NodeHealth | None = None  # of the last sample: it looks at every endpoint
        self._looking = asyncio.Lock()  # one look at a time, which others then share
        self._names: list[str] | None = None
        sources.router.calls.on_end = self._call_ended
        if sources.topics is not None:
            sources.topics.listen(self._topic_changed)

    # -- calls ----------------------------------------------------------------------------------------------

    def _call_ended(self, call: Call, status: Status | None) -> None:
        now = self.clock.monotonic()
        registration: Registration = call.registration
        if status is not None and status is not Status.OK:
            registration.traffic.failures += 1
        durations = self.durations.get(registration.age)
        if durations is None:
            durations = self.durations[registration.age] = Durations(now)
        seconds = now - call.started
        durations.add(seconds, now)
        histogram = self.histograms.get(registration.wire)
        if histogram is None:
            histogram = self.histograms[registration.wire] = Histogram()
        histogram.add(seconds)

    # -- topics ---------------------------------------------------------------------------------------------

    def topics(self) -> Sequence[TopicInfo]:
        """All topics, as of a second ago at most.

        Asking the engine costs about 5 ms for a thousand of them, and every viewer's list would.
        """
        found = self.sources.topics
        if found is None:
            return ()
        now = self.clock.monotonic()
        if self._infos is None or now - self._infos_at > PERIOD_S:
            self._infos, self._infos_at = found.all(), now
        return self._infos

    def _topic_changed(self, event: TopicEvent) -> None:
        if event.change not in ("joined", "left"):
            self._infos = self._names = None

    async def _look_at_topics(self, topics: Topics, turns: Turns) -> Sequence[TopicInfo]:
        """All topics as they stand, looked at in turns as far as their names are known."""
        if self._names is None or self._count % ALL_EVERY == 0:
            self._infos = None
            infos = self.topics()
            self._names = [info.name for info in infos]
            return infos
        names, found, now = self._names, [], self.clock.monotonic()
        for name in names:
            with suppress(NoSuchTopic):
                found.append(topics.info(name))
            if turns.over():
                await turns.rest()
        if self._names is names:
            self._infos, self._infos_at = found, now
        return found

    # -- sampling -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            await self.sample()
            for listener in self.on_sample:
                listener()
            await asyncio.sleep(PERIOD_S)

    async def fresh(self) -> None:
        """Sample now unless that was just done; for answers that should not be a second old.

        Who is connected and what is registered is counted in any case: whoever just came looks whether the node saw it.
        """
        async with self._looking:
            if self.clock.monotonic() - self.totals.at >= PERIOD_S / 2 or not self._count:
                await self._sample()
            else:
                await self._count_connections(self.totals, Turns())
                self.totals.registered = Counter(self.sources.router.services.counts())

    async def sample(self) -> None:
        """Look at everything."""
        async with self._looking:
            await self._sample()

    async def _sample(self) -> None:
        if self._count % DISK_EVERY == 0:
            await self._look_at_disk()
        totals = Totals(at=self.clock.monotonic())
        turns = Turns()
        await self._count_endpoints(totals, turns)
        await self._count_connections(totals, turns)
        await self._count_services(totals, turns)
        await self._count_topics(totals, turns)
        await turns.rest()
        self._health = health = self.sources.health()
        await turns.rest()
        before, self.totals = self.totals, totals
        self._count += 1
        if before.at:
            self._keep_point(before, totals, health.loop_lag_s)

    async def _count_endpoints(self, totals: Totals, turns: Turns) -> None:
        router = self.sources.router
        for wire, past in tuple(router.past.items()):
            totals.wires.setdefault(wire, Traffic()).add(past)
        for endpoint in tuple(router.endpoints):
            if not endpoint.closed:
                totals.wires.setdefault(endpoint.wire, Traffic()).add(endpoint.traffic)
            if turns.over():
                await turns.rest()

    async def _count_connections(self, totals: Totals, turns: Turns) -> None:
        connected: Counter[str] = Counter()
        pending_bytes = 0
        for connection in tuple(self.sources.connections.open):
            connected[protocol_of(connection)] += 1
            pending_bytes += connection.outbox.pending_bytes
            if turns.over():
                await turns.rest()
        totals.connected, totals.pending_bytes = connected, pending_bytes

    async def _count_services(self, totals: Totals, turns: Turns) -> None:
        services = self.sources.router.services
        totals.registered = Counter(services.counts())
        for wire, past in services.past.items():
            totals.services.setdefault(wire, Traffic()).add(past)
        counts: dict[object, int] = {}
        for found in tuple(services.all()):
            totals.services.setdefault(found.wire, Traffic()).add(found.traffic)
            counts[found.age] = found.traffic.calls
            if turns.over():
                await turns.rest()
        self.service_rates.take(counts, self._since_last(totals))
        if len(self.durations) > len(counts):
            self.durations = {age: d for age, d in self.durations.items() if age in counts}

    async def _count_topics(self, totals: Totals, turns: Turns) -> None:
        topics = self.sources.topics
        if topics is None:
            return
        counts: dict[object, int] = {}
        lags: dict[tuple[str, str], int] = {}
        for info in await self._look_at_topics(topics, turns):
            totals.topics += 1
            totals.records += info.end - info.first
            totals.produced += info.end
            totals.stored_bytes += info.bytes
            counts[info.name] = info.end
            for group in topics.groups.of(info.name):
                totals.groups += 1
                lag = max(0, info.end - group.floor())
                totals.lag += lag
                totals.in_flight += len(group.in_flight)
                totals.redelivered += group.redelivered
                totals.dead += group.dead
                if len(lags) < MAX_GROUPS:
                    lags[info.name, group.name] = lag
            if turns.over():
                await turns.rest()
        await turns.rest()
        self.topic_rates.take(counts, self._since_last(totals))
        if self._count % LAG_EVERY == 0:
            await turns.rest()
            self._keep_lags(lags)

    def _since_last(self, totals: Totals) -> float:
        return max(totals.at - self.totals.at, 1e-3) if self.totals.at else PERIOD_S

    def _keep_lags(self, lags: dict[tuple[str, str], int]) -> None:
        kept = {key: self.lags.get(key) or deque(maxlen=LAG_POINTS) for key in lags}
        for key, lag in lags.items():
            kept[key].append(lag)
        self.lags = kept

    async def _look_at_disk(self) -> None:
        folder = self.sources.data
        if folder is None:
            return
        try:
            usage = await asyncio.to_thread(shutil.disk_usage, folder)
        except OSError as exc:
            log.warning("cannot tell how full the disk of %s is: %s", folder, exc)
            self.disk = None
            return
        self.disk = Disk(folder=str(folder), free_bytes=usage.free, total_bytes=usage.total)

    def _keep_point(self, before: Totals, now: Totals, loop_lag_s: float) -> None:
        seconds = max(now.at - before.at, 1e-3)
        rates = {}
        failures = 0
        for wire, traffic in now.wires.items():
            old = before.wires.get(wire) or Traffic()
            calls = now.services.get(wire, Traffic()).calls
            calls -= before.services.get(wire, Traffic()).calls
            changes = (
                traffic.messages_in - old.messages_in,
                traffic.messages_out - old.messages_out,
                traffic.bytes_in - old.bytes_in,
                traffic.bytes_out - old.bytes_out,
                calls,
            )
            a, b, c, d, e = (max(0, change) / seconds for change in changes)
            rates[wire] = (a, b, c, d, e)
            failures += traffic.failures - old.failures
        self._wire_rates = rates
        self._produce_rate = max(0, now.produced - before.produced) / seconds
        self.points.append(
            Point(
                time_ms=self.clock.wall_ms(),
                in_rate={wire: found[0] for wire, found in rates.items()},
                out_rate={wire: found[1] for wire, found in rates.items()},
                calls_rate=sum(found[4] for found in rates.values()),
                produce_rate=self._produce_rate,
                failures_rate=max(0, failures) / seconds,
                connections=sum(now.connected.values()),
                lag=now.lag,
                loop_lag_ms=loop_lag_s * 1000,
            )
        )

    # -- answers --------------------------------------------------------------------------------------------

    def overview(self, history: int = 0) -> Overview:
        """The node at a glance, as of the last sample, with so many points of its past."""
        now, sources = self.totals, self.sources
        health = self._health or sources.health()
        names = sorted(now.wires.keys() | now.connected.keys() | now.registered.keys())
        wires = [self._wire(name) for name in names]
        return Overview(
            version=__version__,
            addresses=list(sources.addresses()),
            state=health.state,
            ready=health.ready,
            time_ms=self.clock.wall_ms(),
            uptime_s=round(self.clock.monotonic() - self._started, 1),
            wires=wires,
            connections=len(sources.connections.open),
            accepted=sources.connections.accepted,
            services=sum(now.registered.values()),
            topics=now.topics,
            groups=now.groups,
            records=now.records,
            stored_bytes=now.stored_bytes,
            produce_rate=round(self._produce_rate, 2),
            lag=now.lag,
            in_flight=now.in_flight,
            redelivered=now.redelivered,
            dead=now.dead,
            pending_calls=health.pending_calls,
            pending_bytes=now.pending_bytes,
            failures=sum(wire.failures for wire in wires),
            dropped=sum(wire.dropped for wire in wires),
            loop_lag_ms=round(health.loop_lag_s * 1000, 2),
            ended=dict(sources.connections.ended.most_common(20)),
            disk=self.disk,
            history=self._history(history) if history else None,
        )

    def _wire(self, name: str) -> Wire:
        now = self.totals
        traffic = now.wires.get(name) or Traffic()
        served = now.services.get(name) or Traffic()
        rates = [round(r, 2) for r in self._wire_rates.get(name, (0.0,) * 5)]
        return Wire(
            protocol=name,
            connections=now.connected[name],
            services=now.registered[name],
            messages_in=traffic.messages_in,
            messages_out=traffic.messages_out,
            bytes_in=traffic.bytes_in,
            bytes_out=traffic.bytes_out,
            calls=served.calls,
            failures=traffic.failures + served.failures,
            dropped=traffic.dropped,
            in_rate=rates[0],
            out_rate=rates[1],
            bytes_in_rate=rates[2],
            bytes_out_rate=rates[3],
            calls_rate=rates[4],
        )

    def _history(self, count: int) -> History:
        points = list(self.points)[-count:]
        names = sorted({wire for point in points for wire in point.in_rate})
        return History(
            times_ms=[p.time_ms for p in points],
            in_rate={n: [round(p.in_rate.get(n, 0.0), 2) for p in points] for n in names},
            out_rate={n: [round(p.out_rate.get(n, 0.0), 2) for p in points] for n in names},
            calls_rate=[round(p.calls_rate, 2) for p in points],
            produce_rate=[round(p.produce_rate, 2) for p in points],
            failures_rate=[round(p.failures_rate, 2) for p in points],
            connections=[p.connections for p in points],
            lag=[p.lag for p in points],
            loop_lag_ms=[round(p.loop_lag_ms, 2) for p in points],
        )


def endpoint_of(connection: Connection) -> Endpoint | None:
    """The party behind a connection; None while its protocol is not known, and for plain HTTP."""
    session = connection.session
    if isinstance(session, Endpoint):
        return session
    party = getattr(session, "party", None)
    return party if isinstance(party, Endpoint) else None


def protocol_of(connection: Connection) -> str:
    """The protocol that a connection speaks, in one word."""
    endpoint = endpoint_of(connection)
    if endpoint is not None:
        return endpoint.wire
    return "http" if hasattr(connection.session, "site") else "undecided"
