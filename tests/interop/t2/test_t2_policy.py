"""The real T2 program is told what it may not, in its own words, and goes on with what it may."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.processes import node

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]


def test_the_real_program_prints_the_refusal_of_a_topic(t2_program: Path, tmp_path):
    rules = '[policy]\nrules = ["anonymous may publish subscribe on string/open"]\n'
    (tmp_path / "polybus.toml").write_text(rules)
    flags = ("--config", "polybus.toml", "--listen", "t2+tcp://127.0.0.1:0", "--data", "")
    with node(*flags, cwd=tmp_path) as (_process, lines):
        address = "tcp:" + lines[0].removeprefix("t2+tcp://")

        def run(*command: str) -> str:
            done = subprocess.run(
                [t2_program, *command, address], capture_output=True, text=True, timeout=30
            )
            return done.stdout + done.stderr

        assert run("pub", "--", "string/open", "hello") == ""
        refused = "Invalid topic string: anonymous:loopback may not publish string/shut"
        assert refused in run("pub", "--", "string/shut", "hello")
        assert "may not subscribe string/*" in run("sub", "string/*")
        assert run("pub", "--", "string/open", "hello") == ""
