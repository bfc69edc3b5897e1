"""A hook of mkdocs: makes pages of the repository pages of the site.

Invariant: a page is the same text in the repository and on the site. A file outside of docs/ that a page links to is
put on the site below `files/`; a link to a folder outside, which the site does not have, becomes its plain text. The
words after the language of a block, which are for the tests, become a title that readers understand.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")
FILES = "files"
BLOCK = re.compile(r"^```(sh|python) (\w+)$", re.MULTILINE)
TITLES = {"terminal": ' title="in a terminal of its own"'}


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add what the pages link to."""
    docs = Path(config.docs_dir)
    found: set[Path] = set()
    for page in list(files.documentation_pages()):
        for _text, target, _anchor in LINK.findall(page.content_string):
            outside = _outside(docs, page.src_uri, target)
            if outside is not None and outside.is_file():
                found.add(outside)
    for path in sorted(found):
        uri = f"{FILES}/{path.relative_to(docs.parent).as_posix()}"
        # As text, whatever it is: a page of mkdocs' own making out of the changelog would have links that lead nowhere.
        name = uri + ".txt" if path.suffix == ".md" else uri
        files.append(File.generated(config, name, content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Point the links there, and name the blocks."""
    docs = Path(config.docs_dir)
    here = Path(page.file.src_uri).parent

    def point(match: re.Match[str]) -> str:
        text, target, _anchor = match.groups()
        outside = _outside(docs, page.file.src_uri, target)
        if outside is None:
            return match[0]
        if not outside.is_file():
            return text
        uri = f"{FILES}/{outside.relative_to(docs.parent).as_posix()}"
        uri += ".txt" if outside.suffix == ".md" else ""
        return f"[{text}]({os.path.relpath(uri, here)})"

    markdown = BLOCK.sub(lambda match: f"```{match[1]}{TITLES.get(match[2], '')}", markdown)
    return LINK.sub(point, markdown)


def _outside(docs: Path, page: str, target: str) -> Path | None:
    """The file or folder outside of docs/ that a link of a page means."""
    path = Path(os.path.normpath(docs / Path(page).parent / target))
    return None if path.is_relative_to(docs) or not path.exists() else path
