"""What all connections of the Golem Service Bus on one node share.

Invariant: an instance id belongs to at most one live connection; the router's own instance id is one per process.
"""

from __future__ import annotations

import secrets
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from polybus.core.router import Router
from polybus.core.subscriptions import EXACT
from polybus.model.ids import counter
from polybus.protocols.gsb.wire import CURRENT, Kind, encode_hello

if TYPE_CHECKING:
    from polybus.protocols.gsb.party import GsbParty

WIRE: Final = "gsb"
ROUTER_NAME: Final = "ya-sb-router"  # what clients of the original expect to read
ROUTER_VERSION: Final = "0.6.4"


@dataclass(frozen=True, slots=True)
class GsbOptions:
    """Settings of the room."""

    max_frame: int = 64 * 1024 * 1024
    ping_timeout: float = 60.0  # silent for so long: pinged; for twice as long: closed
    forward_timeout: float = 30.0  # as the original program


class GsbRoom:
    """Shared state: who has which instance id, and who has output waiting in the present batch."""

    def __init__(self, router: Router, options: GsbOptions | None = None) -> None:
        self.router = router
        self.options = options or GsbOptions()
        self.instances: dict[bytes, GsbParty] = {}
        self.waiting: list[GsbParty] = []
        """Sessions with queued output; written out at the end of the batch, one write each."""
        self.sender: GsbParty | None = None
        """Whose input is being handled: what it sends to a congested peer counts as its share."""
        self.departures = 0
        """How many sessions have ended; tells the others when to look for entries of vanished callers."""
        self.nonce = secrets.token_hex(8)
        """Begins every request id that we make: no client can guess one and take another's reply."""
        self.next_rewrite = counter()
        self.hello = CURRENT.encode(
            Kind.HELLO, encode_hello(ROUTER_NAME, ROUTER_VERSION, uuid.uuid4().bytes)
        )
        router.add_wire(WIRE, EXACT)

    def flush(self) -> None:
        """Write what the present batch has queued, each peer once."""
        waiting = self.waiting
        if not waiting:
            return
        self.waiting = []
        for session in waiting:
            session.write_queue(self.sender)
