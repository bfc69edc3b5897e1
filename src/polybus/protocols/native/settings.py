"""What a node tells its native sessions, and who a client is.

Invariant: an identity is only what the transport or the operator's own check vouches for, never a client's claim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from polybus.core.endpoint import ANONYMOUS, Identity
from polybus.protocols.native.wire import MAX_FRAME
from polybus.transports.connection import Connection


def identify_by_transport(connection: Connection, token: str) -> Identity:
    """Who a client is when the node has no tokens: its certificate, its user id, or nobody in particular."""
    certificate = connection.peer_certificate
    if certificate is not None:
        subject = {key: value for part in certificate.get("subject", ()) for key, value in part}
        return Identity("certificate", subject.get("commonName", ""))
    if connection.transport_kind == "memory":
        return Identity("local")
    uid = connection.peer_uid
    return ANONYMOUS if uid is None else Identity("uid", str(uid))


@dataclass(frozen=True, slots=True)
class Settings:
    """What a node tells its native sessions."""

    max_frame: int = MAX_FRAME
    forward_timeout: float = 30.0
    identify: Callable[[Connection, str], Identity] = identify_by_transport
    """Who a connection with that token is; raises NotAuthorized to turn it away."""


DEFAULTS: Final = Settings()
