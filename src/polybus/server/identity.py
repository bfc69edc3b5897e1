"""Who is at the other end of a connection, as far as the transport can tell.

Invariant: an identity is never taken from what the peer says; only the kernel (user id of a Unix
socket), a verified certificate, the address, or being in this very process counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from polybus.core.endpoint import Identity
from polybus.core.policy import NEIGHBOUR, STRANGER
from polybus.transports.connection import Connection, is_loopback


def identity_of(connection: Connection) -> Identity:
    """The identity of a peer whose connection is up."""
    if connection.transport_kind == "memory":
        return Identity("local")
    certificate = connection.peer_certificate
    if certificate is not None:
        return Identity("certificate", next(_names(certificate), ""))
    uid = connection.peer_uid
    if uid is not None:
        return Identity("uid", str(uid))
    return NEIGHBOUR if is_loopback(connection.peer) else STRANGER


def _names(certificate: dict[str, Any]) -> Iterator[str]:
    """The common name, then the alternative ones."""
    fields = (field for group in certificate.get("subject", ()) for field in group)
    yield from (str(value) for key, value in fields if key == "commonName")
    yield from (str(value) for _kind, value in certificate.get("subjectAltName", ()))
