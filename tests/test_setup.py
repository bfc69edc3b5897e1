"""How the package is built."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Makes empty files for all modules but one, where it fails as it does when there is no memory left.
COMPILER = """#!/bin/sh
case "$*" in *core/cursor.c*) echo killed >&2; exit 1 ;; esac
while [ $# -gt 0 ]; do
    if [ "$1" = -o ]; then : > "$2"; fi
    shift
done
"""


def build(compiler: Path, into: Path) -> str:
    """What the build says; it must end well."""
    folders = ("--build-lib", str(into / "lib"), "--build-temp", str(into / "temp"))
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", *folders],
        cwd=ROOT,
        env={**os.environ, "CC": str(compiler), "POLYBUS_PURE": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_without_a_compiler_the_package_is_plain_python(tmp_path):
    assert "all modules stay plain Python" in build(tmp_path / "none", tmp_path)
    assert not list(tmp_path.rglob("*.so"))


def test_where_one_module_cannot_be_compiled_none_is(tmp_path):
    compiler = tmp_path / "cc"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    assert "all modules stay plain Python" in build(compiler, tmp_path)
    assert list(tmp_path.rglob("*.o"))
    assert not list(tmp_path.rglob("*.so"))
