"""Writes docs/reference/ from the program itself; with `--check` it only says which pages are stale.

Invariant: what stands between the two marks of a page is made here and nowhere else; what stands around them is written
by hand and stays. The sources are the verbs, the settings with their comments, the errors, and what a node answers to
`/metrics` and `/api/v1/openapi.json`.
"""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import io
import json
import logging
import re
import sys
import tempfile
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints
from urllib.request import urlopen

import click
from prometheus_client.parser import text_string_to_metric_families

import polybus
from polybus.cli import main as cli
from polybus.cli import serve
from polybus.errors import ALL
from polybus.model.units import Unit
from polybus.server import config as settings_file
from polybus.server.config import Config
from polybus.server.load import Setting
from polybus.server.node import Node

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
BEGIN = "<!-- Made by scripts/make_reference.py from the program itself; change that. -->"
END = "<!-- What follows is written by hand. -->"

# Samples that are there once something has happened; their labels are known by them.
SEEN = (
    "polybus_connections_ended_total{",
    "polybus_connections{",
    "polybus_calls_total{",
    "polybus_call_duration_seconds_count{",
)

Lines = Iterator[str]


def cell(text: str) -> str:
    """Text that may stand in a table, with the stars of patterns as they are."""
    parts = " ".join(text.split()).replace("|", "\\|").split("`")
    parts[::2] = [part.replace("*", "\\*") for part in parts[::2]]
    return "`".join(parts)


def table(*headings: str) -> Lines:
    yield ""
    yield "| " + " | ".join(headings) + " |"
    yield "|" + "---|" * len(headings)


# -- the program -------------------------------------------------------------------------------------------------------


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
    return cell(" ".join([path, *words]))


def summary(command: click.Command) -> str:
    """The first paragraph of the help."""
    return cell((command.help or "").replace("\b", "").strip().split("\n\n")[0])


def flag_lines(command: click.Command) -> Lines:
    ctx = click.Context(command)
    for option in command.params:
        if not isinstance(option, click.Option) or option.hidden:
            continue
        record = option.get_help_record(ctx)
        if record is not None and option.name != "help":
            flag, text = record
            yield f"- `{flag}`" + (f": {text}" if text else "")


def verbs() -> Lines:
    found = list(leaves(cli.polybus, ""))
    yield "## Verbs"
    yield from table("verb", "does")
    for path, command in found:
        yield f"| `{usage(path, command)}` | {summary(command)} |"
    yield ""
    yield "## Exit codes"
    yield from table("code", "meaning")
    for code, meaning in re.findall(r"^ {4}(\d+) +(.+)$", cli.__doc__ or "", re.MULTILINE):
        yield f"| {code} | {meaning} |"
    yield ""
    yield "`serve`, `reply`, `sub`, `top` and `topic tail --follow` end with 0 on SIGTERM and Ctrl-C."
    yield ""
    yield "## Flags"
    for path, command in found:
        flags = list(flag_lines(command))
        if flags:
            yield from ("", f"### {path}", "", *flags)


# -- settings ----------------------------------------------------------------------------------------------------------


def comments() -> dict[tuple[str, str], str]:
    """What the source says of each field, by class and name: the comment on its lines and those right above."""
    source = Path(settings_file.__file__).read_text(encoding="utf-8")
    said = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    found = {}
    for section in ast.parse(source).body:
        if not isinstance(section, ast.ClassDef):
            continue
        last = section.lineno
        for item in section.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                lines = range(last + 1, (item.end_lineno or item.lineno) + 1)
                found[section.name, item.target.id] = " ".join(
                    said[line] for line in lines if line in said
                )
            last = item.end_lineno or item.lineno
    return found


def kind_of(hint: Any) -> str:
    """What may be written there."""
    unit = next((m for m in getattr(hint, "__metadata__", ()) if isinstance(m, Unit)), None)
    if unit is not None:
        return str(unit.kind)
    if get_origin(hint) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(hint))
    if get_origin(hint) is tuple:
        return "list"
    names = {bool: "`true`, `false`", int: "number", str: "text", Path | None: "path"}
    return names[hint]


def item_class(hint: Any) -> Any:
    """The class of a list of tables, else None."""
    inner = get_args(hint)[0] if get_origin(hint) is tuple else None
    return inner if dataclasses.is_dataclass(inner) else None


def setting_rows(section: Any, prefix: str, flags: dict[str, str]) -> Lines:
    said = comments()
    hints = get_type_hints(section, include_extras=True)
    for item in dataclasses.fields(section):
        hint = hints[item.name]
        if dataclasses.is_dataclass(hint) or item_class(hint):
            continue
        key, text = prefix + item.name, said[section.__name__, item.name]
        assert text, f"{section.__name__}.{item.name} has no comment that says what it is"
        flag = f" (`{flags[key]}`)" if key in flags else ""
        needed = item.default is dataclasses.MISSING
        default = "needed" if needed else f"`{Setting(key, hint, item.default).show(item.default)}`"
        if default == "``":
            default = "–"
        yield f"| `{key}` | {default} | {kind_of(hint)} | {cell(text)}{flag} |"


def settings() -> Lines:
    flags = {key: f"--{name.replace('_', '-')}" for name, key in serve.SETTINGS_OF_FLAGS.items()}
    columns = ("key", "default", "value", "meaning")
    yield "## Settings"
    yield from table(*columns)
    yield from setting_rows(Config, "", flags)
    hints = get_type_hints(Config, include_extras=True)
    for item in dataclasses.fields(Config):
        hint = hints[item.name]
        several = item_class(hint)
        section = hint if dataclasses.is_dataclass(hint) else several
        if section is None:
            continue
        title = f"[[{item.name}]]" if several else f"[{item.name}]"
        yield from ("", f"### `{title}`", "", cell(section.__doc__ or ""))
        yield from table(*columns)
        yield from setting_rows(section, "" if several else f"{item.name}.", flags)


# -- errors ------------------------------------------------------------------------------------------------------------


def errors() -> Lines:
    yield from table("code", "name", "meaning", "what to do")
    for error in sorted(ALL, key=lambda error: error.code):
        meaning = (error.__doc__ or "").split("\n\n")[0]
        yield f"| {error.code} | `{error.__name__}` | {cell(meaning)} | {cell(error.hint)} |"


# -- what a node says --------------------------------------------------------------------------------------------------


async def ask_a_node() -> tuple[str, str, dict[str, Any]]:
    """`/metrics`, its details and the OpenAPI document of a node that has seen a little of everything."""
    with tempfile.TemporaryDirectory() as folder:
        config = Config(listen=("tcp://127.0.0.1:0",), data=Path(folder) / "data")
        async with Node(config) as node:
            address = node.addresses[0]
            await _use(f"polybus://{address.host}:{address.port}")

            def get(path: str) -> str:
                with urlopen(f"http://{address.host}:{address.port}{path}", timeout=15) as answer:
                    text: str = answer.read().decode()
                return text

            metrics = await asyncio.to_thread(get, "/metrics")
            # A sample is taken at intervals, and the connection may not have ended in the last one.
            async with asyncio.timeout(15):
                while any(f"\n{sample}" not in metrics for sample in SEEN):
                    await asyncio.sleep(0.1)
                    metrics = await asyncio.to_thread(get, "/metrics")
            details = await asyncio.to_thread(get, "/metrics/detailed")
            document = json.loads(await asyncio.to_thread(get, "/api/v1/openapi.json"))
    return metrics, details, document


async def _use(url: str) -> None:
    """Enough for every metric to have a sample, by which its labels are known."""
    async with polybus.connect(url) as bus:
        await bus.serve("a", lambda: b"")
        await bus.call("a")
        await bus.produce("t", b"", create=True)
        async with bus.consume("t", "g") as records:
            await anext(records)


def metric_rows(text: str) -> Lines:
    described = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels.setdefault(family.name, set()).update(sample.labels.keys() - {"le"})
    for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE):
        if name.startswith("polybus_") and not name.endswith("_created"):
            found = labels.get(name) or labels.get(name.removesuffix("_total")) or ()
            shown = ", ".join(f"`{label}`" for label in sorted(found) if label != "version")
            yield f"| `{name}` | {kind} | {shown or '–'} | {cell(described[name])} |"


def metrics(text: str, details: str) -> Lines:
    columns = ("name", "type", "labels", "help")
    yield "## `/metrics`"
    yield from table(*columns)
    yield from metric_rows(text)
    yield from ("", "## `/metrics/detailed?topic=PATTERN`")
    yield from table(*columns)
    yield from metric_rows(details)


def shape(schema: dict[str, Any]) -> str:
    """A type of the document in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(shape(option) for option in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {shape(schema.get('items') or {})}"
    if schema.get("type") == "object":
        inner = schema.get("additionalProperties")
        return f"map to {shape(inner)}" if isinstance(inner, dict) else "object"
    kind = str(schema.get("type", "anything"))
    low, high = schema.get("minimum"), schema.get("maximum")
    bounds = [f"from {low}"] * (low is not None) + [f"to {high}"] * (high is not None)
    return " ".join([kind, *bounds])


def api(document: dict[str, Any]) -> Lines:
    yield "## Operations"
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield from ("", f"### {method.upper()} {path}", "", operation["summary"] + ".")
            for parameter in operation["parameters"]:
                schema = parameter["schema"]
                default = schema.get("default")
                shown = f", default `{json.dumps(default)}`" if default not in (None, "") else ""
                yield from [""] * (parameter is operation["parameters"][0])
                yield f"- `{parameter['name']}` ({parameter['in']}): {shape(schema)}{shown}"
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            answers = [
                "a stream of events" if kind == "text/event-stream" else shape(content["schema"])
                for code, answer in operation["responses"].items()
                if code != "default"
                for kind, content in answer["content"].items()
            ]
            asked = f"Body: {shape(body['schema'])}. " if body else ""
            yield from ("", f"{asked}Answer: {', '.join(answers)}.")
    yield from ("", "## Shapes")
    for name, schema in document["components"]["schemas"].items():
        yield from ("", f"### {name}")
        if schema.get("description"):
            yield from ("", cell(schema["description"]))
        yield from table("field", "type")
        for field, inner in schema.get("properties", {}).items():
            yield f"| `{field}` | {shape(inner)} |"


# -- pages -------------------------------------------------------------------------------------------------------------


def pages() -> dict[str, Callable[[], Lines]]:
    text, details, document = asyncio.run(ask_a_node())
    return {
        "cli.md": verbs,
        "configuration.md": settings,
        "errors.md": errors,
        "metrics.md": lambda: metrics(text, details),
        "api.md": lambda: api(document),
    }


def made(page: Path, lines: Lines) -> str:
    """The page with its part between the marks made anew."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    assert begin, f"{page} has no mark {BEGIN}"
    _, end, after = rest.partition(END)
    body = "\n".join(lines).strip("\n")
    return f"{before}{BEGIN}\n\n{body}\n" + (f"\n{end}{after}" if end else "")


def main() -> int:
    logging.disable()
    stale = 0
    for name, lines in pages().items():
        page = REFERENCE / name
        new = made(page, lines())
        if "--check" not in sys.argv[1:]:
            page.write_text(new, encoding="utf-8")
        elif page.read_text(encoding="utf-8") != new:
            stale = 1
            print(f"docs/reference/{name} is stale: run `python scripts/make_reference.py`")
    return stale


if __name__ == "__main__":
    sys.exit(main())
