"""The WebSocket half of an HTTP connection: one complete message per frame (protocol page Zbus §2).

Invariant: framing is left to the `websockets` library, whose verdict on a malformed frame, close code included, is
what the peer gets; answers are always text frames, whatever their body.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request as Handshake
from websockets.protocol import State
from websockets.server import ServerProtocol

from polybus.http.head import BadHead, Head, parse_head
from polybus.http.request import Request
from polybus.http.response import encode_response

if TYPE_CHECKING:
    from polybus.http.session import HttpSession

_DATA: Final = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)


class WebSocket:
    """One upgraded connection."""

    def __init__(self, session: HttpSession, max_size: int) -> None:
        self._session = session
        self._parts: list[bytes] = []
        self._protocol = ServerProtocol(max_size=max_size)
        self.pinged = False

    @property
    def held_bytes(self) -> int:
        """What came and makes no whole message yet: part of a frame, and frames before it."""
        return len(self._protocol.reader.buffer) + sum(map(len, self._parts))

    def accept(self, raw: bytes) -> bool:
        """Answer the handshake, given as the raw head; False when it was rejected and the connection ends."""
        protocol = self._protocol
        protocol.receive_data(raw)
        for event in protocol.events_received():
            assert isinstance(event, Handshake)
            response = protocol.accept(event)
            response.headers.pop("Date", None)
            protocol.send_response(response)
        if protocol.state is not State.OPEN and protocol.handshake_exc is not None:
            protocol.data_to_send()
            text = str(protocol.handshake_exc).encode()
            self._session.outbox.write(encode_response(400, {"connection": "close"}, text))
            return False
        self._write()
        return True

    def feed(self, data: bytes) -> None:
        """Take what came."""
        self.pinged = False
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Frame) and event.opcode in _DATA:
                self._parts.append(bytes(event.data))
                if event.fin:
                    message, self._parts = b"".join(self._parts), []
                    self._take(message)
        self._write()
        if self._protocol.close_expected():
            self._session.outbox.close("websocket closed")

    def send(self, message: bytes) -> None:
        """One message to the peer."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_text(message)
            self._write()

    def ping(self) -> None:
        """Ask for a sign of life; browsers answer by themselves."""
        if self._protocol.state is State.OPEN:
            self.pinged = True
            self._protocol.send_ping(b"polybus")
            self._write()

    def close(self, reason: str) -> None:
        """Say goodbye and end the connection."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(CloseCode.GOING_AWAY, reason)
            self._write()
        self._session.outbox.close(reason)

    def _write(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._session.outbox.write(data)

    def _take(self, message: bytes) -> None:
        settings = self._session.site.settings
        raw, gap, body = message.partition(b"\r\n\r\n")
        try:
            if not gap or len(raw) > settings.max_head:
                raise BadHead("no whole message is in the frame")
            head = parse_head(raw, settings.max_headers)
            if "content-length" in head.headers and head.length != len(body):
                raise BadHead("content-length is not what is left of the frame")
        except BadHead as exc:
            self.send(encode_response(400, {}, f"400: Bad Format, {exc.text}".encode()))
            return
        self._session.take(unordered(self._session, head, body))


def unordered(session: HttpSession, head: Head, body: bytes) -> Request:
    """A request of a peer that matches answers by id."""
    head.ordered = False
    return Request(session, head, head.headers.pop("id", ""), body)
