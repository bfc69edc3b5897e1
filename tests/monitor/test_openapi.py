"""The document describes what is answered."""

from __future__ import annotations

import msgspec
import pytest

import polybus
from polybus.monitor.api import ROOT
from tests.monitor.serving import Watched


async def filled(bus: Watched) -> None:
    async with polybus.connect(bus.url) as client:
        await client.produce("log", b"\x00", key=b"k", tag="t", create=True)
        async with client.consume("log", "readers") as consumption:
            (await anext(consumption)).ack()
    topics = bus.node.topics
    assert topics is not None
    await topics.declare("log.dead")


async def test_every_answer_is_of_the_type_that_the_document_names(bus):
    await filled(bus)
    operations = bus.node.monitor._api.operations
    seen = 0
    for operation in operations:
        if operation.method != "GET" or operation.answers is None or operation.name == "openapi":
            continue
        path = operation.path.format(topic="log", offset="0", group="readers", connection="1")
        answer = await bus.ask(ROOT + path)
        assert answer.status == 200, (path, answer.body)
        decoded = msgspec.json.decode(answer.body, type=operation.answers)
        # Nothing more than the type has, either.
        assert msgspec.json.decode(msgspec.json.encode(decoded)) == answer.json
        seen += 1
    assert seen >= 11


async def test_the_document_lists_every_operation_with_its_parameters(bus):
    document = await bus.get("/openapi.json")
    assert document["openapi"].startswith("3.1")
    listed = {
        (method.upper(), path) for path, methods in document["paths"].items() for method in methods
    }
    assert listed == {(o.method, ROOT + o.path) for o in bus.node.monitor._api.operations}
    topics = document["paths"]["/api/v1/topics"]["get"]
    assert {p["name"] for p in topics["parameters"]} == {"q", "order", "page", "limit", "sort"}
    record = document["paths"]["/api/v1/topics/{topic}/records/{offset}"]["get"]
    kinds = {p["name"]: p["schema"]["type"] for p in record["parameters"]}
    assert kinds == {"topic": "string", "offset": "integer", "raw": "boolean"}


async def test_every_reference_of_the_document_leads_somewhere(bus):
    text = (await bus.ask("/api/v1/openapi.json")).body.decode()
    schemas = msgspec.json.decode(text)["components"]["schemas"]
    names = [part.split('"')[0] for part in text.split("#/components/schemas/")[1:]]
    assert names
    assert set(names) <= set(schemas)


@pytest.mark.parametrize("name", ["TopicPage", "Overview", "Record", "Problem", "Produce"])
async def test_the_shapes_are_described(bus, name):
    document = await bus.get("/openapi.json")
    assert document["components"]["schemas"][name]["properties"]
