"""The reference pages list what the program has: nothing missing, nothing outdated."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from polybus.cli.main import EXIT_CODES, VERBS
from polybus.errors import ALL
from polybus.server.load import SETTINGS
from tests.cli.processes import ANY_PORT, node, run

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"


def rows(page: str) -> list[list[str]]:
    """The table rows of a page, cell by cell."""
    lines = (REFERENCE / page).read_text(encoding="utf-8").splitlines()
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in lines
        if line.startswith("| ")
    ]


def test_every_error_is_listed_with_its_number_and_hint():
    expected = [[str(e.code), f"`{e.__name__}`", e.hint] for e in sorted(ALL, key=lambda e: e.code)]
    listed = [[row[0], row[1], row[-1]] for row in rows("errors.md")[1:]]
    assert listed == expected


def test_every_setting_is_listed_with_its_default():
    listed = {row[0]: row[1] for row in rows("configuration.md") if row[0].startswith("`")}
    assert listed == {f"`{k}`": f"`{s.show(s.default)}`" for k, s in SETTINGS.items()}


def test_every_verb_and_exit_code_is_listed():
    first_cells = " ".join(row[0] for row in rows("cli.md"))
    for verb in VERBS:
        assert re.search(rf"`{verb}\b", first_cells), verb
    for _, code in EXIT_CODES:
        assert str(code) in first_cells.split()


def test_the_example_of_the_readme_serves_the_shell_commands_beside_it():
    readme = (REFERENCE.parent.parent / "README.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", readme, re.S)
    commands = re.search(r"^(\.venv/bin/polybus call .*)$", readme, re.M)
    assert example is not None
    assert commands is not None
    with node("--listen", ANY_PORT, "--data", "") as (_, where):
        code = example[1].replace("polybus://127.0.0.1:15555", where[0])
        command = [sys.executable, "-u", "-c", code]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            assert program.stdout.readline() == "6\n"
            called = run(*shlex.split(commands[1])[1:], "--url", where[0])
            program.terminate()
    assert called.stdout.strip() == b"6"
