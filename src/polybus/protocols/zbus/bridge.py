"""Payloads between Zbus RPC and the other wires (DESIGN 3).

Invariant: JSON crosses as JSON; bytes that are not UTF-8 cross as `{"$base64": …}` and come out as the same bytes.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from polybus.model.message import Reply, Status


class Asked:
    """A call of a Zbus client to another wire; a reply in parts is joined, since this wire has none."""

    __slots__ = ("_parts", "_size", "ident", "topic")

    def __init__(self, ident: str, topic: str) -> None:
        self.ident = ident
        self.topic = topic
        self._parts: list[bytes] = []
        self._size = 0

    def joined(self, reply: Reply, limit: int) -> Reply | None:
        """The whole reply once it is there, or what ends it early: a failure, or more than `limit` bytes."""
        if reply.status is not Status.OK:
            return reply
        self._parts.append(reply.payload)
        self._size += len(reply.payload)
        if self._size > limit:
            text = b"the reply is larger than a Zbus message may be"
            return Reply(reply.call, text, Status.TOO_LARGE)
        return Reply(reply.call, b"".join(self._parts)) if reply.final else None


def wrap_call(module: str, method: str, payload: bytes) -> bytes:
    """A payload as a Zbus request: a JSON array becomes `params`, any other value is one parameter.

    A call to the topic itself whose payload is a Zbus request already is passed on as it is.
    """
    value = to_json(payload)
    if not module and not method and isinstance(value, dict) and "method" in value:
        return payload
    params = value if isinstance(value, list) else [] if payload == b"" else [value]
    return msgspec.json.encode({"method": method, "module": module, "params": params})


def unwrap_call(body: bytes) -> tuple[str, str, bytes] | None:
    """Module, method and payload of a Zbus request; None when it is none."""
    try:
        request = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if not isinstance(request, dict):
        return None
    module, method = request.get("module") or "", request.get("method") or ""
    params = request.get("params")
    if not isinstance(module, str) or not isinstance(method, str):
        return None
    if not isinstance(params, list):
        params = [] if params is None else [params]
    value = params[0] if len(params) == 1 else params
    return module, method, b"" if not params else to_bytes(value)


def wrap_result(reply: Reply) -> tuple[int, bytes]:
    """An answer of another wire as a Zbus response: status and body."""
    if reply.status is Status.OK:
        return 200, msgspec.json.encode({"result": to_json(reply.payload)})
    if reply.status is Status.FAILED:
        return 200, msgspec.json.encode({"error": reply.text})
    return 502, f"502: {reply.text}".encode()


def unwrap_result(status: int, body: bytes) -> tuple[bool, bytes]:
    """A Zbus response as (whether it failed, payload)."""
    if status != 200:
        return True, body
    try:
        response = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False, body
    if isinstance(response, dict) and response.keys() & {"result", "error"}:
        error = response.get("error")
        if error is not None:
            return True, error_text(error).encode()
        return False, to_bytes(response.get("result"))
    return False, body  # the last versions answer with the bare result


def to_json(payload: bytes) -> Any:
    """A payload as a JSON value: parsed, or the text itself, or its base64."""
    if not payload:
        return None
    try:
        return msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return {"$base64": base64.b64encode(payload).decode()}


def to_bytes(value: Any) -> bytes:
    """A JSON value as a payload."""
    if isinstance(value, dict) and value.keys() == {"$base64"}:
        try:
            return base64.b64decode(value["$base64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            pass
    return msgspec.json.encode(value)


def error_text(error: Any) -> str:
    """The text of an error in any of the shapes that services send."""
    if isinstance(error, dict):
        text = error.get("message") or error.get("localizedMessage")
        if text:
            return str(text)
        return msgspec.json.encode(error).decode()
    return str(error)
