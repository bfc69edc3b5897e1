"""Fails when a relative link in the project's Markdown leads nowhere.

The pages are read as they lie in the repository; there is no site to build.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")


def main() -> int:
    pages = [*Path().glob("*.md"), *Path("docs").rglob("*.md")]
    broken = [
        f"{page}: {target}"
        for page in pages
        for target in LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    print(*(f"broken link in {line}" for line in broken), sep="\n", end="\n" if broken else "")
    print(f"{len(pages)} pages, {len(broken)} broken links")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
