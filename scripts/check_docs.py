"""Fails when a relative link in the project's Markdown leads nowhere, or when a built site fetches from elsewhere.

check_docs.py             the pages as they lie in the repository
check_docs.py --site DIR  the site that was built from them
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
# What a browser loads by itself; a link that a reader may follow is none of it.
FETCHED = re.compile(
    r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)"
)


def broken_links() -> list[str]:
    pages = [*Path().glob("*.md"), *Path("docs").rglob("*.md")]
    return [
        f"{page}: {target} is not there"
        for page in pages
        for target in LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]


def fetched_from_elsewhere(site: Path) -> list[str]:
    pages = sorted(site.rglob("*.html"))
    if not pages:
        return [f"{site} has no pages"]
    return [
        f"{page}: fetches {target}"
        for page in pages
        for target in FETCHED.findall(page.read_text(encoding="utf-8"))
    ]


def main() -> int:
    match sys.argv[1:]:
        case ["--site", site]:
            found = fetched_from_elsewhere(Path(site))
        case _:
            found = broken_links()
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
