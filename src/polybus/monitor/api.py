"""The JSON API below `/api/v1/`: one table of operations, from which requests are dispatched and the OpenAPI document
is made.

Invariant: whoever asks for anything here has been checked by the policy, and every failure is a `Problem` with the
error's own number and hint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from polybus.core.endpoint import ANONYMOUS, Identity
from polybus.errors import (
    Conflict,
    Interrupted,
    InvalidName,
    LimitExceeded,
    NameTaken,
    NotAuthorized,
    NotReachable,
    OutOfRange,
    PolybusError,
    Refused,
    ServiceFailed,
    StorageFull,
    TimedOut,
)
from polybus.http.request import Request
from polybus.http.site import denial
from polybus.monitor import shapes
from polybus.monitor.files import SAFE
from polybus.monitor.lists import Cut
from polybus.monitor.turns import rendered

ROOT: Final = "/api/v1"
JSON: Final = {**SAFE, "content-type": "application/json", "cache-control": "no-store"}
MAX_BODY: Final = 4 * 1024 * 1024  # of a question; larger payloads are for the SDK

# The first class that fits decides.
STATUSES: Final[tuple[tuple[type[PolybusError], int], ...]] = (
    (NotAuthorized, 403),
    (LimitExceeded, 400),
    (InvalidName, 400),
    (NameTaken, 409),
    (Conflict, 409),
    (Refused, 400),
    (NotReachable, 404),
    (OutOfRange, 404),
    (TimedOut, 504),
    (ServiceFailed, 502),
    (Interrupted, 503),
    (StorageFull, 507),
)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, taken apart."""

    request: Request
    path: dict[str, str]
    question: Any
    body: Any

    @property
    def who(self) -> Identity:
        who: Identity | None = self.request.identity
        return who or ANONYMOUS

    @property
    def peer(self) -> str:
        return self.request.connection.peer


Answer = Callable[[Asked], Awaitable[Any]]
"""Gives a shape, a `Cut` of a list, raw JSON as bytes, or None when it has taken the request over (a stream)."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the table. `path` is below the root; its `{parts}` stand for one percent-encoded segment each."""

    name: str
    method: str
    path: str
    summary: str
    answers: type[msgspec.Struct] | None
    run: Answer
    question: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    numbers: frozenset[str] = frozenset()
    """Parts of the path that are numbers."""
    admin: bool = False
    status: int = 200

    @property
    def segments(self) -> list[str]:
        return self.path.strip("/").split("/")


class Problems(PolybusError):
    """A request that no operation can take."""

    code = 1000
    hint = "See /api/v1/openapi.json for what can be asked."

    def __init__(self, status: int, text: str, allow: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.allow = allow


class Api:
    """Dispatches requests to the operations of the table."""

    def __init__(self, operations: list[Operation]) -> None:
        self.operations = operations
        self._by_length: dict[int, list[tuple[list[str], Operation]]] = {}
        for operation in operations:
            segments = operation.segments
            self._by_length.setdefault(len(segments), []).append((segments, operation))

    async def answer(self, request: Request) -> None:
        """Answer one request, with a problem if need be."""
        try:
            operation, path = self._find(request)
            result = await operation.run(self._take_apart(request, operation, path))
            if result is not None:
                request.respond(operation.status, JSON, await encode(result))
        except PolybusError as exc:
            refuse(request, exc)

    def _find(self, request: Request) -> tuple[Operation, dict[str, str]]:
        below = request.path.removeprefix(ROOT)
        given = below.strip("/").split("/")
        method = "GET" if request.method == "HEAD" else request.method
        allowed = []
        for segments, operation in self._by_length.get(len(given), ()):
            path = _match(segments, given)
            if path is None or not request.path.startswith(ROOT + "/"):
                continue
            if operation.method == method:
                return operation, path
            allowed.append(operation.method)
        if allowed:
            text = f"{request.method} is not possible here"
            raise Problems(405, text, ", ".join(sorted({*allowed, "OPTIONS"})))
        raise Problems(404, f"there is nothing at {request.path[:200]}")

    def _take_apart(self, request: Request, operation: Operation, path: dict[str, str]) -> Asked:
        try:
            parameters = request.parameters()
            if operation.question is not None:
                question = msgspec.convert(parameters, operation.question, strict=False)
            elif parameters:
                raise Problems(400, f"no parameter {sorted(parameters)[0]!r} is known here")
            else:
                question = None
            for part in operation.numbers:
                if not (path[part].isascii() and path[part].isdigit() and len(path[part]) < 19):
                    raise Problems(400, f"{path[part][:40]!r} is no {part}")
            body = None
            if operation.body is not None:
                if len(request.body) > MAX_BODY:
                    raise LimitExceeded("body too large", limit=MAX_BODY, actual=len(request.body))
                body = msgspec.json.decode(request.body, type=operation.body)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise Problems(400, str(exc)) from exc
        return Asked(request, path, question, body)


def _match(segments: list[str], given: list[str]) -> dict[str, str] | None:
    path = {}
    for segment, part in zip(segments, given, strict=True):
        if segment.startswith("{"):
            path[segment[1:-1]] = unquote(part)
        elif segment != part:
            return None
    return path


async def encode(result: Any) -> bytes:
    """An answer as JSON; long lists in turns."""
    if isinstance(result, bytes):
        return result
    if not isinstance(result, Cut):
        return msgspec.json.encode(result)
    row = result.row
    rows = await rendered(result.items, lambda item: msgspec.json.encode(row(item)))
    tail = {name: getattr(result, name) for name in ("total", "matching", "page", "limit")}
    # Megabytes are put together in a turn of their own, and sent in the next.
    await asyncio.sleep(0)
    whole = b"".join((b'{"items":[', b",".join(rows), b"],", msgspec.json.encode(tail)[1:]))
    await asyncio.sleep(0)
    return whole


def refuse(request: Request, exc: PolybusError) -> None:
    """Answer with a problem."""
    headers = JSON
    if isinstance(exc, Problems):
        status = exc.status
        if exc.allow:
            headers = {**JSON, "allow": exc.allow}
    else:
        status = next((number for kind, number in STATUSES if isinstance(exc, kind)), 500)
        if status == 403:
            status, challenge = denial(request)
            headers = {**JSON, **challenge}
    problem = shapes.Problem(status=status, code=exc.code, error=exc.text, hint=exc.hint)
    # What a client sent may be part of the text; half of a surrogate pair cannot be JSON.
    request.respond(status, headers, encode_problem(problem))


def encode_problem(problem: shapes.Problem) -> bytes:
    """The problem as JSON, whatever its text holds."""
    try:
        return msgspec.json.encode(problem)
    except UnicodeEncodeError:
        text = problem.error.encode("utf-8", "backslashreplace").decode()
        return msgspec.json.encode(msgspec.structs.replace(problem, error=text))
