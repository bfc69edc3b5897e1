"""Reserved paths, the origin rule, and WebSocket."""

from __future__ import annotations

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

from polybus.errors import LocalProtocolError, NoSuchTopic
from polybus.http.paths import RESERVED, reserved
from polybus.http.request import Request
from tests.http.serving import Served, responses, serve


def ask(served: Served, text: str) -> tuple[int, dict[str, str], bytes]:
    served.peer.send(text.replace("\n", "\r\n").encode() + b"\r\n\r\n")
    return responses(served.peer.received())[0]


def test_the_table_knows_names_and_what_is_below_them():
    assert reserved("/") is RESERVED[0]
    assert reserved("/metrics") is not None
    assert reserved("/metrics/detailed") is not None
    assert reserved("/readyz/x") is None
    assert reserved("/api/v1/x") is not None
    assert reserved("/apix") is None
    assert reserved("/zbus-remote") is not None
    assert reserved("/rmb-cmd/x") is not None
    assert reserved("/MyTopic") is None


def test_a_reserved_path_wins_over_a_topic_but_a_command_does_not():
    served = serve()
    served.site.add("/metrics", lambda request: request.respond(200, {}, b"numbers"))
    assert ask(served, "GET /metrics HTTP/1.1")[2] == b"numbers"
    assert ask(served, "GET /metrics HTTP/1.1\ncmd: query")[2] == b"/metrics "
    assert ask(served, "GET /metrics?cmd=query HTTP/1.1")[2] == b"/metrics "
    assert ask(served, "GET /metrics?a=1&cmd=query HTTP/1.1")[2] == b"/metrics "


def test_a_reserved_path_that_nobody_serves_is_not_found_unless_it_is_shared():
    served = serve()
    assert ask(served, "GET /readyz HTTP/1.1")[0] == 404
    assert ask(served, "GET / HTTP/1.1")[2] == b"/ "
    assert ask(served, "GET /js/x.js HTTP/1.1")[2] == b"/js/x.js "


def test_only_paths_of_the_table_can_be_served():
    served = serve()
    with pytest.raises(LocalProtocolError):
        served.site.add("/mine", lambda request: None)
    with pytest.raises(LocalProtocolError):
        served.site.add("/api/v1", lambda request: None)


def test_an_error_of_a_handler_is_told_and_harms_nobody():
    def fail(request: Request) -> None:
        raise NoSuchTopic("t")

    served = serve()
    served.site.add("/healthz", fail)
    assert ask(served, "GET /healthz HTTP/1.1")[::2] == (500, b"no such topic: t")
    assert ask(served, "GET /x HTTP/1.1")[0] == 200


def test_without_an_application_nothing_is_found():
    served = serve()
    served.site.application = None
    assert ask(served, "GET /x HTTP/1.1")[0] == 404


FOREIGN = [
    "Host: localhost:1\nOrigin: http://evil.example",
    "Host: localhost:1\nOrigin: http://localhost:2",
    "Host: localhost:1\nOrigin: null",
    "Host: localhost:1\nSec-Fetch-Site: cross-site",
    "Host: localhost:1\nSec-Fetch-Site: same-site",
    "Host: evil.example:1",
    "Host: evil.example",
    "Host: evil.example\nOrigin: http://evil.example",
]
OWN = [
    "",
    "Host: localhost:1",
    "Host: 127.0.0.1:1",
    "Host: [::1]:1",
    "Host: app.localhost",
    "Host: localhost:1\nOrigin: http://localhost:1",
    "Host: localhost\nOrigin: http://localhost:80",
    "Host: [::1]\nOrigin: http://[::1]:80",
    "Host: localhost:1\nSec-Fetch-Site: none",
    "Host: localhost:1\nSec-Fetch-Site: same-origin",
]


@pytest.mark.parametrize("headers", FOREIGN)
def test_a_page_of_another_origin_may_look_but_not_change(headers: str):
    served = serve()
    served.site.add("/api", lambda request: request.respond(200), changes=True)
    served.site.add("/metrics", lambda request: request.respond(200))
    assert ask(served, f"GET /metrics HTTP/1.1\n{headers}")[0] == 200
    assert ask(served, f"POST /metrics HTTP/1.1\n{headers}")[0] == 403
    assert ask(served, f"GET /api HTTP/1.1\n{headers}")[0] == 403
    ask(served, f"GET /x HTTP/1.1\n{headers}")
    assert served.echo.taken[-1].head.foreign


@pytest.mark.parametrize("headers", OWN)
def test_own_pages_and_clients_that_are_no_browsers_may_change_things(headers: str):
    served = serve()
    ask(served, f"POST /x HTTP/1.1\n{headers}".rstrip())
    assert served.echo.taken[-1].head.foreign == ""


def test_settings_allow_other_origins_and_names():
    served = serve(origins=("http://app.example",), hosts=frozenset({"bus.example"}))
    for headers in ("Host: bus.example:1\nOrigin: http://app.example", "Host: bus.example"):
        ask(served, f"POST /x HTTP/1.1\n{headers}")
        assert served.echo.taken[-1].head.foreign == ""
    everybody = serve(origins=("*",))
    ask(everybody, "POST /x HTTP/1.1\nHost: h\nOrigin: http://evil.example")
    assert everybody.echo.taken[-1].head.foreign == ""


def test_a_preflight_is_granted_to_allowed_origins_only():
    served = serve(origins=("http://app.example",))
    asked = "OPTIONS /x HTTP/1.1\nHost: localhost\nOrigin: http://{}\nAccess-Control-Request-Headers: cmd"
    status, headers, _ = ask(served, asked.format("app.example"))
    assert (status, headers["access-control-allow-origin"]) == (204, "http://app.example")
    assert headers["access-control-allow-headers"] == "cmd"
    assert "access-control-allow-origin" not in ask(served, asked.format("evil.example"))[1]


class Browser:
    """The client's side of a WebSocket, by the same library."""

    def __init__(self, served: Served, origin: str = "http://localhost:1") -> None:
        self.served = served
        self.protocol = ClientProtocol(parse_uri("ws://localhost:1/any/path"), origin=origin)  # type: ignore[arg-type]
        self.protocol.send_request(self.protocol.connect())
        self.frames: list[Frame] = []
        self.go()

    def go(self) -> list[Frame]:
        for data in self.protocol.data_to_send():
            self.served.peer.send(data, range(1, len(data), 7))
        self.protocol.receive_data(self.served.peer.received())
        return [e for e in self.protocol.events_received() if isinstance(e, Frame)]


def test_one_message_per_frame_in_and_text_frames_out():
    served = serve()
    browser = Browser(served)
    browser.protocol.send_binary(b"GET /t HTTP/1.1\r\nid: 7\r\ncontent-length: 2\r\n\r\nhi")
    browser.protocol.send_text(b"GET /u HTTP/1.1\r\ncmd: ping\r\n\r\nrest")
    first, second = browser.go()
    assert first.opcode is second.opcode is Opcode.TEXT
    assert responses(bytes(first.data))[0][1]["id"] == "7"
    assert responses(bytes(second.data))[0][2] == b"/u rest"
    assert served.echo.session.framed


def test_fragments_of_a_message_are_joined():
    served = serve()
    browser = Browser(served)
    browser.protocol.send_text(b"GET /t HTTP/1.1\r\ncm", fin=False)
    browser.protocol.send_continuation(b"d: ping\r\n\r\n", fin=True)
    assert len(browser.go()) == 1


def test_parts_of_a_message_count_as_held():
    served = serve()
    browser = Browser(served)
    outbox = served.peer.connection.outbox
    browser.protocol.send_text(b"GET /t HTTP/1.1\r\n", fin=False)
    browser.go()
    assert outbox.held_bytes == 17
    served.peer.send(b"\x80\xfe\x04\x00mask" + b"x" * 500)
    assert outbox.held_bytes == 17 + 500


@pytest.mark.parametrize(
    "message",
    [b"", b"nonsense", b"GET / HTTP/1.1\r\ncontent-length: 3\r\n\r\nab", b"BAD\r\n\r\n"],
)
def test_a_message_that_does_not_fit_its_frame_is_refused_and_the_connection_lives(message: bytes):
    served = serve()
    browser = Browser(served)
    browser.protocol.send_text(message)
    (frame,) = browser.go()
    assert responses(bytes(frame.data))[0][0] == 400
    browser.protocol.send_ping(b"?")
    (pong,) = browser.go()
    assert pong.opcode is Opcode.PONG


def test_close_is_answered_with_close():
    served = serve()
    browser = Browser(served)
    browser.protocol.send_close(1000)
    browser.go()
    assert browser.protocol.close_rcvd is not None
    assert browser.protocol.close_rcvd.code == 1000
    assert served.peer.closed


@pytest.mark.parametrize(("raw", "code"), [(b"\xf1\x80\0\0\0\0", 1002), (b"\x81\x01x", 1002)])
def test_a_malformed_frame_is_closed_with_the_right_code(raw: bytes, code: int):
    served = serve()
    browser = Browser(served)
    served.peer.send(raw)
    browser.go()
    assert browser.protocol.close_rcvd is not None
    assert browser.protocol.close_rcvd.code == code
    assert served.peer.closed


def test_a_message_over_the_limit_is_closed_with_1009():
    served = serve(max_body=100)
    browser = Browser(served)
    browser.protocol.send_text(b"x" * 200)
    browser.go()
    assert browser.protocol.close_rcvd is not None
    assert browser.protocol.close_rcvd.code == 1009


def test_a_foreign_page_gets_no_websocket():
    served = serve()
    Browser(served, origin="http://evil.example")
    assert served.peer.closed
    assert served.parties == []


def test_a_bad_handshake_is_refused():
    served = serve()
    served.peer.send(b"GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
    assert responses(served.peer.received())[0][0] == 400
    assert served.peer.closed


def test_a_silent_websocket_is_pinged_and_then_closed():
    served = serve(idle_timeout=300.0)
    browser = Browser(served)
    served.tick(160)
    (ping,) = browser.go()
    assert ping.opcode is Opcode.PING
    browser.go()  # the library answers it
    served.tick(160)
    assert not served.peer.closed
    served.tick(310)
    browser.protocol.receive_data(served.peer.received())
    assert served.peer.closed
