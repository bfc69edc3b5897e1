"""`polybus twin`: the other twins of the Reliable Message Bus, from a shell."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from polybus.cli.bus import body_fields, body_of, print_body, run, timeout_option
from polybus.cli.output import json_option, print_json_line, print_table
from polybus.client.bus import Bus
from polybus.errors import ConfigError
from polybus.server.load import load


@contextmanager
def of_the_extra() -> Iterator[None]:
    """Imports that need `polybus[rmb]`; done where they are used, since `polybus --help` lists this verb everywhere."""
    try:
        yield
    except ModuleNotFoundError as exc:
        raise ConfigError(f"twins need {exc.name}: pip install 'polybus[rmb]'") from exc


redis_option = click.option(
    "--redis",
    default="redis://127.0.0.1:6379",
    show_default=True,
    metavar="URL",
    help="Redis of the own twin.",
)


class Twins(click.ParamType[list[int]]):
    """`12` or `12,13`."""

    name = "twins"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[int]:
        try:
            return [int(part) for part in str(value).split(",")]
        except ValueError:
            self.fail(f"{value!r} is neither a number nor some with commas", param, ctx)


@click.group()
def twin() -> None:
    """Talk to twins of the Reliable Message Bus."""


@twin.command("ls")
@click.option("--twins", metavar="FILE", help="The directory [default: of the configuration].")
@json_option
def ls(twins: str | None, as_json: bool) -> None:
    """List the twins of a directory file."""
    with of_the_extra():
        from polybus.protocols.rmb.keys import encode_account
        from polybus.protocols.rmb.twins import parse_directory
    source = twins or load(None, os.environ).config.rmb.twins
    if not source or "://" in source:
        raise ConfigError("a directory file is needed: --twins FILE")
    try:
        text = Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot read {source}: {exc}") from exc
    rows: list[dict[str, object]] = [
        {
            "id": entry.id,
            "address": entry.address,
            "account": encode_account(entry.public_key) if entry.public_key else "",
            "generation": entry.generation or "",
            "unsigned": "allowed" if entry.allow_unsigned else "",
        }
        for entry in parse_directory(text).values()
    ]
    print_table(rows, as_json)


def open_bus(redis: str) -> Bus:
    """A bus at the Redis of a twin."""
    with of_the_extra():
        from polybus.client.rmb import RmbLink
        from polybus.protocols.rmb.resp import parse_redis_url
    url = parse_redis_url(redis)
    return Bus(lambda: RmbLink(url), redis)


@twin.command("call", short_help="Ask twins and print their replies.")
@click.argument("twins", type=Twins())
@click.argument("command")
@click.argument("body", required=False)
@redis_option
@timeout_option
@json_option
def call(
    twins: list[int], command: str, body: str | None, redis: str, timeout: float, as_json: bool
) -> None:
    """Ask TWINS (a number, or some with commas) for COMMAND with BODY (`-` reads stdin) and print their replies.

    Of several twins every reply is a line; one that fails does not hide those of the others.
    """
    payload = body_of(body)

    async def verb() -> None:
        async with open_bus(redis) as bus:
            calls = [bus.call(command, payload, timeout=timeout, twin=number) for number in twins]
            replies = await asyncio.gather(*calls, return_exceptions=True)
        failed = None
        for number, reply in zip(twins, replies, strict=True):
            if isinstance(reply, BaseException):
                if failed is not None:
                    click.echo(f"polybus: {failed}", err=True)
                failed = reply
            elif len(twins) == 1:
                print_body(reply, as_json)
            elif as_json:
                print_json_line({"twin": number} | body_fields(reply))
            else:
                click.echo(reply)
        if failed is not None:
            raise failed

    run(verb())


@twin.command("ping", short_help="Measure the way to a twin and back.")
@click.argument("number", type=int)
@click.option("--count", type=int, default=3, show_default=True, help="How many times.")
@redis_option
@timeout_option
@json_option
def ping(number: int, count: int, redis: str, timeout: float, as_json: bool) -> None:
    """Measure the way to the twin NUMBER and back; it has to be a polybus too."""
    with of_the_extra():
        from polybus.protocols.rmb.names import PING

    async def verb() -> None:
        async with open_bus(redis) as bus:
            for _ in range(count):
                began = time.perf_counter()
                await bus.call(PING, b"", timeout=timeout, twin=number)
                took = 1000 * (time.perf_counter() - began)
                if as_json:
                    print_json_line({"twin": number, "ms": round(took, 3)})
                else:
                    click.echo(f"twin {number}: {took:.1f} ms")

    run(verb())
