"""Puts a node's twin together from its settings: key, directory, Redis, and its place among the wires.

Invariant: imported only on a node that is a twin, since what it needs comes with the extra `rmb`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polybus.core.router import Router
from polybus.errors import ConfigError
from polybus.http.session import HttpSession
from polybus.http.settings import HttpSettings
from polybus.http.site import Site
from polybus.server.config import Config
from polybus.server.identity import identity_of
from polybus.server.wires import Wire
from polybus.transports.connection import Connection
from polybus.transports.session import Session
from polybus.transports.tls import client_context
from polybus.transports.url import Address

try:
    from polybus.protocols.rmb.embedded import EmbeddedRedis
    from polybus.protocols.rmb.keys import read_seed
    from polybus.protocols.rmb.options import RmbOptions
    from polybus.protocols.rmb.resp import RedisUrl, parse_redis_url
    from polybus.protocols.rmb.room import RmbRoom
    from polybus.protocols.rmb.signature import Signer
except ModuleNotFoundError as exc:
    raise ConfigError(f"a twin needs {exc.name}: pip install 'polybus[rmb]'") from exc


def rmb_room(router: Router, config: Config) -> RmbRoom:
    """The room, checked as far as that is possible without starting anything.

    Raises:
        ConfigError.
    """
    rmb = config.rmb
    if not 0 < rmb.twin < 2**32:
        raise ConfigError(f"rmb.twin: {rmb.twin} is no number of a twin")
    if rmb.key_file is None:
        raise ConfigError(f"twin {rmb.twin} needs its key: --key-file FILE")
    if not rmb.twins:
        raise ConfigError(f"twin {rmb.twin} needs a directory of the others: --twins FILE")
    options = RmbOptions(
        twin=rmb.twin,
        generation=rmb.generation,
        push_side=rmb.push_side,
        services=rmb.services,
        workers=rmb.workers,
        max_body=rmb.max_body,
        max_queue=rmb.max_queue,
        max_pending=rmb.max_pending,
        twin_rate=rmb.twin_rate,
        clock_skew=int(rmb.clock_skew),
        uploads=rmb.uploads,
        proxy=rmb.proxy,
    )
    if rmb.redis == "embedded":
        folder = None if config.data is None else config.data / "redis"
        redis: EmbeddedRedis | RedisUrl = EmbeddedRedis(folder)
    else:
        redis = parse_redis_url(rmb.redis)
    try:
        signer = Signer(rmb.key_type, read_seed(rmb.key_file))
    except ModuleNotFoundError as exc:
        raise ConfigError(f"a twin needs {exc.name}: pip install 'polybus[rmb]'") from exc
    tls = client_context(ca=rmb.ca) if rmb.ca else None
    return RmbRoom(router, options, signer, rmb.twins, redis, tls)


def rmb_wire(room: RmbRoom, on_stop: Callable[[], None]) -> Wire:
    """The wire for `rmb+tcp://…`: HTTP with the paths of this bus only, whatever the name in Host.

    Twins know each other by any name, and what they send is signed; so the rule about unknown hosts is left to the
    port that browsers use.
    """
    site = Site(HttpSettings(max_body=room.options.max_body, origins=("*",)))
    room.remote.register(site)

    def serve(connection: Connection) -> Session:
        return HttpSession(site, identity_of(connection), connection.peer)

    async def start(addresses: Sequence[Address]) -> None:
        await room.start(on_stop)

    def notes() -> list[str]:
        return [f"redis {room.redis_address}"]

    def never(first: bytes) -> bool:
        return False  # told by its port, or served by the HTTP of the common one

    return Wire("rmb", never, serve, start=start, stop=room.stop, notes=notes)
