"""Whether a node is alive and ready, and how late its event loop is.

Invariant: ready means that every listener accepts and nothing is being drained; alive means that the
loop answers at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["new", "ready", "draining", "stopped"]


@dataclass(frozen=True, slots=True)
class Health:
    """A node at one moment."""

    state: State
    connections: int
    pending_calls: int
    loop_lag_s: float

    @property
    def ready(self) -> bool:
        return self.state == "ready"


class LoopLag:
    """How late timers fire: the longest delay among the last `window` ticks."""

    def __init__(self, window: int = 100) -> None:
        self._window = window
        self._delays: list[float] = []
        self._due: float | None = None

    def expect(self, due: float) -> None:
        """A timer was set for this moment."""
        self._due = due

    def observe(self, now: float) -> None:
        """It fired now."""
        if self._due is None:
            return
        self._delays.append(max(0.0, now - self._due))
        del self._delays[: -self._window]

    @property
    def worst_s(self) -> float:
        return max(self._delays, default=0.0)
