"""The entry point of `polybus`: finds the verb, runs it, and turns errors into one line and an exit code.

Invariant: an error that polybus knows never ends in a traceback. The exit codes:

    0  done
    1  failed, for a reason that has no code of its own
    2  wrong usage or configuration; nothing was started
    3  nobody is there: no node, service, topic or group
    4  refused: by policy, a limit or the present state
    5  the time was over
    130  interrupted by Ctrl-C
"""

from __future__ import annotations

import importlib
import os
import sys
from difflib import get_close_matches
from typing import Final

import click
from click.exceptions import NoArgsIsHelpError

from polybus import __version__
from polybus.cli.loading import INTERRUPTED, Loading
from polybus.errors import ConfigError, NotReachable, PolybusError, Refused, TimedOut

# verb: module of this package and the click command in it. A verb is imported when it is used, so that
# `polybus version` does not pay for what `polybus serve` needs.
VERBS: Final = {
    "serve": ("serve", "serve"),
    "node": ("node", "node"),
    "top": ("top", "top"),
    "doctor": ("doctor", "doctor"),
    "config": ("config", "config"),
    "call": ("call", "call"),
    "reply": ("call", "reply"),
    "pub": ("pub", "pub"),
    "sub": ("pub", "sub"),
    "service": ("service", "service"),
    "topic": ("topic", "topic"),
    "group": ("group", "group"),
    "backup": ("backup", "backup"),
    "restore": ("backup", "restore"),
    "pipeline": ("pipeline", "pipeline"),
    "t2": ("t2", "t2"),
    "twin": ("twin", "twin"),
    "bench": ("bench", "bench"),
    "context": ("context", "context"),
    "completion": ("completion", "completion"),
    "errors": ("errors", "errors"),
    "version": ("version", "version"),
}
# The first verb of each part of the list that `polybus --help` prints.
HEADINGS: Final = {
    "serve": "A node",
    "call": "Calls and publications",
    "topic": "Durable topics",
    "t2": "Other wires",
    "bench": "Tools",
}

EXIT_CODES: Final[tuple[tuple[type[PolybusError], int], ...]] = (
    (ConfigError, 2),
    (NotReachable, 3),
    (Refused, 4),
    (TimedOut, 5),
)


class Verbs(click.Group):
    """A group whose verbs are imported on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module, attribute = VERBS[cmd_name]
        with Loading():
            command = getattr(importlib.import_module(f"polybus.cli.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        close = get_close_matches(args[0], VERBS, 1) if args[0] not in VERBS else []
        if close:
            ctx.fail(f"No such command {args[0]!r}, did you mean {close[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        limit = formatter.width - 6 - max(map(len, VERBS))
        parts: dict[str, list[tuple[str, str]]] = {}
        heading = ""
        for name in VERBS:
            heading = HEADINGS.get(name, heading)
            command = self.get_command(ctx, name)
            assert command is not None
            row = (name, command.get_short_help_str(limit))
            parts.setdefault(heading, []).append(row)
        for heading, rows in parts.items():
            with formatter.section(heading):
                formatter.write_dl(rows, col_max=max(map(len, VERBS)))


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="polybus")
def polybus() -> None:
    """One message bus that speaks the wires of five.

    `polybus serve` runs a node; the other verbs talk to one: by --url, else POLYBUS_URL, else the context in use, else
    at this machine's port 15555. BODY is sent as it is, `-` reads it from stdin. --json prints JSON.

    \b
    polybus reply demo/hello world &                 answer calls to demo/hello
    polybus call demo/hello                          call it
    echo tea | polybus pub orders --topic --create    store a record
    polybus topic tail orders --follow               and watch them come

    Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 nobody is there, 4 refused, 5 timed out.
    """


def exit_code(error: PolybusError) -> int:
    """The exit code that stands for an error."""
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1)


def main() -> None:
    """Run the program named on the command line and exit."""
    run_program(polybus, "polybus", numbered=True)


def run_program(program: click.Command, name: str, *, numbered: bool = False) -> None:
    """Run a program, turn its errors into one line and an exit code, and exit.

    Args:
        numbered: Whether the line tells an error's number, for `polybus errors lookup`. Somebody at a terminal is
            also told what to do about it.
    """
    try:
        code = program.main(prog_name=name, standalone_mode=False)
    except PolybusError as error:
        click.echo(f"{name}: {error.text}" + f" (error {error.code})" * numbered, err=True)
        if numbered and sys.stderr.isatty():
            # What was wrapped to say that nothing was started still has the better advice.
            reason = error.__cause__ if isinstance(error.__cause__, PolybusError) else error
            click.echo(f"hint: {reason.hint}", err=True)
        code = exit_code(error)
    except NoArgsIsHelpError as error:
        error.show()
        code = error.exit_code
    except click.UsageError as error:
        verb = error.ctx.command_path if error.ctx is not None else name
        text = error.format_message().rstrip(".")
        text += " see" if text.endswith("?") else "; see"
        click.echo(f"{verb}: {text[:1].lower()}{text[1:]} `{verb} --help`", err=True)
        code = error.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.Abort:
        code = INTERRUPTED
    except _of_the_system() as error:
        click.echo(f"{name}: {_reason(error)}", err=True)
        code = 1
        _give_up_stdout()
    sys.exit(code or 0)


def _of_the_system() -> tuple[type[Exception], ...]:
    """What the system raises, and LMDB where a verb has loaded it."""
    lmdb = sys.modules.get("lmdb")
    return (OSError,) if lmdb is None else (OSError, lmdb.Error)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def _give_up_stdout() -> None:
    """Drop what cannot be written: at its end the interpreter would try again, and complain."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
