"""Asking a node over HTTP, at the address where its SDK clients find it.

Invariant: one question, one answer; an error of the node comes back as the error it is.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
from http import HTTPStatus
from typing import Any, Final

import msgspec

from polybus.client.connect import DEFAULT_URL, connect, to_address
from polybus.errors import ConfigError, PeerUnavailable, RemoteProtocolError, from_code
from polybus.transports.tls import client_context
from polybus.transports.url import Address

TIMEOUT_S: Final = 10.0
OTHER_WIRES: Final = ("gsb", "t2", "rmb", "zbus")


def ask(url: str | None, path: str) -> tuple[int, bytes]:
    """The status and body of a GET.

    Raises:
        PeerUnavailable: there is nobody; ConfigError: the URL leads to no node of ours.
    """
    text = url or DEFAULT_URL
    if text.partition(":")[0].partition("+")[0] in OTHER_WIRES:
        raise ConfigError(f"{text} is another wire; give the address of a polybus node")
    connect(
        text
    )  # connects nothing, but refuses what is no address in the words of the other verbs
    address = to_address(text, "polybus")
    token = os.environ.get("POLYBUS_TOKEN", "")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with _connected(address) as opened:
            connection = http.client.HTTPConnection(address.host or "localhost", timeout=TIMEOUT_S)
            connection.sock = opened
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as exc:
        why = "connection refused" if isinstance(exc, ConnectionRefusedError) else str(exc)
        raise PeerUnavailable(f"cannot connect to {address}: {why or type(exc).__name__}") from exc


def ask_json(url: str | None, path: str) -> dict[str, Any]:
    """The JSON of an answer.

    Raises:
        PolybusError: what the node says is wrong, by its number; or as `ask`.
    """
    status, body = ask(url, path)
    try:
        value: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError as exc:
        text = " ".join(body.decode("utf-8", "replace").split())[:200]
        raise RemoteProtocolError(f"{path} was answered with {status}: {text}") from exc
    if status != HTTPStatus.OK:
        raise from_code(int(value.get("code", 0)), str(value.get("error", value)))
    return value


def _connected(address: Address) -> socket.socket:
    if address.scheme == "unix":
        plain = socket.socket(socket.AF_UNIX)
        plain.settimeout(TIMEOUT_S)
        try:
            plain.connect(address.path)
        except OSError:
            plain.close()
            raise
        return plain
    plain = socket.create_connection((address.host, address.port), TIMEOUT_S)
    if address.scheme != "tls":
        return plain
    context: ssl.SSLContext = client_context(**address.options)
    return context.wrap_socket(plain, server_hostname=address.host)
