"""`/metrics` for Prometheus, `/healthz` and `/readyz`.

Invariant: a scrape reads the monitor's last sample, counts anew only who is connected and what is registered, and costs
nothing per message; without being asked for details no label holds a name that clients choose, so the number of series
does not grow with the bus.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from polybus._version import __version__
from polybus.core.endpoint import ANONYMOUS
from polybus.errors import PolybusError
from polybus.http.request import Request
from polybus.http.site import TEXT, Site, not_found
from polybus.model.pattern import check_pattern, matches
from polybus.monitor.api import refuse
from polybus.monitor.durations import Histogram
from polybus.monitor.monitor import Monitor
from polybus.monitor.shapes import Wire as WireNumbers
from polybus.monitor.turns import Turns
from polybus.storage.files import DiskFile, DiskFiles

PROMETHEUS: Final = {"content-type": CONTENT_TYPE_PLAIN_0_0_4}
MAX_DETAILED: Final = 1000  # topics in one detailed answer


class Metrics:
    """What one node exports, from a registry of its own."""

    def __init__(self, monitor: Monitor, syncs: Histogram) -> None:
        self._monitor = monitor
        self._node = NodeMetrics(monitor, syncs)
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        GCCollector(registry=self._process)

    def register(self, site: Site) -> None:
        """Serve it."""
        site.add("/metrics", self._metrics)
        site.add("/healthz", self._alive)
        site.add("/readyz", self._ready)

    def _metrics(self, request: Request) -> None:
        if request.path == "/metrics":
            self._monitor.run(request, self._all)
        elif request.path == "/metrics/detailed":
            self._monitor.run(request, self._detailed)
        else:
            not_found(request)

    async def _all(self, request: Request) -> None:
        await self._monitor.sampler.fresh()
        text = await asyncio.to_thread(self._write_all, list(self._node.collect()))
        request.respond(200, PROMETHEUS, text)

    def _write_all(self, found: list[Metric]) -> bytes:
        # Counting the open files of a process with ten thousand of them takes the system a while.
        return write(found) + generate_latest(self._process)

    async def _detailed(self, request: Request) -> None:
        try:
            self._monitor.check(request.identity or ANONYMOUS)
            pattern = check_pattern(request.parameters().get("topic", "**"))
        except PolybusError as exc:
            refuse(request, exc)
            return
        await self._monitor.sampler.fresh()
        found = await topic_metrics(self._monitor, pattern)
        request.respond(200, PROMETHEUS, await asyncio.to_thread(write, found))

    def _alive(self, request: Request) -> None:
        request.respond(200, TEXT, b"ok\n")

    def _ready(self, request: Request) -> None:
        health = self._monitor.sources.health()
        request.respond(200 if health.ready else 503, TEXT, health.state.encode() + b"\n")


class Collected(Collector):
    """Metrics that were collected on the event loop, to be written out beside it: text takes longer than numbers."""

    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> list[Metric]:
        return self._found


def write(found: list[Metric]) -> bytes:
    """Metrics as Prometheus reads them."""
    registry = CollectorRegistry()
    registry.register(Collected(found))
    return generate_latest(registry)


class TimedFiles(DiskFiles):
    """The machine's files, with the syncs of the commit log timed; only its own thread syncs there."""

    def __init__(self, syncs: Histogram) -> None:
        self._syncs = syncs

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        opened = super().open(path, create=create)
        # The commit log lies in a folder of this name; all else is moved there later, with nobody waiting.
        return TimedFile(opened, self._syncs) if path.parent.name == "log" else opened


class TimedFile(DiskFile):
    """One file of the commit log."""

    def __init__(self, opened: DiskFile, syncs: Histogram) -> None:
        super().__init__(opened.path, opened._fd)
        self._syncs = syncs

    def sync(self) -> None:
        started = perf_counter()
        super().sync()
        self._syncs.add(perf_counter() - started)


class NodeMetrics:
    """The node's own numbers, with nothing but the protocol as a label."""

    def __init__(self, monitor: Monitor, syncs: Histogram) -> None:
        self._monitor = monitor
        self._syncs = syncs

    def collect(self) -> Iterator[Metric]:
        now = self._monitor.sampler.overview()
        yield InfoMetricFamily("polybus_build", "The program", value={"version": __version__})
        yield GaugeMetricFamily("polybus_up", "1 while the node answers", value=1)
        yield GaugeMetricFamily("polybus_ready", "1 while the node takes work", value=now.ready)
        yield GaugeMetricFamily(
            "polybus_uptime_seconds", "Since the node started", value=now.uptime_s
        )
        yield from self._wires(now.wires)
        yield from self._connections()
        yield from self._durations()
        yield from self._recording()
        gauges = {
            "polybus_calls_pending": ("Calls that wait for an answer", now.pending_calls),
            "polybus_topics": ("Durable topics", now.topics),
            "polybus_topic_records": ("Records in all topics", now.records),
            "polybus_topic_bytes": ("Bytes of all topics", now.stored_bytes),
            "polybus_groups": ("Consume groups", now.groups),
            "polybus_group_lag_records": ("Records still to be confirmed, all groups", now.lag),
            "polybus_group_in_flight_records": ("Delivered and not confirmed", now.in_flight),
            "polybus_outbox_bytes": ("Queued towards all peers", now.pending_bytes),
            "polybus_loop_lag_seconds": (
                "How late work began, worst of late",
                now.loop_lag_ms / 1000,
            ),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(name, text, value=value)
        # Groups that are removed take their counts with them, so these are not counters.
        yield GaugeMetricFamily(
            "polybus_group_redelivered_records",
            "Delivered again, in present groups",
            value=now.redelivered,
        )
        yield GaugeMetricFamily(
            "polybus_group_dead_records", "Given up, in present groups", value=now.dead
        )
        if now.disk is not None:
            yield GaugeMetricFamily(
                "polybus_disk_free_bytes", "Where the topics lie", value=now.disk.free_bytes
            )

    def _wires(self, wires: list[WireNumbers]) -> Iterator[Metric]:
        counters = {
            "polybus_messages_received": ("Messages of clients", "messages_in"),
            "polybus_messages_sent": ("Messages to clients", "messages_out"),
            "polybus_received_bytes": ("Bytes of clients", "bytes_in"),
            "polybus_sent_bytes": ("Bytes to clients", "bytes_out"),
            "polybus_messages_dropped": ("Dropped for slow clients", "dropped"),
            "polybus_calls": ("Calls to services of this protocol", "calls"),
            "polybus_failures": ("Calls and messages that failed", "failures"),
        }
        for name, (text, field) in counters.items():
            counter = CounterMetricFamily(name, text, labels=["protocol"])
            for wire in wires:
                counter.add_metric([wire.protocol], getattr(wire, field))
            yield counter
        services = GaugeMetricFamily("polybus_services", "Registered names", labels=["protocol"])
        for wire in wires:
            services.add_metric([wire.protocol], wire.services)
        yield services

    def _connections(self) -> Iterator[Metric]:
        sources, totals = self._monitor.sources, self._monitor.sampler.totals
        current = GaugeMetricFamily("polybus_connections", "Open connections", labels=["protocol"])
        for protocol, count in sorted(totals.connected.items()):
            current.add_metric([protocol], count)
        yield current
        yield CounterMetricFamily(
            "polybus_connections_accepted", "Since the start", value=sources.connections.accepted
        )
        ended = CounterMetricFamily(
            "polybus_connections_ended", "Why they ended", labels=["reason"]
        )
        for reason, count in sources.connections.ended.most_common(50):
            ended.add_metric([reason], count)
        yield ended
        yield CounterMetricFamily(
            "polybus_memory_cuts", "Peers cut for memory", value=sources.connections.budget.cuts
        )

    def _durations(self) -> Iterator[Metric]:
        calls = HistogramMetricFamily(
            "polybus_call_duration_seconds",
            "Calls through the core, by the service's protocol",
            labels=["protocol"],
        )
        for wire, histogram in sorted(self._monitor.sampler.histograms.items()):
            calls.add_metric([wire], histogram.buckets(), histogram.total_s)
        yield calls
        yield HistogramMetricFamily(
            "polybus_commit_duration_seconds",
            "Syncs of the disk that acknowledged produces wait for",
            buckets=self._syncs.buckets(),
            sum_value=self._syncs.total_s,
        )

    def _recording(self) -> Iterator[Metric]:
        watch = self._monitor.sources.router.calls.watch
        written = dropped = stored = missed = 0
        if watch is not None:
            written, dropped = watch.journal.written, watch.journal.dropped
            targets = watch.captures.targets.values() if watch.captures is not None else ()
            stored = sum(target.stored for target in targets)
            missed = sum(target.dropped for target in targets)
        counters = {
            "polybus_journal_rows": ("Rows of the journal", written),
            "polybus_journal_rows_dropped": ("Rows that the log could not take in time", dropped),
            "polybus_captured_records": ("Records that captures kept", stored),
            "polybus_captured_records_dropped": ("Records that captures had to drop", missed),
        }
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(name, text, value=value)


async def topic_metrics(monitor: Monitor, pattern: str) -> list[Metric]:
    """The numbers of single topics and their groups, for whoever asks by pattern."""
    of_topic, of_group = ["topic"], ["topic", "group"]
    produced = CounterMetricFamily(
        "polybus_topic_produced_records", "Ever produced", labels=of_topic
    )
    stored = GaugeMetricFamily("polybus_topic_stored_records", "Held now", labels=of_topic)
    size = GaugeMetricFamily("polybus_topic_stored_bytes", "Held now", labels=of_topic)
    lag = GaugeMetricFamily("polybus_topic_group_lag_records", "Not yet confirmed", labels=of_group)
    flight = GaugeMetricFamily(
        "polybus_topic_group_in_flight_records", "Delivered, not confirmed", labels=of_group
    )
    again = CounterMetricFamily(
        "polybus_topic_group_redelivered", "Delivered again", labels=of_group
    )
    dead = CounterMetricFamily(
        "polybus_topic_group_dead", "Given up after all attempts", labels=of_group
    )
    topics, turns = monitor.sources.topics, Turns()
    found = [info for info in monitor.sampler.topics() if matches(pattern, info.name)]
    for info in found[:MAX_DETAILED]:
        produced.add_metric([info.name], info.end)
        stored.add_metric([info.name], info.end - info.first)
        size.add_metric([info.name], info.bytes)
        for group in [] if topics is None else topics.groups.of(info.name):
            key = [info.name, group.name]
            lag.add_metric(key, max(0, info.end - group.floor()))
            flight.add_metric(key, len(group.in_flight))
            again.add_metric(key, group.redelivered)
            dead.add_metric(key, group.dead)
        if turns.over():
            await turns.rest()
    return [produced, stored, size, lag, flight, again, dead]
