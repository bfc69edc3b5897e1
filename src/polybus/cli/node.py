"""`polybus node`: how a node is, and which others it works with."""

from __future__ import annotations

from datetime import timedelta
from http import HTTPStatus

import click

from polybus.cli.bench_figures import show_bytes
from polybus.cli.bus import url_option
from polybus.cli.durable import print_fields
from polybus.cli.output import json_option, print_json, print_table
from polybus.cli.web import ask, ask_json


@click.group()
def node() -> None:
    """Look at a running node and its neighbours."""


@node.command("info", short_help="Show a node at a glance.")
@url_option
@json_option
def info(url: str | None, as_json: bool) -> None:
    """Show a node at a glance: version, addresses, connections and load of each wire, topics, disk."""
    found = ask_json(url, "/api/v1/overview")
    if as_json:
        print_json(found)
        return
    disk = found["disk"]
    print_fields(
        {
            "state": found["state"],
            "version": found["version"],
            "addresses": ", ".join(found["addresses"]),
            "uptime": timedelta(seconds=round(found["uptime_s"])),
            "connections": found["connections"],
            "services": found["services"],
            "calls waiting": found["pending_calls"],
            "topics": found["topics"],
            "records": found["records"],
            "stored": show_bytes(found["stored_bytes"]),
            "group lag": found["lag"],
            "dead letters": found["dead"],
            "queued to peers": show_bytes(found["pending_bytes"]),
            "loop lag": f"{found['loop_lag_ms']:.1f} ms",
            "disk free": show_bytes(disk["free_bytes"]) if disk else "no durable topics",
        }
    )
    wires = [wire for wire in found["wires"] if wire["connections"] or wire["messages_in"]]
    if wires:
        click.echo("")
        columns = ("connections", "services", "messages_in", "messages_out", "calls", "failures")
        print_table(
            [
                {
                    "wire": wire["protocol"],
                    **{name.replace("_", " "): wire[name] for name in columns},
                }
                for wire in wires
            ],
            as_json=False,
        )


@node.command("ls", short_help="List the nodes that it works with.")
@url_option
@json_option
def ls(url: str | None, as_json: bool) -> None:
    """List the nodes that a node works with: Zbus servers and trackers, and RMB twins."""
    found = ask_json(url, "/api/v1/federation")
    rows: list[dict[str, object]] = [
        {"wire": "zbus", "address": each["address"], "role": each["role"]}
        for each in found["trackers"]
    ]
    rows += [
        {
            "wire": "rmb",
            "address": each["address"],
            "role": f"{'this' if each['own'] else 'other'} twin {each['id']}",
        }
        for each in found["twins"]
    ]
    print_table(rows, as_json)


@node.command("check", short_help="Ask whether it takes work.")
@url_option
@json_option
@click.pass_context
def check(ctx: click.Context, url: str | None, as_json: bool) -> None:
    """Ask whether a node takes work; ends with 0 if it does, 1 while it starts or drains, 3 if it is not there."""
    status, body = ask(url, "/readyz")
    state = body.decode("utf-8", "replace").strip()
    ready = status == HTTPStatus.OK
    if as_json:
        print_json({"ready": ready, "state": state})
    else:
        click.echo(state)
    ctx.exit(0 if ready else 1)
