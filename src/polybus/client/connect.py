"""From a URL to a bus: the scheme picks the wire.

Invariant: nothing is connected here; a URL that cannot be understood is refused before anything is tried.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from polybus.client.bus import Bus
from polybus.client.gsb import GsbLink
from polybus.client.link import Link
from polybus.client.sync import SyncBus
from polybus.client.t2 import T2Link
from polybus.errors import ConfigError
from polybus.protocols.gsb.client import GsbClient
from polybus.protocols.gsb.client import parse_url as parse_gsb
from polybus.protocols.native.client import NativeClient
from polybus.protocols.native.local import find_door
from polybus.protocols.t2.client import DEFAULT_PORT as T2_PORT
from polybus.transports.connection import Connection, Connections, SessionFactory
from polybus.transports.dial import dial
from polybus.transports.url import DEFAULT_PORT, Address, meant, parse_address

DEFAULT_URL: Final = f"polybus://127.0.0.1:{DEFAULT_PORT}"


def connect(url: str | None = None, *, token: str | None = None) -> Bus:
    """A bus at `url`, to be opened with `async with` or `await`.

    Args:
        url: `polybus://host:port`, `polybus+unix:///path`, `polybus+tls://host:port?ca=…&cert=…&key=…`; what a node
            prints as its address (`tcp://…`, `unix://…`, `tls://…`) means the same; `memory:` is a node in this
            process. `gsb://host:port`, `gsb+unix:///path` and `gsb+tls://host:port?hash=…` speak the wire of the Golem
            Service Bus, to this node or to its original; `t2://host:port`, `t2+unix:///path` and
            `t2+tls://host:port?ca=…&cert=…&key=…` that of the T2 Bus; `rmb://host:port` (of the twin's Redis) that of
            the Reliable Message Bus. Default: the variable POLYBUS_URL, or this machine's usual port.
        token: who we are, for nodes that ask. Default: the variable POLYBUS_TOKEN.

    Raises:
        ConfigError: the URL has no known form.
    """
    url = url or os.environ.get("POLYBUS_URL") or DEFAULT_URL
    token = os.environ.get("POLYBUS_TOKEN", "") if token is None else token
    scheme = url.partition(":")[0].partition("+")[0]
    maker = WIRES.get(scheme)
    if maker is None:
        known = ", ".join(sorted(WIRES))
        suggestion = meant(url, "polybus")
        raise ConfigError(f"bad URL {url!r}: the scheme is none of {known}{suggestion}")
    return Bus(maker(url, token), url)


def connect_sync(url: str | None = None, *, token: str | None = None) -> SyncBus:
    """The same for programs without an event loop: `with polybus.connect_sync(url) as bus`. Arguments as `connect`."""
    return SyncBus(connect(url, token=token))


def _native(url: str, token: str) -> Callable[[], Link]:
    address = to_address(url, "polybus")

    async def open_connection(connections: Connections, factory: SessionFactory) -> Connection:
        return await dial(address, connections, factory)

    return lambda: NativeClient(open_connection, token=token)


def _memory(url: str, token: str) -> Callable[[], Link]:
    name = url.partition(":")[2].removeprefix("//")

    async def open_connection(connections: Connections, factory: SessionFactory) -> Connection:
        return find_door(name)(connections, factory)

    return lambda: NativeClient(open_connection, token=token)


def _gsb(url: str, token: str) -> Callable[[], Link]:
    inner = url.removeprefix("gsb+") if url.startswith("gsb+") else "tcp" + url.removeprefix("gsb")
    parse_gsb(inner)  # refused here rather than when it is opened
    return lambda: GsbLink(GsbClient(inner))


def _t2(url: str, token: str) -> Callable[[], Link]:
    address = to_address(url, "t2", T2_PORT)

    async def open_connection(connections: Connections, factory: SessionFactory) -> Connection:
        return await dial(address, connections, factory)

    return lambda: T2Link(open_connection)


def _rmb(url: str, token: str) -> Callable[[], Link]:
    try:
        from polybus.client.rmb import RmbLink
        from polybus.protocols.rmb.resp import parse_redis_url
    except ModuleNotFoundError as exc:
        raise ConfigError(f"{url!r} needs {exc.name}: pip install 'polybus[rmb]'") from exc

    scheme, _, rest = url.partition(":")
    schemes = {"rmb": "redis", "rmb+tls": "rediss", "rmb+unix": "unix"}
    redis = parse_redis_url(f"{schemes.get(scheme, scheme)}:{rest}")
    return lambda: RmbLink(redis)


def to_address(url: str, wire: str, default_port: int = DEFAULT_PORT) -> Address:
    """`wire://…` is TCP, `wire+unix:` and `wire+tls:` are what they say.

    Raises:
        ConfigError.
    """
    if url.startswith(wire + "+"):
        return parse_address(url.removeprefix(wire + "+"), default_port)
    if url.startswith(wire + ":"):
        return parse_address("tcp" + url.removeprefix(wire), default_port)
    return parse_address(url, default_port)


WIRES: Final[dict[str, Callable[[str, str], Callable[[], Link]]]] = {
    "polybus": _native,
    "tcp": _native,
    "tls": _native,
    "unix": _native,
    "memory": _memory,
    "gsb": _gsb,
    "t2": _t2,
    "rmb": _rmb,
}
"""Who makes a link for a URL and a token, by the scheme's first word."""
