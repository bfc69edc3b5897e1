"""`polybus serve`: runs a node until it is told to stop.

Invariant: stdout gets one line `listening ADDRESS` per listener, what the wires have to add (`redis
ADDRESS` of a twin), and then `ready`, once all of them accept; programs that start a node wait for
that line.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import click

from polybus.cli.loop import loop_factory
from polybus.errors import ConfigError, StorageError
from polybus.server.config import Config
from polybus.server.load import load
from polybus.server.log import set_up_logging
from polybus.server.malloc import tune_malloc
from polybus.server.node import Node


@click.command()
@click.option("--listen", multiple=True, metavar="URL", help="Address to listen on; repeatable.")
@click.option("--data", metavar="DIR", help="Folder of the durable topics.")
@click.option("--advertise", metavar="HOST:PORT", help="What Zbus clients are told to connect to.")
@click.option(
    "--tracker", multiple=True, metavar="HOST:PORT", help="Zbus tracker to join; repeatable."
)
@click.option("--twin", type=int, metavar="N", help="Be this twin of the Reliable Message Bus.")
@click.option("--key-file", metavar="FILE", help="The twin's secret key: 0x… or a phrase.")
@click.option("--key-type", metavar="TYPE", help="sr25519 (the default) or ed25519.")
@click.option("--twins", metavar="FILE", help="Directory of all twins: TOML, JSON or a URL.")
@click.option("--redis", metavar="URL", help="Redis of the twin's clients [default: embedded].")
@click.option("--config", "file", type=click.Path(path_type=Path), help="TOML file to read.")
@click.option("--check", is_flag=True, help="Check the configuration and exit.")
def serve(
    listen: tuple[str, ...],
    data: str | None,
    advertise: str | None,
    tracker: tuple[str, ...],
    twin: int | None,
    key_file: str | None,
    key_type: str | None,
    twins: str | None,
    redis: str | None,
    file: Path | None,
    check: bool,
) -> None:
    """Run a node until SIGTERM or Ctrl-C, which let what is in flight finish first."""
    flags = {
        "listen": listen or None,
        "data": data,
        "zbus.advertise": advertise,
        "zbus.trackers": tracker or None,
        "rmb.twin": twin,
        "rmb.key_file": key_file,
        "rmb.key_type": key_type,
        "rmb.twins": twins,
        "rmb.redis": redis,
    }
    config = load(file, os.environ, flags).config
    if check:
        Node(config)
        click.echo("configuration is good")
        return
    set_up_logging(config.log)
    tune_malloc()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(config))


async def _serve(config: Config) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    node = Node(config)
    try:
        await node.start()
    except StorageError as exc:
        raise ConfigError(exc.text) from exc
    try:
        for address in node.addresses:
            click.echo(f"listening {address}")
        for note in node.notes:
            click.echo(note)
        click.echo("ready")
        stopping = asyncio.create_task(stop.wait())
        running = asyncio.create_task(node.wait())
        await asyncio.wait((stopping, running), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        running.cancel()
        # A node that ended by itself has a reason, which must not get lost.
        with contextlib.suppress(asyncio.CancelledError):
            await running
    finally:
        await node.stop()
