"""How each kind of peer is answered over HTTP: statuses and bodies (protocol page §1.4, §2, §3.4).

Invariant: the tables below are complete; which one is used depends on the path and on the sender's generation alone.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from polybus.http.request import Request
from polybus.http.response import encode_response
from polybus.protocols.rmb.message import Generation

Verdict = Literal[
    "ok",
    "parse",
    "old",
    "early",
    "no_dst",
    "wrong_dst",
    "unknown",
    "expired",
    "signature",
    "replay",
    "reserved",
    "denied",
    "rate",
    "gone",
    "failure",
]

STATUS: Final[dict[Generation, dict[Verdict, int]]] = {
    "rs": {
        "ok": 202,
        "parse": 400,
        "old": 400,
        "early": 400,
        "no_dst": 400,
        "wrong_dst": 400,
        "unknown": 401,
        "expired": 400,
        "signature": 401,
        "replay": 401,
        "reserved": 400,
        "denied": 401,
        "rate": 429,
        "gone": 202,
        "failure": 500,
    },
    "documented": {
        "ok": 202,
        "parse": 400,
        "old": 400,
        "early": 400,
        "no_dst": 400,
        "wrong_dst": 403,
        "unknown": 401,
        "expired": 408,
        "signature": 401,
        "replay": 401,
        "reserved": 400,
        "denied": 401,
        "rate": 429,
        "gone": 408,
        "failure": 500,
    },
    # The original answers 200 to everything and checks nothing; a sender without the right to send is told so.
    "v1": {
        "ok": 200,
        "parse": 200,
        "old": 200,
        "early": 200,
        "no_dst": 200,
        "wrong_dst": 200,
        "unknown": 401,
        "expired": 200,
        "signature": 401,
        "replay": 401,
        "reserved": 200,
        "denied": 401,
        "rate": 429,
        "gone": 200,
        "failure": 500,
    },
    "v2": {
        "ok": 200,
        "parse": 400,
        "old": 400,
        "early": 400,
        "no_dst": 400,
        "wrong_dst": 400,
        "unknown": 401,
        "expired": 400,
        "signature": 401,
        "replay": 401,
        "reserved": 400,
        "denied": 401,
        "rate": 429,
        "gone": 200,
        "failure": 500,
    },
}

_TEXTS: Final[dict[Verdict, str]] = {
    "parse": "bad request: failed to parse message: {}",
    "old": "bad request: message is too old",
    "early": "bad request: message is from the future: the clocks differ by {} seconds",
    "no_dst": "invalid destination missing",
    "wrong_dst": "invalid destination twin {}",
    "unknown": "invalid source twin {}: source twin not found",
    "expired": "bad request: message validation failed: message has expired",
    "signature": "unauthorized: {}",
    "replay": "unauthorized: message was seen before",
    "reserved": "bad request: command {} is reserved",
    "denied": "unauthorized: {}",
    "rate": "too many messages",
    "gone": "",
    "failure": "internal server error: {}",
    "ok": "",
}
SERVER: Final = {"server": "polybus"}
"""Tells other nodes that they may send several requests behind each other (see `peers`)."""
_JSON: Final = {"content-type": "application/json"}
_ACCEPTED_RAW: Final = encode_response(202, SERVER | {"connection": "keep-alive"})
_ACCEPTED: Final = b'{"status": "accepted"}'


def answer(request: Request, face: Generation, verdict: Verdict, detail: object = "") -> None:
    """Answer a request as that kind of peer expects it."""
    status = STATUS[face][verdict]
    if face in ("rs", "documented"):
        if verdict == "ok" and request.head.keep_alive:
            request.send(_ACCEPTED_RAW)
            return
        text = _TEXTS[verdict].format(detail)
        if face == "documented" and verdict == "gone":
            text = "message is not in the backlog any more"
        request.respond(status, SERVER, text.encode("utf-8", "replace"))
        return
    if verdict in ("ok", "gone"):
        request.respond(status, _JSON, _ACCEPTED)
        return
    if verdict == "parse":
        text = "could not parse message request"
    else:
        text = _TEXTS[verdict].format(detail).removeprefix("bad request: ")
    key = "error" if face == "v1" else "message"
    quoted = msgspec.json.encode(text).decode()
    request.respond(status, _JSON, f'{{"status": "error", "{key}": {quoted}}}'.encode())
