"""`polybus version`: what runs here, and whether its hot modules are compiled."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import click

import polybus
from polybus.cli.output import json_option, print_json


def compiled_modules() -> list[str]:
    """Names of the modules that run as machine code in this process."""
    if os.environ.get("POLYBUS_PURE") == "1":
        return []
    package = Path(polybus.__file__).parent
    return sorted(
        ".".join(("polybus", *path.parent.relative_to(package).parts, path.name.split(".")[0]))
        for path in package.rglob("*.so")
    )


@click.command(short_help="Print the version.")
@json_option
def version(as_json: bool) -> None:
    """Print the version and whether the hot modules are compiled or pure Python."""
    compiled = compiled_modules()
    python = f"{platform.python_implementation()} {platform.python_version()}"
    if as_json:
        print_json({"version": polybus.__version__, "python": python, "compiled": compiled})
        return
    form = f"compiled: {', '.join(compiled)}" if compiled else "pure Python"
    click.echo(f"polybus {polybus.__version__} on {python} ({form})")
