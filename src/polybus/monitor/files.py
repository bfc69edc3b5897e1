"""The files of the page, read once and served from memory.

Invariant: what is served is what lies in `static/`, under a policy that lets nothing else run: no inline script or
style, no other origin, no frame around it.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final
from zlib import crc32

from polybus.http.request import Request
from polybus.http.site import not_found

TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFE: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


@cache
def load() -> dict[str, tuple[bytes, dict[str, str]]]:
    """Every file of the page with its headers, by name. Reads the disk at the first call, which is not the loop's."""
    found = {}
    for file in files("polybus.monitor").joinpath("static").iterdir():
        kind = TYPES.get(file.name.rpartition(".")[2])
        if kind is not None:
            body = file.read_bytes()
            headers = {**SAFE, "content-type": kind, "etag": f'"{crc32(body):08x}"'}
            found[file.name] = (body, headers)
    return found


def serve(request: Request) -> None:
    """Answer `/` and `/static/NAME`."""
    name = "index.html" if request.path == "/" else request.path.removeprefix("/static/")
    file = load().get(name)
    if file is None or request.method not in ("GET", "HEAD"):
        not_found(request)
        return
    body, headers = file
    if request.head.headers.get("if-none-match") == headers["etag"]:
        request.respond(304, headers)
    else:
        request.respond(200, headers, body)
