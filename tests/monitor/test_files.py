"""The page itself: what is served, and under which policy."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from polybus.cli.main import polybus
from polybus.monitor.files import load


async def test_the_page_is_at_the_root_and_nothing_inline_can_run(bus):
    answer = await bus.ask("/")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    text = answer.body.decode()
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|style=", text)


async def test_every_file_that_the_page_names_is_there(bus):
    files = load()
    named = set()
    for body, _ in files.values():
        text = body.decode()
        named |= set(re.findall(r'"/static/([\w.-]+)"', text))
        named |= set(re.findall(r'from "\./([\w.-]+)"', text))
    assert named
    assert named <= set(files)
    for name in named:
        assert (await bus.ask(f"/static/{name}")).status == 200


async def test_a_file_that_did_not_change_is_not_sent_again(bus):
    first = await bus.ask("/static/app.js")
    again = await bus.ask("/static/app.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status, again.body) == (304, b"")


@pytest.mark.parametrize("path", ["/static/none.js", "/static/../api.py", "/static/", "/static"])
async def test_nothing_else_is_served(bus, path):
    assert (await bus.ask(path)).status == 404


def test_no_script_makes_html_from_text():
    for name, (body, _) in load().items():
        if name.endswith(".js"):
            assert not re.search(
                rb"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function",
                body,
            ), name


def parse(line: str) -> None:
    """Let the program take a command line apart, as far as it can be told to run."""
    command: click.Command = polybus
    name, *args = shlex.split(line)
    while isinstance(command, click.Group):
        context = command.make_context(name, args)
        _, found, args = command.resolve_command(context, args)
        assert found is not None
        command = found
    command.make_context(name, args)


def test_the_commands_that_the_page_tells_of_exist():
    texts = [body.decode() for body, _ in load().values()]
    found = [
        match for text in texts for match in re.findall(r"polybus [a-z0-9][^\"`\n]*(?=[\"`])", text)
    ]
    assert len(found) >= 5
    for command in found:
        parse(re.sub(r"\$\{\w+\}", "orders", command))
    with pytest.raises(click.UsageError):
        parse("polybus topic invent orders")
