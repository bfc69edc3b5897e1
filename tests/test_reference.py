"""Reference pages that are made from the code are up to date."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parent.parent / "scripts"


def test_the_page_of_verbs_is_what_the_verbs_say():
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "make_reference.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=15,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
