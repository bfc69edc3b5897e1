"""Addresses of buses and the file `$HOME/.t2` in which the original keeps their names.

Invariant: the file is written so that the real program reads it: one `NAME tcp:…` or `NAME unix:…` per line, the
default first.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from polybus.errors import ConfigError, NotReachable

BUS_NAME: Final = re.compile(r"[a-z_]+")
_ADDRESS: Final = re.compile(r"(tcp|unix|name):(.+)")
_LINE: Final = re.compile(r"(.+?) (tcp|unix):(.*)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a bus is: `kind` is tcp, unix or name."""

    kind: str
    where: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.where}"

    def resolve(self) -> Place:
        """The same without a name.

        Raises:
            NotReachable: the name is not registered.
        """
        if self.kind != "name":
            return self
        for name, place in registered():
            if name == self.where:
                return place
        raise NotReachable(f"Name is not registered: {self.where}")


def parse_place(text: str) -> Place | None:
    """The place that an address means; None if it is no address."""
    found = _ADDRESS.fullmatch(text)
    if found is None:
        return None
    kind, where = found[1], found[2]
    # A node prints its listeners as URLs, and no host begins with slashes.
    return Place(kind, where.removeprefix("//") if kind == "tcp" else where)


def registered() -> list[tuple[str, Place]]:
    """All names, the default first; lines that the real program would not understand are left out."""
    home = os.environ.get("HOME")
    if not home:
        return []
    try:
        lines = (Path(home) / ".t2").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot read {home}/.t2: {exc}") from exc
    found = (_LINE.fullmatch(line) for line in lines)
    return [(match[1], Place(match[2], match[3])) for match in found if match]


def default_place() -> Place:
    """The bus that is meant when none is named.

    Raises:
        NotReachable: no name is registered.
    """
    names = registered()
    if not names:
        raise NotReachable(
            "No default address found in config. Use the register command to add one or specify an address"
        )
    return names[0][1]


def register(name: str, place: Place, first: bool) -> None:
    """Add a name, in place of an older one; `first` makes it the default."""
    others = [entry for entry in registered() if entry[0] != name]
    _write([(name, place), *others] if first else [*others, (name, place)])


def unregister(name: str) -> None:
    """Remove a name; one that is not there is no mistake."""
    _write([entry for entry in registered() if entry[0] != name])


def _write(names: list[tuple[str, Place]]) -> None:
    home = os.environ.get("HOME")
    if not home:
        raise ConfigError("HOME environment variable not set")
    path = Path(home) / ".t2"
    try:
        path.write_text("".join(f"{name} {place}\n" for name, place in names), encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"cannot write {path}: {exc.strerror}") from exc
