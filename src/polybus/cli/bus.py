"""What the verbs that talk to a node share: how to reach it, bodies, and ending well.

Invariant: a body goes out and comes in as the bytes it is; only printing for people or as JSON gives
it a form.
"""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click

from polybus.cli.contexts import chosen_url
from polybus.cli.output import print_json_line
from polybus.client import Message
from polybus.model.units import DURATION

F = TypeVar("F", bound=Callable[..., Any])


class Duration(click.ParamType[float]):
    """A flag such as `--timeout 10s`."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            return float(DURATION.parse(value))
        except ValueError as exc:
            self.fail(str(exc), param, ctx)


def url_option(verb: F) -> F:
    """The flag `--url`: which node to talk to."""

    def choose(ctx: click.Context, param: click.Parameter, flag: str | None) -> str | None:
        return chosen_url(flag, os.environ)

    help_text = (
        "The node [default: $POLYBUS_URL, the context in use, or this machine's port 15555]."
    )
    return click.option("--url", metavar="URL", callback=choose, help=help_text)(verb)


def timeout_option(verb: F) -> F:
    """The flag `--timeout`."""
    help_text = "How long to wait."
    return click.option(
        "--timeout", type=Duration(), default="30s", show_default=True, help=help_text
    )(verb)


def header_option(verb: F) -> F:
    """The repeatable flag `--header KEY=VALUE`, passed on as a mapping."""

    def parse(
        ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
    ) -> dict[str, str]:
        headers = {}
        for text in values:
            key, equals, value = text.partition("=")
            if not (key and equals):
                raise click.BadParameter(f"{text!r} is not KEY=VALUE")
            headers[key] = value
        return headers

    return click.option(
        "--header",
        "headers",
        multiple=True,
        metavar="KEY=VALUE",
        callback=parse,
        help="A header to send along; repeatable.",
    )(verb)


def body_of(text: str | None) -> bytes:
    """The body to send: the argument, or stdin for `-`; empty when there is none."""
    return sys.stdin.buffer.read() if text == "-" else (text or "").encode()


def print_body(payload: bytes, as_json: bool) -> None:
    """A body alone: the very bytes for a pipe, a line of its own on a terminal, or a JSON line."""
    if as_json:
        print_json_line(body_fields(payload))
        return
    newline = b"\n" if sys.stdout.isatty() and not payload.endswith(b"\n") else b""
    click.echo(payload + newline, nl=False)


def print_message(message: Message, as_json: bool) -> None:
    """A message as one line: name, headers and body; bytes that are no text are escaped."""
    if as_json:
        fields = {"name": message.name, "headers": dict(message.headers)}
        print_json_line(fields | body_fields(message.payload))
        return
    headers = "".join(f" {key}={value}" for key, value in message.headers.items())
    click.echo(f"{message.name}{headers} {message.payload.decode(errors='backslashreplace')}")


def body_fields(payload: bytes) -> dict[str, object]:
    """A body as a field of a JSON value."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def run(verb: Coroutine[Any, Any, None]) -> None:
    """Run a verb that ends by itself."""
    asyncio.run(verb)


def run_until_stopped(verb: Coroutine[Any, Any, None]) -> None:
    """Run a verb for which SIGTERM and Ctrl-C are the usual end: it is cancelled, and that is success."""

    async def body() -> None:
        task = asyncio.ensure_future(verb)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        await asyncio.wait((task,))
        if not task.cancelled():
            task.result()

    asyncio.run(body())
