"""The few pages that this room serves itself: a start page where no monitor is, and the login form.

Invariant: nothing that a client sent is ever part of a page.
"""

from __future__ import annotations

from html import escape
from http.cookies import SimpleCookie
from typing import Final
from urllib.parse import parse_qs, quote

from polybus.http.request import Request

HTML: Final = {"content-type": "text/html; charset=utf-8", "x-frame-options": "DENY"}
NO_COOKIE: Final = "token=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict"
LOGIN: Final = (
    b"<!doctype html><title>polybus</title>"
    b'<form method="post" action="/?cmd=login"><label>Token <input name="token" type="password"></label>'
    b'<button type="submit">Log in</button></form>'
)


def home(address: str) -> bytes:
    """The start page."""
    return (
        f"<!doctype html><title>polybus</title><h1>polybus at {escape(address)}</h1>"
        '<p><a href="/query">topics of this server</a>, <a href="/tracker">tracked servers</a></p>'
    ).encode()


def posted_token(request: Request) -> str | None:
    """The token of a submitted login form."""
    if request.method != "POST":
        return None
    fields = parse_qs(request.body.decode("utf-8", "replace"))
    return fields.get("token", [None])[0]


def cookie(token: str) -> str:
    """The cookie of a login; no page of another site makes a browser send it."""
    made: SimpleCookie = SimpleCookie()
    made["token"] = quote(token)
    return made["token"].OutputString() + "; Path=/; HttpOnly; SameSite=Strict"
