"""Durations and sizes as people write them: `10s`, `64MiB`.

Invariant: what `show` prints, `parse` reads back to the same value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_NUMBER: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3
US: Final = 0.000001


@dataclass(frozen=True, slots=True)
class Unit:
    """A quantity with named multiples; `base` is the name of a bare number's unit."""

    kind: str
    example: str
    base: str
    multiples: tuple[tuple[str, float], ...]
    whole: bool

    def parse(self, raw: str | float) -> float | int:
        """The value in the base unit.

        Raises:
            ValueError: no number, an unknown unit, negative, or not finite.
        """
        text = str(raw)
        match = _NUMBER.fullmatch(text)
        factors = {name.lower(): factor for name, factor in self.multiples}
        factor = factors.get((match[2] or self.base).lower()) if match else None
        if match is None or factor is None:
            raise ValueError(f"{text!r} is not a {self.kind} (such as {self.example})")
        value = float(match[1]) * factor
        return round(value) if self.whole else value

    def show(self, value: float) -> str:
        """The value in the largest unit that spells it exactly."""
        for name, factor in self.multiples:
            shown = f"{round(value / factor)}{name}"
            if value >= factor and self.parse(shown) == value:
                return shown
        return f"{value}{self.base}"


DURATION: Final = Unit(
    "duration",
    "10s or 500ms",
    "s",
    (("d", 86400), ("h", 3600), ("m", 60), ("s", 1), ("ms", 0.001), ("us", US)),
    whole=False,
)
SIZE: Final = Unit(
    "size",
    "64MiB",
    "B",
    (
        ("GiB", GIB),
        ("GB", 1e9),
        ("MiB", MIB),
        ("MB", 1e6),
        ("KiB", KIB),
        ("KB", 1e3),
        ("B", 1),
    ),
    whole=True,
)
