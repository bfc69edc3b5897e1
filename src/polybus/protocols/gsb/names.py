"""Addresses of the Golem Service Bus and the shared names they stand for.

Invariant: `to_shared` drops exactly one leading slash; what is then no name cannot be reached from other wires.
"""

from __future__ import annotations

from polybus.model.name import is_name


def to_shared(address: str) -> str | None:
    """The shared name of an address or topic, or None when it has none."""
    name = address[1:] if address.startswith("/") else address
    return name if is_name(name) else None


def below(registered: str, shared: str | None, called: str) -> str:
    """The address, in the spelling of the service that registered it, for a call to the shared name `called`."""
    return registered + called[len(shared or "") :]
