"""`polybus context`: names for the nodes that one talks to."""

from __future__ import annotations

import os
import re
from typing import Final

import click
from click.shell_completion import CompletionItem

import polybus
from polybus.cli.contexts import Contexts, read_contexts, write_contexts
from polybus.cli.output import json_option, print_done, print_table
from polybus.errors import ConfigError

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class ContextName(click.ParamType[str]):
    """The name of a saved connection, which the shell completes."""

    name = "name"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        names = read_contexts(os.environ).urls
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


@click.group()
def context() -> None:
    """Save connections under names, and choose the one to use.

    A verb without --url, and without POLYBUS_URL set, talks to the context in use.
    """


@context.command("add")
@click.argument("name")
@click.argument("url")
@click.option("--use", "use_it", is_flag=True, help="Use it from now on.")
@json_option
def add(name: str, url: str, use_it: bool, as_json: bool) -> None:
    """Save URL as NAME, in place of an older one. Nothing is connected."""
    if not NAME.fullmatch(name):
        raise click.BadParameter(f"{name!r} is not made of letters, digits and . _ -")
    polybus.connect(url)  # refuses a URL that cannot be understood
    contexts = read_contexts(os.environ)
    contexts.urls[name] = url
    if use_it:
        contexts.current = name
    write_contexts(os.environ, contexts)
    used = contexts.current == name
    print_done(
        f"saved {name}" + (", in use" if used else ""), as_json, name=name, url=url, use=used
    )


@context.command("use")
@click.argument("name", type=ContextName())
@json_option
def use(name: str, as_json: bool) -> None:
    """Talk to NAME from now on."""
    contexts = _with(name)
    contexts.current = name
    write_contexts(os.environ, contexts)
    url = contexts.urls[name]
    print_done(f"using {name}: {url}", as_json, name=name, url=url, use=True)
    if os.environ.get("POLYBUS_URL"):
        click.echo("POLYBUS_URL is set and wins over it", err=True)


@context.command("ls")
@json_option
def ls(as_json: bool) -> None:
    """List the saved connections."""
    contexts = read_contexts(os.environ)
    rows: list[dict[str, object]] = [
        {"name": name, "url": url, "use": (name == contexts.current)}
        for name, url in sorted(contexts.urls.items())
    ]
    if not as_json:
        rows = [{**row, "use": "*" if row["use"] else ""} for row in rows]
    print_table(rows, as_json)


@context.command("rm")
@click.argument("name", type=ContextName())
@json_option
def rm(name: str, as_json: bool) -> None:
    """Forget NAME; if it was in use, none is."""
    contexts = _with(name)
    del contexts.urls[name]
    if contexts.current == name:
        contexts.current = ""
    write_contexts(os.environ, contexts)
    print_done(f"removed {name}", as_json, removed=name)


def _with(name: str) -> Contexts:
    contexts = read_contexts(os.environ)
    if name not in contexts.urls:
        known = ", ".join(sorted(contexts.urls)) or "none is saved"
        raise ConfigError(f"no context {name}; there are: {known}")
    return contexts
