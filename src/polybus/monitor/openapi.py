"""The OpenAPI document, made from the table of operations and the types of its shapes.

Invariant: nothing is described here that the table does not hold.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from polybus._version import __version__
from polybus.monitor.api import ROOT, Operation
from polybus.monitor.shapes import Problem

REFERENCE: Final = "#/components/schemas/{name}"


def describe(operations: list[Operation]) -> dict[str, Any]:
    """The whole document."""
    types: list[type[msgspec.Struct]] = [Problem]
    for operation in operations:
        found = (operation.answers, operation.body)
        types += [t for t in found if t is not None and t not in types]
    _, schemas = msgspec.json.schema_components(types, ref_template=REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(ROOT + operation.path, {})[operation.method.lower()] = _one(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "polybus monitor",
            "version": __version__,
            "description": "What a polybus node is doing, and the few things that can be changed from the page.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _one(operation: Operation) -> dict[str, Any]:
    if operation.answers is None:
        content: dict[str, Any] = {"text/event-stream": {"schema": {"type": "string"}}}
    elif operation.name == "openapi":
        content = {"application/json": {"schema": {"type": "object"}}}
    else:
        content = {"application/json": {"schema": _reference(operation.answers)}}
    problem = {"application/json": {"schema": _reference(Problem)}}
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [
            "changes" if operation.admin else "stream" if operation.answers is None else "view"
        ],
        "parameters": [*_path_parameters(operation), *_query_parameters(operation)],
        "responses": {
            str(operation.status): {"description": "The answer", "content": content},
            "default": {"description": "Why there is none", "content": problem},
        },
    }
    if operation.body is not None:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _reference(operation.body)}},
        }
    return described


def _reference(shape: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": REFERENCE.format(name=shape.__name__)}


def _path_parameters(operation: Operation) -> list[dict[str, Any]]:
    found = []
    for segment in operation.segments:
        if segment.startswith("{"):
            name = segment[1:-1]
            text: dict[str, Any] = {"type": "string", "minLength": 1}
            number: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 10**18 - 1}
            schema = number if name in operation.numbers else text
            found.append({"name": name, "in": "path", "required": True, "schema": schema})
    return found


def _query_parameters(operation: Operation) -> list[dict[str, Any]]:
    if operation.question is None:
        return []
    _, schemas = msgspec.json.schema_components([operation.question], ref_template=REFERENCE)
    schema = schemas[operation.question.__name__]
    required = set(schema.get("required", ()))
    return [
        {"name": name, "in": "query", "required": name in required, "schema": each}
        for name, each in schema["properties"].items()
    ]
