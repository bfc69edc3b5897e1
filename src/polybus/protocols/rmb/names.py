"""Names between the Reliable Message Bus and the shared namespace (DESIGN 3).

Invariant: a command `a.b` is the shared name `a/b`, and of another twin `twin/12/a/b`; what cannot go there and come
back unchanged is not shared at all.
"""

from __future__ import annotations

from typing import Final

from polybus.model.name import is_name

WIRE: Final = "rmb"
PING: Final = "polybus.ping"  # answered by the node itself
_TWIN: Final = "twin/"


def to_shared(cmd: str) -> str | None:
    """The shared name of a command of the own twin; None when it has none."""
    if "/" in cmd:
        return None
    name = cmd.replace(".", "/")
    return name if is_name(name) else None


def from_shared(name: str) -> str | None:
    """The command that a shared name stands for; None when no command is spelled so."""
    return None if "." in name else name.replace("/", ".")


def to_twin(name: str) -> tuple[int, str] | None:
    """Twin and command of `twin/12/a/b`; None for any other name."""
    if not name.startswith(_TWIN):
        return None
    number, _, rest = name[len(_TWIN) :].partition("/")
    cmd = from_shared(rest)
    if not cmd or not (number.isascii() and number.isdigit()) or len(number) > 10:
        return None
    return int(number), cmd
