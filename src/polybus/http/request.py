"""One request on its way through a handler.

Invariant: a request is answered at most once; the answer may come at any later time, and the session puts it where
HTTP wants it (in the order of the requests, unless the client matches answers by id).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from polybus.http.head import Head
from polybus.http.response import encode_response

if TYPE_CHECKING:
    from polybus.http.session import HttpSession


class Request:
    """What a handler gets. `id` is the header of that name, which `head.headers` does not hold."""

    __slots__ = ("answer", "body", "connection", "head", "id")

    def __init__(self, connection: HttpSession, head: Head, id: str, body: bytes) -> None:
        self.connection = connection
        self.head = head
        self.id = id
        self.body = body
        self.answer: bytes | None = None

    @property
    def method(self) -> str:
        return self.head.method

    @property
    def path(self) -> str:
        return self.head.path

    @property
    def identity(self) -> Any:
        """Who asks, for whoever serves it."""
        return self.connection.site.identify(self)

    def parameters(self) -> dict[str, str]:
        """The query string, percent-decoded; of a name that comes twice the last one."""
        found = {}
        for part in self.head.query.split("&"):
            if part:
                name, _, value = part.partition("=")
                found[unquote(name)] = unquote(value.replace("+", " "))
        return found

    def respond(
        self, status: int, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> None:
        """Answer; `content-length` and `connection` are set here."""
        known = dict(headers or {})
        keep = self.head.keep_alive or not self.head.ordered
        known["connection"] = "keep-alive" if keep else "close"
        self.send(encode_response(status, known, body, bodyless=self.head.method == "HEAD"))

    def send_now(self, raw: bytes) -> None:
        """As `send`, when no other answer is about to go to this client."""
        if self.head.ordered:
            self.connection.answer(self, raw)
        else:
            self.connection.send_now(raw)

    def send(self, raw: bytes) -> None:
        """Answer with bytes that are a whole response already."""
        if self.head.ordered:
            self.connection.answer(self, raw)
        else:
            self.connection.send(raw)
