"""TLS contexts for listeners and clients.

Invariant: `ca` on a listener means that client certificates are required and verified against it.
"""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path

from polybus.errors import ConfigError


def server_context(cert: str = "", key: str = "", ca: str = "") -> ssl.SSLContext:
    """A context for a listener: certificate chain and key as PEM files, `ca` to require client certificates.

    Raises:
        ConfigError: a file is missing, not named, or no PEM of its kind.
    """
    if not (cert and key):
        raise ConfigError("a TLS listener needs cert=… and key=…")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _load_chain(context, cert, key)
    if ca:
        _load_roots(context, ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(ca: str = "", cert: str = "", key: str = "") -> ssl.SSLContext:
    """A context for a client: `ca` replaces the system's roots, `cert` and `key` are shown to the server.

    Raises:
        ConfigError: a file is missing or is no PEM of its kind.
    """
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    if ca:
        _load_roots(context, ca)
    if cert:
        _load_chain(context, cert, key)
    return context


def pinned_context() -> ssl.SSLContext:
    """A client context that checks no chain, for wires that compare the certificate's hash afterwards."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def certificate_hash(pem: Path, algorithm: str = "sha224") -> str:
    """The hash of a certificate's DER form, in hex, as the Golem client wants it."""
    der = ssl.PEM_cert_to_DER_cert(pem.read_text())
    return hashlib.new(algorithm, der).hexdigest()


def _load_chain(context: ssl.SSLContext, cert: str, key: str) -> None:
    for path in (cert, key):
        if path and not Path(path).is_file():
            raise ConfigError(f"TLS file not found: {path}")
    try:
        context.load_cert_chain(cert, key or None)
    except (ssl.SSLError, OSError) as exc:
        raise ConfigError(f"cannot use TLS certificate {cert} with key {key}: {exc}") from exc


def _load_roots(context: ssl.SSLContext, ca: str) -> None:
    if not Path(ca).is_file():
        raise ConfigError(f"TLS file not found: {ca}")
    try:
        context.load_verify_locations(ca)
    except (ssl.SSLError, OSError) as exc:
        raise ConfigError(f"cannot use TLS authority {ca}: {exc}") from exc
