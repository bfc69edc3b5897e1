"""Writes docs/reference/cli.md from the verbs themselves; with `--check` it only says whether the page is stale."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from polybus.cli import main as cli

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "cli.md"

INTRO = """# The program `polybus`

<!-- Made by scripts/make_reference.py from the verbs themselves; change those. -->

Results go to stdout, everything else to stderr. `--json` prints JSON instead of text; with it a body is `payload`
when it is UTF-8 text and `payload_base64` otherwise, and what comes one by one is one JSON object per line.
BODY is sent as it is; `-` reads it from stdin.

Verbs that talk to a node find it by `--url`, else by `POLYBUS_URL`, else by the context in use (`polybus context`),
else at `polybus://127.0.0.1:15555`. `POLYBUS_TOKEN` says who is asking, where a node wants to know.

## Verbs
"""


def leaves(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Every verb that does something, with its full name."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    ctx = click.Context(command)
    for name in command.list_commands(ctx):
        child = command.get_command(ctx, name)
        if child is not None and not child.hidden:
            yield from leaves(child, f"{path} {name}".strip())


def usage(path: str, command: click.Command) -> str:
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    words = [a.make_metavar(click.Context(command)) for a in arguments]
    return " ".join([path, *words]).replace("|", "\\|")


def summary(command: click.Command) -> str:
    """The first sentence or paragraph of the help, on one line."""
    first = (command.help or "").replace("\b", "").strip().split("\n\n")[0]
    return " ".join(first.split()).replace("|", "\\|")


def flag_lines(command: click.Command) -> Iterator[str]:
    ctx = click.Context(command)
    for option in command.params:
        if not isinstance(option, click.Option) or option.hidden:
            continue
        record = option.get_help_record(ctx)
        if record is not None and option.name != "help":
            flag, text = record
            yield f"- `{flag}`" + (f": {text}" if text else "")


def page() -> str:
    verbs = list(leaves(cli.polybus, ""))
    lines = [INTRO, "| verb | does |", "|---|---|"]
    lines += [f"| `{usage(path, command)}` | {summary(command)} |" for path, command in verbs]
    lines += ["", "## Exit codes", "", "| code | meaning |", "|---|---|"]
    codes = re.findall(r"^ {4}(\d+) +(.+)$", cli.__doc__ or "", re.MULTILINE)
    lines += [f"| {code} | {meaning} |" for code, meaning in codes]
    lines += [
        "",
        "`serve`, `reply`, `sub`, `top` and `topic tail --follow` end with 0 on SIGTERM and Ctrl-C.",
        "",
        "## Flags",
    ]
    for path, command in verbs:
        flags = list(flag_lines(command))
        if flags:
            lines += ["", f"### {path}", "", *flags]
    return "\n".join(lines) + "\n"


def main() -> int:
    made = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(made, encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") != made:
        print(
            f"docs/reference/{PAGE.name} is stale: run `.venv/bin/python scripts/make_reference.py`"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
