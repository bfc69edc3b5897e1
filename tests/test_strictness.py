"""The rules of `conftest.py` hold: under CI nothing is skipped unnoticed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

FILES = {
    "test_inside.py": "import pytest\ndef test_it(): pytest.skip('no tool A')\n",
    "test_mark.py": "import pytest\n@pytest.mark.skip(reason='no tool B')\ndef test_it(): ...\n",
    "test_file.py": "import pytest\npytest.skip('no tool C', allow_module_level=True)\n",
    "test_fixture.py": (
        "import pytest\n@pytest.fixture\ndef tool(): pytest.skip('no tool D')\n"
        "def test_it(tool): ...\n"
    ),
}


def run_pytest(folder: Path, ci: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(Path(__file__).with_name("conftest.py"), folder)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    command = [
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        "--continue-on-collection-errors",
    ]
    return subprocess.run(
        [sys.executable, *command, str(folder)],
        env={**os.environ, "CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
    )


def test_a_skip_of_any_kind_fails_under_ci_with_its_reason(tmp_path):
    done = run_pytest(tmp_path, ci="1")
    assert done.returncode == 1
    assert "1 failed, 3 errors" in done.stdout
    for tool in "ABCD":
        assert f"no tool {tool}" in done.stdout
    assert done.stdout.count("skipped under CI") >= 4


def test_a_skip_passes_on_a_developers_machine(tmp_path):
    done = run_pytest(tmp_path, ci="")
    assert done.returncode == 0
    assert "4 skipped" in done.stdout
