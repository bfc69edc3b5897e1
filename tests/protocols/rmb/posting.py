"""Posting to a node as a peer does, and messages that a peer would sign."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from polybus.protocols.rmb.message import parse_lenient
from polybus.protocols.rmb.signature import KeyType, digest
from tests.protocols.rmb.twins import signer_of

Response = tuple[int, dict[str, str], bytes]


async def http(
    port: int,
    path: str,
    body: bytes,
    *,
    method: str = "POST",
    headers: dict[str, str] | None = None,
) -> Response:
    """One request on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = {"host": f"127.0.0.1:{port}", "connection": "close"} | (headers or {})
    lines["content-length"] = str(len(body))
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
    raw = await reader.read()
    writer.close()
    await writer.wait_closed()
    top, _, rest = raw.partition(b"\r\n\r\n")
    first, *others = top.decode().split("\r\n")
    found = dict(line.lower().split(": ", 1) for line in others)
    return int(first.split(" ")[1]), found, rest


def message(now: int, **fields: Any) -> dict[str, Any]:
    """A request of twin 1 to twin 2, unsigned; a field that is `...` is left out."""
    whole = {
        "ver": 1,
        "uid": fields.get("uid", f"u-{message.__dict__.setdefault('count', 0)}"),
        "cmd": "cap.echo",
        "exp": 30,
        "try": 2,
        "dat": "aGVsbG8=",
        "tag": None,
        "src": 1,
        "dst": [2],
        "ret": "a-return-queue",
        "shm": "",
        "now": now,
        "err": "",
        "sig": None,
    } | fields
    message.__dict__["count"] += 1
    return {name: value for name, value in whole.items() if value is not ...}


def sign(whole: dict[str, Any], *, twin: int | None = None, kind: KeyType | None = None) -> bytes:
    """The message, signed by its source or by another twin, as JSON."""
    signer = signer_of(whole["src"] if twin is None else twin, kind)
    signed = signer.sign(digest(parse_lenient(json.dumps(whole).encode())))
    return json.dumps(whole | {"sig": signed}).encode()
