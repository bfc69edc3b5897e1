"""`polybus call` and `polybus reply`: both sides of a call from a shell."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import click

import polybus
from polybus.cli.bus import (
    body_of,
    header_option,
    print_body,
    print_message,
    run,
    run_until_stopped,
    timeout_option,
    url_option,
)
from polybus.cli.output import json_option
from polybus.client import Message


@click.command(short_help="Call a service and print its reply.")
@click.argument("name")
@click.argument("body", required=False)
@click.option("--stream", is_flag=True, help="Print the parts of the reply as they come.")
@header_option
@timeout_option
@url_option
@json_option
def call(
    name: str,
    body: str | None,
    stream: bool,
    headers: Mapping[str, str],
    timeout: float,
    url: str | None,
    as_json: bool,
) -> None:
    """Call the service NAME with BODY (`-` reads stdin) and print its reply."""
    payload = body_of(body)

    async def verb() -> None:
        async with polybus.connect(url) as bus:
            if not stream:
                reply = await bus.call(name, payload, timeout=timeout, headers=headers)
                print_body(reply, as_json)
                return
            parts = bus.call_streaming(name, payload, timeout=timeout, headers=headers)
            async for part in parts:
                print_body(part, as_json)

    run(verb())


@click.command(short_help="Answer calls to a name.")
@click.argument("name")
@click.argument("body", required=False)
@click.option("--count", metavar="N", type=click.IntRange(1), help="End after so many calls.")
@url_option
@json_option
def reply(name: str, body: str | None, count: int | None, url: str | None, as_json: bool) -> None:
    """Answer calls to NAME with BODY (`-` reads stdin), or without BODY with what was sent.

    Prints every call, until Ctrl-C.
    """
    fixed = None if body is None else body_of(body)

    async def verb() -> None:
        done = asyncio.Event()
        answered = 0

        def answer(request: Message) -> bytes:
            nonlocal answered
            print_message(request, as_json)
            answered += 1
            if answered == count:
                done.set()
            return request.payload if fixed is None else fixed

        async with polybus.connect(url) as bus:
            await bus.serve(name, answer)
            click.echo(f"answering {name}", err=True)
            await done.wait()
            await bus.drain()

    run_until_stopped(verb())
