"""Who is at the other end of a connection, as far as the transport can tell.

Invariant: an identity is never taken from what the peer says; only the kernel (user id of a Unix
socket), a verified certificate, the address, or being in this very process counts.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Any

from polybus.core.endpoint import Identity
from polybus.core.policy import NEIGHBOUR, STRANGER
from polybus.transports.connection import Connection


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


def is_loopback(peer: str) -> bool:
    """Whether a peer (`host:port`) is on this machine, by its address."""
    host = peer.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    # A client of a socket that takes both families: ::ffff:127.0.0.1
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _names(certificate: dict[str, Any]) -> Iterator[str]:
    """The common name, then the alternative ones."""
    fields = (field for group in certificate.get("subject", ()) for field in group)
    yield from (str(value) for key, value in fields if key == "commonName")
    yield from (str(value) for _kind, value in certificate.get("subjectAltName", ()))
