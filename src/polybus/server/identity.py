"""Who is at the other end of a connection, as far as the transport can tell.

Invariant: an identity is never taken from what the peer says; only the kernel (user id of a Unix
socket), a verified certificate, or being in this very process counts.
"""

from __future__ import annotations

from typing import Any

from polybus.core.endpoint import ANONYMOUS, Identity
from polybus.transports.connection import Connection


def identity_of(connection: Connection) -> Identity:
    """The identity of a peer whose connection is up."""
    if connection.transport_kind == "memory":
        return Identity("local")
    certificate = connection.peer_certificate
    if certificate is not None:
        return Identity("certificate", _common_name(certificate))
    uid = connection.peer_uid
    return ANONYMOUS if uid is None else Identity("uid", str(uid))


def _common_name(certificate: dict[str, Any]) -> str:
    fields = (field for group in certificate.get("subject", ()) for field in group)
    return next((str(value) for key, value in fields if key == "commonName"), "")
