"""The verbs that need no node."""

from __future__ import annotations

import json

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


def run(*args: str, code: int = 0, **env: str) -> str:
    result = CliRunner(env=env).invoke(cli.polybus, args)
    assert result.exit_code == code, result.output
    return result.output


def test_every_verb_of_the_table_can_be_loaded_and_has_a_help_line():
    listed = run("--help")
    for verb in cli.VERBS:
        assert f"  {verb} " in listed
        assert "Usage: polybus" in run(verb, "--help")


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
