"""What a request asks for: its command and headers, from the headers alone or from the URL (protocol page §4, §14).

Invariant: a `cmd` header means that the URL is not looked at; otherwise headers win over the URL key by key, and a
first path part that names a command is read as the documented dialect does, everything else as the later ones do.

    /<cmd>[/<topic>[/<group>]][?k=v&&k=v]                      0.8, the documented form
    /rpc/<topic>/<method>/<arg>…[?module=M&&appid=A&&token=T]  0.8
    /<topic>[/<group>]?cmd=<cmd>&k=v                           0.9; without cmd: produce
    /<topic>/<method>/<arg>…[?module=M]                        0.9, for a topic with the rpc bit
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from polybus.http.head import Head

COMMANDS: Final = frozenset(
    {
        "produce",
        "consume",
        "unconsume",
        "ack",
        "declare",
        "query",
        "remove",
        "empty",
        "route",
        "rpc",
        "track_sub",
        "track_pub",
        "tracker",
        "server",
        "ping",
        "heartbeat",
        "trace",
        "ssl",
        "login",
        "logout",
    }
)
# Only these take topic and group from the path in the documented dialect.
_WITH_TOPIC: Final = frozenset({"produce", "consume", "declare", "query", "remove", "empty"}) | {
    "unconsume",
    "ack",
}
FILES: Final = {
    "js": "application/javascript",
    "css": "text/css",
    "img": "image/svg+xml",
    "page": "text/html",
}


@dataclass(slots=True)
class Command:
    """One request, understood. `body` replaces the request's own when it is not None."""

    name: str
    headers: dict[str, str]
    body: bytes | None = None

    @property
    def topic(self) -> str:
        return self.headers.get("topic", "")

    @property
    def group(self) -> str:
        return self.headers.get("consume_group", "")


def resolve(
    head: Head, has_body: bool, is_rpc: Callable[[str], bool], *, module_first: bool = False
) -> Command:
    """The command of a request.

    Args:
        is_rpc: whether a topic of that name has the rpc bit; asked for URLs of the later dialects only.
        module_first: read `/<topic>/<module>/<method>/<arg>…`, as the last versions did.
    """
    headers = dict(head.headers)
    command = headers.get("cmd")
    if command is not None:
        return _finish(Command(command.lower(), headers))
    path, query = head.path, head.query
    parts = [part for part in path.split("/") if part]
    parameters = _parameters(query)
    first = parts[0].lower() if parts else ""
    later = Later(parts, parameters, headers, module_first)
    if "cmd" in parameters:
        return _finish(later.resolve(is_rpc, has_body))
    if not parts:
        return _finish(_with_parameters(Command("home", headers), parameters))
    if first in FILES or path == "/favicon.ico":
        return Command("file", headers)
    if first == "rpc" and not has_body:
        return _finish(_resolve_rpc(parts[1:], parameters, headers))
    if first in COMMANDS:
        if first in _WITH_TOPIC or first == "rpc":
            _take_path(parts[1:], headers)
        return _finish(_with_parameters(Command(first, headers), parameters))
    return _finish(later.resolve(is_rpc, has_body))


def rpc_body(module: str, method: str, arguments: list[str]) -> bytes:
    """The request that an RPC URL stands for; all arguments are texts."""
    # The null is what the documented server sends; the later ones leave it out.
    request = {"method": method, "module": module, "paramTypes": None, "params": arguments}
    return msgspec.json.encode(request)


def _parameters(query: str) -> dict[str, str]:
    # `&&` works since empty parts are skipped; nothing is percent-decoded (protocol page §4).
    found: dict[str, str] = {}
    for part in query.split("&"):
        if part:
            name, _, value = part.partition("=")
            found[name.lower()] = value
    return found


def _with_parameters(command: Command, parameters: dict[str, str]) -> Command:
    for name, value in parameters.items():
        if name and name not in command.headers:
            command.headers[name] = value
    return command


def _take_path(parts: list[str], headers: dict[str, str]) -> None:
    if parts:
        headers.setdefault("topic", parts[0])
    if len(parts) > 1 and "group" not in headers:
        headers.setdefault("consume_group", parts[1])


def _resolve_rpc(parts: list[str], parameters: dict[str, str], headers: dict[str, str]) -> Command:
    for name in ("appid", "token"):
        if name in parameters:
            headers.setdefault(name, parameters[name])
    headers["ack"] = "0"
    if len(parts) < 2:
        return Command("produce", headers)
    headers.setdefault("topic", parts[0])
    body = rpc_body(parameters.get("module", ""), parts[1], parts[2:])
    return Command("produce", headers, body)


@dataclass(slots=True)
class Later:
    """A URL of the dialects from 0.9 on."""

    parts: list[str]
    parameters: dict[str, str]
    headers: dict[str, str]
    module_first: bool

    def resolve(self, is_rpc: Callable[[str], bool], has_body: bool) -> Command:
        """The command it stands for."""
        parts, parameters = self.parts, self.parameters
        name = parameters.pop("cmd", "produce").lower()
        if name == "produce" and len(parts) > 1 and not has_body and is_rpc(parts[0]):
            if self.module_first and len(parts) > 2:
                parameters = {**parameters, "module": parts[1]}
                parts = [parts[0], *parts[2:]]
            return _resolve_rpc(parts, parameters, self.headers)
        _take_path(parts, self.headers)
        return _with_parameters(Command(name, self.headers), parameters)


def _finish(command: Command) -> Command:
    """The documented short alias of `consume_group`."""
    group = command.headers.pop("group", None)
    if group is not None:
        command.headers.setdefault("consume_group", group)
    command.headers.pop("cmd", None)
    return command
