"""Fails when a file of the project names a package registry's host or a path of one machine.

Both would tie the project to the place where it was written. The words are joined from parts
here, since this file is checked as well.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HOSTS = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("crates", "io"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("proxy", "golang", "org"),
        ("maven", "org"),
        ("deb", "debian", "org"),
    )
]
PATHS = ["/" + name + "/" for name in ("work/main", "work/shared", "root")]
FORBIDDEN = re.compile("|".join(map(re.escape, HOSTS + PATHS)) + r"|/home/(?!user\b|me\b)\w+/")


def project_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], capture_output=True, check=True
    )
    return [Path(name) for name in listed.stdout.decode().split("\0") if name]


def main() -> int:
    found = 0
    for path in project_files():
        if not path.is_file():
            continue
        text = path.read_bytes().decode("utf-8", "replace")
        for number, line in enumerate(text.splitlines(), 1):
            if match := FORBIDDEN.search(line):
                found += 1
                print(f"{path}:{number}: names {match[0]!r}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
