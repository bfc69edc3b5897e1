"""Who may change things from a browser (DESIGN 8).

A page of another origin can make a browser on this machine send requests here. Such a request carries a foreign
Origin or says so in Sec-Fetch-Site; one of a name that was made to point here (DNS rebinding) carries a Host that is
not ours. Invariant: a request with one of these marks is never allowed to change state unless a setting says so;
clients that are no browsers send none of them.
"""

from __future__ import annotations

import ipaddress

from polybus.http.head import Head
from polybus.http.settings import HttpSettings


def foreign(head: Head, settings: HttpSettings) -> str:
    """Why this request must not change anything; empty when it may."""
    headers = head.headers
    if not ("host" in headers or "origin" in headers or "sec-fetch-site" in headers):
        return ""
    if "*" in settings.origins:
        return ""
    host = headers.get("host", "")
    if host and not is_known_host(host, settings):
        return f"Host {host[:80]} is not a name of this node (setting http.hosts)"
    origin = headers.get("origin", "")
    if origin:
        if origin.lower() in settings.origins or is_same_origin(origin, host):
            return ""
        return f"Origin {origin[:80]} is not allowed (setting http.origins)"
    site = headers.get("sec-fetch-site", "none")
    if site not in ("none", "same-origin"):
        # `same-site` too: another port of this machine is the same site, but not the same page.
        return f"a {site[:20]} request is not allowed (setting http.origins)"
    return ""


def is_same_origin(origin: str, host: str) -> bool:
    """Whether a page of this origin was served by the very host and port that is asked now."""
    scheme, _, rest = origin.lower().partition("://")
    default = {"http": ":80", "https": ":443"}.get(scheme)
    if default is None or not host:
        return False
    return _with_port(rest, default) == _with_port(host.lower(), default)


def is_known_host(host: str, settings: HttpSettings) -> bool:
    """Whether a Host header names this node: one of its names, or an IP address, which no name can stand in for."""
    name = host.lower()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    if name in settings.hosts or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _with_port(host: str, default: str) -> str:
    bare = host.rpartition("]")[2] if host.startswith("[") else host
    return host if ":" in bare else host + default
