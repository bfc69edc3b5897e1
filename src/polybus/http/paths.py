"""The one table of reserved HTTP paths: they win over names of topics (DESIGN 8).

Invariant: a handler is registered only under a path of this table, and a reserved path without a handler is never
taken for a topic. Those marked `shared` are the exception: what nobody claims there goes to the default application,
since the original servers serve them too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Reserved:
    """One entry. `prefix` entries cover the name itself, all below it, and for a trailing `-` all that begin so."""

    path: str
    prefix: bool
    purpose: str
    shared: bool = False


RESERVED: Final = (
    Reserved("/", False, "monitor page", shared=True),
    Reserved("/api", True, "JSON API of the monitor"),
    Reserved("/metrics", True, "Prometheus"),
    Reserved("/healthz", False, "is the process alive"),
    Reserved("/readyz", False, "does the node take work"),
    Reserved("/zbus-", True, "RMB message bus over HTTP"),
    Reserved("/rmb-", True, "RMB message bus over HTTP"),
    Reserved("/health", False, "GSB nodes: how the router is"),
    Reserved("/nodes", True, "GSB nodes that registered below /net"),
    Reserved("/events", False, "GSB nodes that come and go"),
    Reserved("/static", True, "files of the monitor"),
    Reserved("/js", True, "static files", shared=True),
    Reserved("/css", True, "static files", shared=True),
    Reserved("/img", True, "static files", shared=True),
    Reserved("/page", True, "static files", shared=True),
    Reserved("/favicon.ico", False, "static file", shared=True),
)

_EXACT: Final = {entry.path: entry for entry in RESERVED}
_OPEN_ENDED: Final = tuple(e for e in RESERVED if e.prefix and e.path.endswith("-"))


def reserved(path: str) -> Reserved | None:
    """The entry that covers `path`, or None when the path is free."""
    found = _EXACT.get(path)
    if found is not None:
        return found
    first = "/" + path[1:].partition("/")[0]
    found = _EXACT.get(first)
    if found is not None and found.prefix:
        return found
    return next((entry for entry in _OPEN_ENDED if first.startswith(entry.path)), None)
