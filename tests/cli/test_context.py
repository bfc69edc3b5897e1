"""`polybus context` and `polybus completion`: what a shell remembers and completes."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from polybus.cli import main as cli
from polybus.cli.contexts import chosen_url
from polybus.errors import ConfigError
from tests.cli.processes import ANY_PORT, POLYBUS, node, run

Verb = Callable[..., str]


@pytest.fixture
def verb(tmp_path: Path) -> Verb:
    def invoke(*args: str, code: int = 0) -> str:
        env = {"XDG_CONFIG_HOME": str(tmp_path), "POLYBUS_URL": None}
        result: Result = CliRunner(env=env).invoke(cli.polybus, args)
        if isinstance(result.exception, ConfigError):
            assert cli.exit_code(result.exception) == code
            return result.exception.text
        assert result.exit_code == code, result.output
        return result.output

    return invoke


def test_a_saved_connection_is_listed_used_and_forgotten(verb, tmp_path):
    assert verb("context", "ls") == "nothing to list\n"
    assert verb("context", "add", "lab", "polybus://lab:15555") == "saved lab\n"
    assert verb("context", "add", "dev", "polybus://dev:15555", "--use") == "saved dev, in use\n"
    assert json.loads(verb("context", "ls", "--json")) == [
        {"name": "dev", "url": "polybus://dev:15555", "use": True},
        {"name": "lab", "url": "polybus://lab:15555", "use": False},
    ]
    assert verb("context", "use", "lab") == "using lab: polybus://lab:15555\n"
    assert verb("context", "ls").splitlines()[2].split() == ["lab", "polybus://lab:15555", "*"]
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert chosen_url(None, env) == "polybus://lab:15555"
    assert verb("context", "rm", "lab") == "removed lab\n"
    assert chosen_url(None, env) is None


def test_the_flag_wins_over_the_variable_and_that_over_the_context(verb, tmp_path):
    verb("context", "add", "lab", "polybus://lab:1", "--use")
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert chosen_url(None, env) == "polybus://lab:1"
    env["POLYBUS_URL"] = "polybus://env:2"
    assert chosen_url(None, env) == "polybus://env:2"
    assert chosen_url("polybus://flag:3", env) == "polybus://flag:3"


def test_a_verb_without_url_talks_to_the_context_in_use(tmp_path):
    def verb(*args: str, variable: str = "") -> subprocess.CompletedProcess[bytes]:
        return run(*args, XDG_CONFIG_HOME=str(tmp_path), POLYBUS_URL=variable)

    with node("--listen", ANY_PORT, "--data", "", cwd=tmp_path) as (_, where):
        assert verb("context", "add", "here", where[0], "--use").returncode == 0
        assert verb("pub", "a", "b").stdout == b"published; receivers: 0\n"
        told = verb("context", "use", "here", variable="tcp://127.0.0.1:1")
        assert b"POLYBUS_URL is set" in told.stderr
        assert verb("pub", "a", "b", variable="tcp://127.0.0.1:1").returncode == 3


def test_what_cannot_be_a_context_is_refused_and_nothing_is_saved(verb, tmp_path):
    assert "is not made of letters" in verb("context", "add", "a b", "polybus://x", code=2)
    assert "the scheme is none of" in verb("context", "add", "ab", "zzz://x", code=2)
    assert verb("context", "use", "ab", code=2) == "no context ab; there are: none is saved"
    assert verb("context", "rm", "ab", code=2) == "no context ab; there are: none is saved"
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_its_owners_only_and_a_broken_one_is_one_line(verb, tmp_path):
    verb("context", "add", "lab", "polybus://lab:1")
    (path,) = (tmp_path / "polybus").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("{")
    assert f"cannot read {path}" in verb("context", "ls", code=2)
    path.unlink()
    path.mkdir()
    assert f"cannot read {path}" in verb("context", "ls", code=2)


def test_a_folder_that_takes_no_file_is_one_line(verb, tmp_path):
    (tmp_path / "polybus").write_text("in the way")
    assert "cannot" in verb("context", "add", "lab", "polybus://lab:1", code=2)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(verb, shell):
    assert "_POLYBUS_COMPLETE" in verb("completion", shell)
    assert "polybus" in verb("completion", shell)


def test_an_unknown_shell_is_a_usage_error(verb):
    assert "'csh' is not one of" in verb("completion", "csh", code=2)


def completed(*words: str, config: Path) -> list[str]:
    """What bash is offered after these words."""
    done = run(
        _POLYBUS_COMPLETE="bash_complete",
        COMP_WORDS=" ".join(("polybus", *words)),
        COMP_CWORD=str(len(words)),
        XDG_CONFIG_HOME=str(config),
    )
    return [line.partition(",")[2] for line in done.stdout.decode().splitlines()]


def test_verbs_flags_and_contexts_are_completed(verb, tmp_path):
    verb("context", "add", "lab", "polybus://lab:1")
    assert completed("ser", config=tmp_path) == ["serve", "service"]
    assert "--url" in completed("call", "--u", config=tmp_path)
    assert completed("context", "use", "l", config=tmp_path) == ["lab"]


def test_bash_takes_the_script(tmp_path):
    bash = shutil.which("bash")
    assert bash is not None
    script = run("completion", "bash").stdout.decode()
    done = subprocess.run(
        [bash, "--norc", "-c", script + "\ncomplete -p polybus"],
        env={"PATH": str(Path(POLYBUS).parent)},
        capture_output=True,
        text=True,
        timeout=15,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "_polybus_completion" in done.stdout
