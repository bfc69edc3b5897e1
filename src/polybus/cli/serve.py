"""`polybus serve`: runs a node until it is told to stop.

Invariant: stdout gets one line `listening ADDRESS` per listener, what there is to add (`redis ADDRESS`
of a twin, `policy …` where strangers can reach the node), and then `ready`, once all of them accept;
programs that start a node wait for that line.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from polybus.cli.loop import loop_factory
from polybus.errors import ConfigError, StorageError
from polybus.server.config import Config
from polybus.server.load import load
from polybus.server.log import set_up_logging
from polybus.server.malloc import tune_malloc
from polybus.server.node import Node
from polybus.server.reload import Reload
from polybus.transports.url import Address

# Which setting each flag stands for.
SETTINGS_OF_FLAGS: Final = {
    "listen": "listen",
    "data": "data",
    "advertise": "zbus.advertise",
    "tracker": "zbus.trackers",
    "twin": "rmb.twin",
    "key_file": "rmb.key_file",
    "key_type": "rmb.key_type",
    "twins": "rmb.twins",
    "redis": "rmb.redis",
}

_DEFAULTS: Final = Config()
LISTEN_HELP: Final = f"Address to listen on; repeatable. [default: {', '.join(_DEFAULTS.listen)}]"
DATA_HELP: Final = f"Folder of the durable topics, '' for none. [default: {_DEFAULTS.data}]"


class AddressTaken(ConfigError):
    """The settings are good, but somebody else listens there."""

    hint = "Name another address with --listen, or stop what listens there."


@click.command(short_help="Run a node until SIGTERM or Ctrl-C.")
@click.option("--listen", multiple=True, metavar="URL", help=LISTEN_HELP)
@click.option("--data", metavar="DIR", help=DATA_HELP)
@click.option("--advertise", metavar="HOST:PORT", help="What Zbus clients are told to connect to.")
@click.option(
    "--tracker", multiple=True, metavar="HOST:PORT", help="Zbus tracker to join; repeatable."
)
@click.option("--twin", type=int, metavar="N", help="Be this twin of the Reliable Message Bus.")
@click.option("--key-file", metavar="FILE", help="The twin's secret key: 0x… or a phrase.")
@click.option("--key-type", metavar="TYPE", help="sr25519 (the default) or ed25519.")
@click.option("--twins", metavar="FILE", help="Directory of all twins: TOML, JSON or a URL.")
@click.option("--redis", metavar="URL", help="Redis of the twin's clients [default: embedded].")
@click.option(
    "--config", "file", type=click.Path(path_type=Path), metavar="FILE", help="TOML file to read."
)
@click.option("--check", is_flag=True, help="Check the configuration and exit.")
def serve(file: Path | None, check: bool, **flags: Any) -> None:
    """Run a node until SIGTERM or Ctrl-C, which let what is in flight finish first; a second one gives that up.

    Settings come from the file, from variables and from flags; the later of these wins. `polybus config show` prints
    what is in force and why. SIGHUP reads them again and takes over [policy] and the level of the log.
    """
    # A flag that may be repeated and was not given is an empty tuple; an empty text is a value.
    given = {
        SETTINGS_OF_FLAGS[flag]: None if value == () else value for flag, value in flags.items()
    }

    def read() -> Config:
        return load(file, os.environ, given).config

    config = read()
    if check:
        Node(config)
        click.echo("configuration is good")
        return
    set_up_logging(config.log)
    tune_malloc()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(config, read))


def _welcome(addresses: list[Address]) -> str:
    """What somebody who starts a node by hand may want to know next."""
    for address in addresses:
        if address.scheme == "tcp" and address.pin in ("", "http"):
            host = "127.0.0.1" if address.host in ("0.0.0.0", "::") else address.host
            host = f"[{host}]" if ":" in host else host
            return f"the monitor is at http://{host}:{address.port}/; Ctrl-C stops the node"
    return "Ctrl-C stops the node"


async def _serve(config: Config, read: Callable[[], Config]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    node = Node(config)

    def asked_to_stop() -> None:
        if stop.is_set():
            node.hurry()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked_to_stop)
    loop.add_signal_handler(signal.SIGHUP, Reload(node, read))
    try:
        await node.start()
    except StorageError as exc:
        raise ConfigError(exc.text) from exc
    except ConfigError as exc:
        cause = exc.__cause__
        if isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE:
            raise AddressTaken(exc.text) from cause
        raise
    try:
        for address in node.addresses:
            click.echo(f"listening {address}")
        for note in node.notes:
            click.echo(note)
        click.echo("ready")
        if sys.stdout.isatty():
            click.echo(_welcome(node.addresses), err=True)
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
