"""A real Golem Service Bus client is told what it may not, in its own words, and does not hang."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.processes import node

pytestmark = pytest.mark.interop


@pytest.mark.parametrize(
    ("scenario", "rule", "refused"),
    [
        ("calls", "anonymous may call", "may not register peer/"),
        ("calls", "anonymous may register", "may not call peer/"),
        ("broadcast", "anonymous may publish", "may not subscribe peer/"),
        ("broadcast", "anonymous may subscribe", "may not publish peer/"),
    ],
)
def test_the_rust_client_reads_a_refusal_as_a_bad_request(
    scenario, rule, refused, peer: Path, tmp_path
):
    (tmp_path / "polybus.toml").write_text(f'[policy]\nrules = ["{rule}"]\n')
    flags = ("--config", "polybus.toml", "--listen", "gsb+tcp://127.0.0.1:0", "--data", "")
    with node(*flags, cwd=tmp_path) as (_process, lines):
        url = lines[0].removeprefix("gsb+")
        done = subprocess.run(
            [peer, scenario],
            env=os.environ | {"GSB_URL": url},
            capture_output=True,
            text=True,
            timeout=30,
        )
    assert f"failed {scenario}: Bad request: anonymous:loopback {refused}" in done.stdout
