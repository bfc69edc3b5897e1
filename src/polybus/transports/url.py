"""Addresses: where a node listens and where a client connects, as URLs.

`[pin+]scheme://…` with schemes `tcp`, `tls`, `unix`; a pin fixes the protocol, without one it is told from the first
bytes. Invariant: a parsed address prints back to a form that parses to the same value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from polybus.errors import ConfigError

DEFAULT_PORT: Final = 15555
SCHEMES: Final = ("tcp", "tls", "unix")
TLS_OPTIONS: Final = ("cert", "key", "ca")
_BARE: Final = re.compile(r"([\w.-]+|\[[\da-f:]+\]):\d{1,5}", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Address:
    """One place to listen on or to connect to."""

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""
    pin: str = ""
    options: dict[str, str] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        pin = f"{self.pin}+" if self.pin else ""
        if self.scheme == "unix":
            return f"{pin}unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{pin}{self.scheme}://{host}:{self.port}"

    def with_port(self, port: int) -> Address:
        """The same with the port that was really taken."""
        return Address(self.scheme, self.host, port, self.path, self.pin, self.options)


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> Address:
    """Parse one address.

    Raises:
        ConfigError: unknown scheme, no host, bad port, unknown option; the text says which.
    """
    pin, plus, rest = text.partition("+")
    if not plus or "/" in pin or ":" in pin:
        pin, rest = "", text
    scheme, colon, after = rest.partition(":")
    if not colon or scheme not in SCHEMES:
        known = ", ".join(s + "://" for s in SCHEMES)
        raise ConfigError(
            f"bad address {text!r}: it begins with none of {known}" + meant(text, "tcp")
        )
    if scheme == "unix":
        # Both spellings of the Golem router: unix:/path and unix:///path.
        path = after[2:] if after.startswith("//") else after
        if not path.startswith("/"):
            raise ConfigError(f"bad address {text!r}: the path of a Unix socket is absolute")
        return Address("unix", path=path, pin=pin)
    return _parse_host(text, scheme, rest, pin, default_port)


def meant(text: str, scheme: str) -> str:
    """What to add to an error about `text` if it would be an address with another scheme, or with any."""
    rest = text.removeprefix("http://").removesuffix("/")
    if rest.isdigit():
        rest = f"127.0.0.1:{rest}"
    return f"; did you mean {scheme}://{rest}?" if _BARE.fullmatch(rest) else ""


def _parse_host(text: str, scheme: str, rest: str, pin: str, default_port: int) -> Address:
    try:
        parts = urlsplit(rest)
        port = parts.port
    except ValueError as exc:
        raise ConfigError(f"bad address {text!r}: {exc}") from exc
    if not parts.hostname:
        raise ConfigError(f"bad address {text!r}: there is no host")
    if parts.path not in ("", "/") or parts.fragment or parts.username:
        raise ConfigError(f"bad address {text!r}: nothing but host, port and options belongs there")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(options) - set(TLS_OPTIONS))
    if unknown:
        raise ConfigError(
            f"bad address {text!r}: unknown option {unknown[0]!r}, known are cert, key, ca"
        )
    return Address(scheme, parts.hostname, default_port if port is None else port, "", pin, options)
