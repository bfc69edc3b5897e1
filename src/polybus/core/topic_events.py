"""What other parts may want to know of topics and groups (Zbus trackers, the monitor).

Invariant: an event is told after the change is durable and visible; listeners are called on the event loop, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from polybus.core.endpoint import Endpoint

Change = Literal["declared", "edited", "removed", "emptied", "joined", "left"]


@dataclass(frozen=True, slots=True)
class TopicEvent:
    """A change of a topic, or of one of its groups when `group` is named; `endpoint` is who joined or left."""

    change: Change
    topic: str
    group: str = ""
    endpoint: Endpoint | None = None


Listener = Callable[[TopicEvent], None]


class Listeners:
    """Who is told."""

    __slots__ = ("_all",)

    def __init__(self) -> None:
        self._all: list[Listener] = []

    def add(self, listener: Listener) -> Callable[[], None]:
        """Tell `listener` of every event from now on; returns the way to stop that."""
        self._all.append(listener)
        return lambda: self._all.remove(listener)

    def tell(self, event: TopicEvent) -> None:
        """Tell all."""
        for listener in list(self._all):
            listener(event)
