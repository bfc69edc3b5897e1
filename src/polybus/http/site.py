"""What is served over HTTP: handlers of reserved paths, and the application that gets everything else.

Invariant: which of them a request goes to depends on its head alone, by the rule of DESIGN 8: a `cmd` header or
parameter goes to the application, then reserved paths win over names of topics.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from polybus.errors import LocalProtocolError, PolybusError
from polybus.http.paths import reserved
from polybus.http.request import Request
from polybus.http.settings import HttpSettings

if TYPE_CHECKING:
    from polybus.http.head import Head
    from polybus.http.session import HttpSession

log = logging.getLogger("polybus.http")

Handler = Callable[[Request], None]
"""Answers now or later by `request.respond`; a PolybusError it raises becomes a 500 with the error's text."""

TEXT: Final = {"content-type": "text/plain; charset=utf-8"}


class Party(Protocol):
    """The application's side of one connection."""

    def take(self, request: Request) -> None:
        """Handle one request; it may be answered later."""

    def passed_over(self, request: Request) -> None:
        """One request had a body beyond the bound: it was answered with 413, and its body is not kept."""

    def flush(self) -> None:
        """The requests of one batch of input have all been taken, of which one has set `HttpSession.gathering`."""

    def lost(self, exc: Exception | None) -> None:
        """The connection is gone; `exc` is None when it was closed in an orderly way."""

    def tick(self, now: float) -> None:
        """About once a second."""


Application = Callable[["HttpSession"], Party]

Guard = Callable[[Request], bool]
"""Whether a request to a reserved path goes on; False when it was answered instead."""


def transport_identity(request: Request) -> Any:
    """Who asks, as far as the connection tells."""
    return request.connection.identity


def denial(request: Request) -> tuple[int, dict[str, str]]:
    """Status and headers for what somebody may not do: 401 where a token could help, else 403."""
    if request.connection.site.wants_token(request):
        return 401, {"www-authenticate": "Bearer"}
    return 403, {}


def bearer_token(headers: Mapping[str, str]) -> str:
    """The token of `Authorization: Bearer`, else of a cookie; empty when there is none."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return token.strip()
    for part in headers.get("cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == "token":
            return value
    return ""


class Site:
    """Everything that one node serves over HTTP."""

    def __init__(self, settings: HttpSettings | None = None) -> None:
        self.settings = settings or HttpSettings()
        self.application: Application | None = None
        self.identify: Callable[[Request], Any] = transport_identity
        """Who asks; nothing here looks at what it returns."""
        self.guard: Guard | None = None
        self.wants_token: Callable[[Request], bool] = lambda request: False
        """Whether somebody who was refused could be let in with a token."""
        self._handlers: dict[str, tuple[Handler, bool]] = {}

    def add(self, path: str, handler: Handler, *, changes: bool = False) -> None:
        """Serve a reserved path, or all below it where the table says so.

        Args:
            changes: whether it changes anything, so that pages of other origins are refused.

        Raises:
            LocalProtocolError: the path is not in the table of reserved paths.
        """
        entry = reserved(path)
        if entry is None or path.rstrip("/") not in (entry.path, entry.path.rstrip("/")):
            raise LocalProtocolError(f"{path} is not in the table of reserved paths")
        self._handlers[entry.path] = (handler, changes)

    def find(self, head: Head) -> tuple[Handler, bool] | None:
        """The handler of a reserved path; None sends the request to the application."""
        if "cmd" in head.headers or has_command(head.query):
            return None
        entry = reserved(head.path)
        if entry is None:
            return None
        found = self._handlers.get(entry.path)
        if found is None and entry.shared and self.application is not None:
            return None
        return found or (not_found, False)

    def handle(self, request: Request, found: tuple[Handler, bool]) -> None:
        """Run a handler of a reserved path."""
        handler, changes = found
        if request.head.foreign and (changes or request.method not in ("GET", "HEAD")):
            refuse(request)
            return
        if self.guard is not None and not self.guard(request):
            return
        try:
            handler(request)
        except PolybusError as exc:
            log.warning("%s %s failed: %s", request.method, request.path, exc)
            request.respond(500, TEXT, exc.text.encode())


def has_command(query: str) -> bool:
    """Whether a query string names a command."""
    return query.startswith("cmd=") or "&cmd=" in query


def not_found(request: Request) -> None:
    """For reserved paths that nobody serves."""
    request.respond(404, TEXT, b"Not Found")


def refuse(request: Request) -> None:
    """For what a page of another origin may not do."""
    request.respond(403, TEXT, f"403: {request.head.foreign}".encode())
