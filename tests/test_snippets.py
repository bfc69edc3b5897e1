"""What pages show and no test runs as a whole is at least what the program takes: flags, settings, and Python."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from polybus.cli import main as cli
from polybus.server.load import load

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/*.md")])
BLOCK = re.compile(r"^```([a-z]*)[a-z ]*\n(.*?)^```$", re.M | re.S)
COMMAND = re.compile(r"^(?:\S+=\S+ |.*\| |env |exec |nice )*(?:\.venv/bin/)?polybus (.*)$", re.M)
# A file of another kind that pages show as TOML: the directory of twins.
OTHER_TABLES = {"twin"}


def shown(language: str) -> list[tuple[str, str]]:
    """The blocks of a language on all pages, each with its page."""
    return [
        (page.relative_to(ROOT).as_posix(), text)
        for page in PAGES
        for found, text in BLOCK.findall(page.read_text(encoding="utf-8"))
        if found == language
    ]


COMMANDS = [
    (page, command)
    for language in ("sh", "")
    for page, text in shown(language)
    for command in COMMAND.findall(text.replace("\\\n", " "))
]


def words_of(command: str) -> list[str]:
    """What the shell would pass on: up to a pipe, a redirection or the next command."""
    command = re.sub(r"\s\d?[<>].*", "", command)
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if word in ("|", "&&", "||", "&", ";", ")", "))"):
            break
        words.append(word)
    return words


def take(words: list[str]) -> None:
    """Let the program read the words, without doing what they say."""
    command: click.Command = cli.polybus
    context = click.Context(command)
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        assert found is not None, f"there is no verb {words[0]}"
        command, words = found, words[1:]
    command.make_context("polybus", words)


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=lambda text: text[:60])
def test_a_command_on_a_page_is_one_that_the_program_takes(page, command):
    try:
        take(words_of(command))
    except click.exceptions.Exit:
        pass  # --help
    except click.ClickException as exc:
        pytest.fail(f"{page}: polybus {command}: {exc.format_message()}")


def test_a_command_that_is_wrong_is_noticed():
    assert len(COMMANDS) > 50
    with pytest.raises(click.UsageError, match="--absent"):
        take(words_of("sub 'a/**' --absent | grep x"))
    with pytest.raises(AssertionError, match="no verb absent"):
        take(words_of("absent"))


@pytest.mark.parametrize(("page", "text"), shown("toml"))
def test_settings_on_a_page_are_settings(page, text, tmp_path):
    if not tomllib.loads(text).keys() & OTHER_TABLES:
        file = tmp_path / "polybus.toml"
        file.write_text(text)
        load(file, {})


@pytest.mark.parametrize(("page", "text"), shown("python"))
def test_a_program_on_a_page_is_python(page, text):
    compile(text, page, "exec")
