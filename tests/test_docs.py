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

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"


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
    for key, setting in SETTINGS.items():
        if key in ("capture", "relay", "alias"):  # lists of tables, each with a table of its own
            assert f"### `[[{key}]]`" in (REFERENCE / "configuration.md").read_text("utf-8")
            continue
        shown = setting.show(setting.default)
        assert listed[f"`{key}`"] == (f"`{shown}`" if shown else "–")


def test_every_verb_and_exit_code_is_listed():
    first_cells = " ".join(row[0] for row in rows("cli.md"))
    for verb in VERBS:
        assert re.search(rf"`{verb}\b", first_cells), verb
    for _, code in EXIT_CODES:
        assert str(code) in first_cells.split()


def test_every_page_is_in_the_menu_of_the_site_and_the_menu_leads_to_pages():
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"(\S+\.md)$", menu, re.M)
    there = [page.relative_to(ROOT / "docs").as_posix() for page in ROOT.glob("docs/**/*.md")]
    assert sorted(listed) == sorted(there)


def check_docs(*args: str) -> tuple[int, str]:
    script = ROOT / "scripts" / "check_docs.py"
    done = subprocess.run(
        [sys.executable, str(script), *args], cwd=ROOT, capture_output=True, text=True, timeout=15
    )
    return done.returncode, done.stdout


def test_no_link_of_a_page_leads_nowhere():
    assert check_docs() == (0, "")


def test_a_site_that_fetches_from_elsewhere_is_noticed(tmp_path):
    page = tmp_path / "index.html"
    page.write_text('<a href="https://elsewhere/">read on</a><script src="own.js"></script>')
    assert check_docs("--site", str(tmp_path)) == (0, "")
    page.write_text('<link rel="stylesheet" href="https://elsewhere/fonts.css">')
    assert check_docs("--site", str(tmp_path))[0] == 1
    page.unlink()
    assert check_docs("--site", str(tmp_path))[0] == 1


def test_the_example_of_the_readme_serves_the_shell_commands_beside_it():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
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
