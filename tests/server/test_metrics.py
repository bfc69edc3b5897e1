"""`/metrics` as the official parser reads it."""

from __future__ import annotations

import re

from prometheus_client.parser import text_string_to_metric_families

import polybus
from tests.monitor.serving import Watched, watched


async def scrape(bus: Watched, path: str = "/metrics") -> dict[str, dict[tuple[str, ...], float]]:
    """Samples by name and the values of their labels, in the order of the labels' names."""
    answer = await bus.ask(path)
    assert answer.status == 200
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(answer.body.decode()):
        assert family.documentation
        for sample in family.samples:
            found.setdefault(sample.name, {})[
                tuple(v for _, v in sorted(sample.labels.items()))
            ] = sample.value
    return found


async def test_the_official_parser_finds_what_happened(tmp_path):
    async with watched(tmp_path) as bus, polybus.connect(bus.url) as client:
        await client.serve("twice", lambda body: body * 2)
        for _ in range(3):
            await client.call("twice", b"ab")
        await client.produce("log", b"x", create=True)
        await bus.node.monitor.sampler.sample()
        found = await scrape(bus)
    assert found["polybus_up"][()] == 1
    assert found["polybus_ready"][()] == 1
    assert found["polybus_calls_total"][("native",)] == 3
    assert found["polybus_connections"][("native",)] == 1
    assert found["polybus_topic_records"][()] == 1
    assert found["polybus_call_duration_seconds_count"][("native",)] == 3
    assert found["polybus_call_duration_seconds_bucket"][("+Inf", "native")] == 3
    assert found["polybus_commit_duration_seconds_count"][()] >= 1
    assert found["polybus_commit_duration_seconds_sum"][()] > 0


async def test_who_just_came_is_counted_though_the_last_sample_is_fresh(tmp_path):
    async with watched(tmp_path) as bus:
        await bus.node.monitor.sampler.sample()
        async with polybus.connect(bus.url) as client:
            await client.serve("twice", lambda body: body * 2)
            taken = bus.node.monitor.sampler.totals.at
            found = await scrape(bus)
            assert bus.node.monitor.sampler.totals.at == taken
    assert found["polybus_connections"][("native",)] == 1
    assert found["polybus_services"][("native",)] == 1


async def test_names_follow_one_rule(tmp_path):
    async with watched(tmp_path) as bus:
        for name in await scrape(bus):
            assert re.fullmatch(r"(polybus|process|python_gc)(_[a-z0-9]+)+", name), name


async def test_the_number_of_series_does_not_grow_with_the_bus(tmp_path):
    async with watched(tmp_path) as bus:
        topics = bus.node.topics
        assert topics is not None
        await topics.declare("first")
        await bus.node.monitor.sampler.sample()
        before = {name: len(samples) for name, samples in (await scrape(bus)).items()}
        for number in range(50):
            await topics.declare(f"t{number}")
        await bus.node.monitor.sampler.sample()
        after = {name: len(samples) for name, samples in (await scrape(bus)).items()}
        # The scrape itself is a connection that ends, which may be the first of its kind.
        before.pop("polybus_connections_ended_total", None)
        after.pop("polybus_connections_ended_total", None)
        assert after == before


async def test_details_of_topics_are_given_by_pattern(tmp_path):
    async with watched(tmp_path) as bus, polybus.connect(bus.url) as client:
        await client.produce("orders/eu", b"x", create=True)
        await client.produce("other", b"x", create=True)
        async with client.consume("orders/eu", "billing") as consumption:
            await anext(consumption)
            found = await scrape(bus, "/metrics/detailed?topic=orders/**")
        assert found["polybus_topic_stored_records"] == {("orders/eu",): 1}
        assert found["polybus_topic_group_lag_records"] == {("billing", "orders/eu"): 1}
        assert found["polybus_topic_group_in_flight_records"] == {("billing", "orders/eu"): 1}
        assert (await bus.ask("/metrics/detailed?topic=a//b")).status == 400
        assert (await bus.ask("/metrics/other")).status == 404


async def test_a_node_without_topics_has_metrics_too(tmp_path):
    async with watched(None) as bus:
        assert (await scrape(bus))["polybus_topics"][()] == 0
        assert await scrape(bus, "/metrics/detailed") == {}


async def test_alive_and_ready_are_told_apart(tmp_path):
    async with watched(tmp_path) as bus:
        assert (await bus.ask("/healthz")).status == 200
        assert (await bus.ask("/readyz")).body == b"ready\n"
        bus.node._state = "draining"
        assert (await bus.ask("/healthz")).status == 200
        answer = await bus.ask("/readyz")
        assert (answer.status, answer.body) == (503, b"draining\n")
        bus.node._state = "ready"
