"""Reference pages that are made from the code are up to date."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"


@pytest.mark.timeout(60)
def test_the_pages_are_what_the_program_says():
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "make_reference.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
