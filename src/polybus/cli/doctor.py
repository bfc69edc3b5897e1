"""`polybus doctor`: is this machine fit for a node with these settings, and if not, what to do."""

from __future__ import annotations

import os
from pathlib import Path

import click

from polybus.cli.doctor_checks import Finding, examine
from polybus.cli.output import json_option, print_json
from polybus.errors import ConfigError
from polybus.server.load import load

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command(short_help="Check whether this machine is fit for a node.")
@click.option("--config", "file", type=click.Path(path_type=Path), help="TOML file to read.")
@click.option("--listen", multiple=True, metavar="URL", help="As for `serve`; repeatable.")
@click.option("--data", metavar="DIR", help="As for `serve`.")
@json_option
@click.pass_context
def doctor(
    ctx: click.Context, file: Path | None, listen: tuple[str, ...], data: str | None, as_json: bool
) -> None:
    """Check ports, disk, Redis, Java, clock and limits for a node with this configuration.

    Each line is ok, warn or fail, with what to do about it. Ends with 1 if anything failed.
    """
    findings: list[Finding] = []
    try:
        config = load(file, os.environ, {"listen": listen or None, "data": data}).config
        for finding in examine(config):
            findings.append(finding)
            if not as_json:
                _print(finding)
    except ConfigError as exc:
        findings.append(Finding("configuration", "fail", exc.text, exc.hint))
        if not as_json:
            _print(findings[-1])
    if as_json:
        print_json(findings)
    ctx.exit(1 if any(finding.state == "fail" for finding in findings) else 0)


def _print(finding: Finding) -> None:
    state = click.style(finding.state.ljust(4), fg=COLOURS[finding.state])
    click.echo(f"{state}  {finding.check}: {finding.text}")
    if finding.advice:
        click.echo(f"      {finding.advice}")
