"""`polybus t2`: the original's program `t2`, with its addresses, its lines and its file of names.

Invariant: what the real program prints on stdout stands there in the same words; errors go to stderr with an exit code,
which the real one does not have.
"""

from __future__ import annotations

import contextlib
import logging
import re
import struct
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import cbor2
import click

from polybus import __version__
from polybus.cli.bus import run, run_until_stopped
from polybus.cli.t2_names import BUS_NAME, Place, default_place, parse_place, register, unregister
from polybus.errors import LocalProtocolError, RemoteProtocolError
from polybus.protocols.t2.client import Client, Connector
from polybus.protocols.t2.server import ServerBuilder
from polybus.protocols.t2.server import log as server_log

_NUMBER: Final = re.compile(
    r"[+-]?(\d+\.?\d*(e[+-]?\d+)?|\.\d+(e[+-]?\d+)?|inf(inity)?|nan)", re.I | re.A
)


class BusAddress(click.ParamType[Place]):
    """`tcp:HOST:PORT`, `unix:PATH` or `name:NAME`."""

    name = "address"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Place:
        if isinstance(value, Place):
            return value
        place = parse_place(str(value))
        if place is None:
            self.fail(
                "Invalid bus address. Must be in the format of (tcp|unix|name):<address or name>",
                param,
                ctx,
            )
        return place


def _bus_name(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if not BUS_NAME.fullmatch(value):
        raise click.BadParameter(
            "Invalid bus address name, must contain only lowercase and underscore."
        )
    return value


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="polybus t2")
def t2() -> None:
    """The T2 Bus: what the program `t2` does."""


address_argument = click.argument("address", type=BusAddress(), required=False)


@t2.command(short_help="Run a bus on all ADDRESSES.")
@click.argument("addresses", type=BusAddress(), nargs=-1)
@click.option("--unix", "sockets", multiple=True, metavar="NAME", help="Unix socket; repeatable.")
@click.option("--tcp", "ports", multiple=True, metavar="ADDR", help="HOST:PORT; repeatable.")
def serve(addresses: tuple[Place, ...], sockets: tuple[str, ...], ports: tuple[str, ...]) -> None:
    """Run a bus on all ADDRESSES until SIGTERM, Ctrl-C or a client's Stop."""
    places = [*addresses, *(Place("unix", s) for s in sockets), *(Place("tcp", p) for p in ports)]
    if not places:
        raise click.UsageError("name at least one address")
    builder = ServerBuilder()
    for place in places:
        found = place.resolve()
        if found.kind == "tcp":
            builder.serve_tcp(found.where)
        else:
            builder.serve_unix_socket(found.where)
    run_until_stopped(_serve(builder))


async def _serve(builder: ServerBuilder) -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("[B] %(message)s"))
    server_log.addHandler(handler)
    server_log.propagate = False
    server_log.setLevel(logging.INFO)
    stopper, _memory = await builder.build()
    async with stopper:
        await stopper.join()


async def _connect(address: Place | None) -> Client:
    place = (address or default_place()).resolve()
    if place.kind == "tcp":
        return await Connector.tcp(place.where).connect()
    return await Connector.unix(place.where).connect()


@t2.command()
@click.argument("topic")
@address_argument
def sub(topic: str, address: Place | None) -> None:
    """Print what is published to TOPIC, prefix included, line by line."""
    run_until_stopped(
        _follow(topic, address, lambda name, payload: f"{name}: {show(name, payload)}")
    )


@t2.command()
@click.argument("topic")
@address_argument
def ls(topic: str, address: Place | None) -> None:
    """Print each topic that something is published to, once."""
    seen: set[str] = set()

    def line(name: str, _payload: bytes) -> str | None:
        if name in seen:
            return None
        seen.add(name)
        return name

    run_until_stopped(_follow(topic, address, line))


async def _follow(
    topic: str, address: Place | None, line: Callable[[str, bytes], str | None]
) -> None:
    async with await _connect(address) as client:
        async for name, payload in await client.subscribe_bytes(topic):
            text = line(name, payload)
            if text is not None:
                click.echo(text)


@t2.command()
@click.argument("topic")
@click.argument("value")
@address_argument
def pub(topic: str, value: str, address: Place | None) -> None:
    """Publish VALUE to TOPIC, which begins with `f32/` or `string/`."""
    payload = encode_value(topic, value)

    async def verb() -> None:
        async with await _connect(address) as client:
            await client.publish_bytes(topic, payload)

    run(verb())


@t2.command(name="register")
@click.argument("name", callback=_bus_name)
@click.argument("address", type=BusAddress())
@click.option("--default", "first", is_flag=True, help="Use it where no address is given.")
def register_name(name: str, address: Place, first: bool) -> None:
    """Give a bus a NAME that can be used as `name:NAME`."""
    register(name, address.resolve(), first)


@t2.command(name="unregister")
@click.argument("name", callback=_bus_name)
def unregister_name(name: str) -> None:
    """Forget a NAME."""
    unregister(name)


# -- values -----------------------------------------------------------------------------------------------------------


def encode_value(topic: str, value: str) -> bytes:
    """A value given on the command line as the payload of the protocol that the topic names.

    Raises:
        LocalProtocolError: the topic names neither protocol, or the value is no number.
    """
    if topic.startswith("string/"):
        return cbor2.dumps(value)
    if not topic.startswith("f32/"):
        raise LocalProtocolError("Unknown protocol")
    if not _NUMBER.fullmatch(value):
        raise LocalProtocolError(
            "When the topic starts with f32/ then the value must be a valid f32"
        )
    # Canonical: in the shortest of the three widths that holds it, as the original writes it.
    return cbor2.dumps(to_f32(float(value)), canonical=True)


def show(topic: str, payload: bytes) -> str:
    """A payload as the original prints it: by the protocol that the topic names, else in hex.

    Raises:
        RemoteProtocolError: it is not what the protocol says.
    """
    wanted = float if topic.startswith("f32/") else str if topic.startswith("string/") else None
    if wanted is None:
        return "0x" + payload.hex()
    value: object = None
    with contextlib.suppress(cbor2.CBORDecodeError):
        value = cbor2.loads(payload)
    if isinstance(value, float) and wanted is float:
        return show_f32(to_f32(value))
    if isinstance(value, str) and wanted is str:
        return value
    raise RemoteProtocolError("IO error: CBOR deserialization failed.")


def to_f32(value: float) -> float:
    """The nearest number of 32 bits."""
    try:
        rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    return rounded


def show_f32(value: float) -> str:
    """A number of 32 bits in Rust's notation: as few digits as tell it apart, never an exponent."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    digits = (f"{value:.{n}g}" for n in range(1, 10))
    return format(Decimal(next(text for text in digits if to_f32(float(text)) == value)), "f")


def main() -> None:
    """The program `t2` of the distribution polybus-t2."""
    from polybus.cli.main import run_program

    run_program(t2, "t2")
