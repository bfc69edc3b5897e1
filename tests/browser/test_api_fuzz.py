"""Schemathesis asks the API everything that its document allows, and much that it does not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.browser.conftest import busy_node

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def test_schemathesis_finds_nothing():
    program = [
        sys.executable,
        "-m",
        "schemathesis.cli",
        "run",
        "",
        "--checks=all",
        # Streams have no end to wait for.
        "--exclude-tag=stream",
        # It would close its own connection.
        "--exclude-operation-id=disconnect",
        # Names of topics have rules that a schema cannot say, and breaking them is a 400.
        # OPTIONS is answered for all paths alike, before anybody looks at the path.
        "--exclude-checks=positive_data_acceptance,allow_header_conformance",
        "--max-examples=30",
        "--generation-deterministic",
        "--workers=1",
        "--request-timeout=10",
        "--suppress-health-check=all",
        "--no-color",
    ]
    # A node of its own: topics are removed and groups reset at random. It is no twin: calls to twins that are not
    # there take as long as the question allows, which is a minute.
    with busy_node("no-twin") as node:
        program[4] = f"{node}/api/v1/openapi.json"
        done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
