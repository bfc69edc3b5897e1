"""The one HTTP session: framing, order of answers, limits, and what ends a connection."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polybus.http.head import BadHead, parse_head, sniff
from polybus.http.request import Request
from tests.http.serving import responses, serve

MANY = (
    b"GET / HTTP/1.1\r\ncmd: ping\r\nid: 1\r\ncontent-length: 0\r\n\r\n"
    b"\r\nPOST /a/b?x=1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello"
    b"GET / HTTP/1.1\r\ncmd: produce\r\nid: 2\r\ncontent-length: 3\r\n\r\nabc"
    b"GET / HTTP/1.1\r\ncmd: produce\r\nid: 3\r\ncontent-length: 3\r\n\r\ndef"
    b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nt: u\r\n\r\n"
    b"GET /d HTTP/1.1\r\n\r\n"
)


def taken(data: bytes, splits: list[int]) -> list[tuple[str, str, bytes]]:
    served = serve()
    served.peer.send(data, splits)
    assert served.peer.closed is False
    return [(r.path, r.id, r.body) for r in served.echo.taken]


def test_pipelined_requests_of_all_kinds_are_told_apart():
    assert taken(MANY, []) == [
        ("/", "1", b""),
        ("/a/b", "", b"hello"),
        ("/", "2", b"abc"),
        ("/", "3", b"def"),
        ("/c", "", b"abcde"),
        ("/d", "", b""),
    ]


def test_every_single_cut_gives_the_same_requests():
    whole = taken(MANY, [])
    for cut in range(1, len(MANY)):
        assert taken(MANY, [cut]) == whole


def test_byte_by_byte_gives_the_same_requests():
    assert taken(MANY, list(range(1, len(MANY)))) == taken(MANY, [])


@given(st.lists(st.integers(1, len(MANY) - 1), max_size=8))
@settings(max_examples=50, deadline=None)
def test_any_split_gives_the_same_requests(cuts: list[int]):
    assert taken(MANY, cuts) == taken(MANY, [])


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_mutated_input_never_raises_and_never_writes_garbage(data: st.DataObject):
    mutated = bytearray(MANY)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(mutated) - 1))
        mutated[at] = data.draw(st.integers(0, 255))
    served = serve()
    served.peer.send(bytes(mutated))
    responses(served.peer.received())


def test_answers_by_id_come_at_once_and_the_others_in_their_turn():
    served = serve()
    served.peer.send(
        b"GET /slow HTTP/1.1\r\nlater: 1\r\n\r\n"
        b"GET /fast HTTP/1.1\r\n\r\n"
        b"GET / HTTP/1.1\r\ncmd: ping\r\nid: z\r\n\r\n"
    )
    assert [h["id"] for _, h, _ in responses(served.peer.received())] == ["z"]
    served.echo.reply(served.echo.taken[0])
    assert [b for _, _, b in responses(served.peer.received())] == [b"/slow ", b"/fast "]


def test_a_waiting_request_with_an_id_blocks_nobody():
    served = serve()
    served.peer.send(
        b"GET / HTTP/1.1\r\ncmd: consume\r\nid: a\r\nlater: 1\r\n\r\n"
        b"GET /x HTTP/1.1\r\n\r\n"
        b"GET / HTTP/1.1\r\ncmd: ping\r\nid: b\r\n\r\n"
    )
    assert [b for _, _, b in responses(served.peer.received())] == [b"/x ", b"/ "]


def test_a_second_answer_to_an_ordered_request_is_ignored():
    served = serve()
    served.peer.send(b"GET /x HTTP/1.1\r\n\r\n")
    served.echo.reply(served.echo.taken[0])
    assert len(responses(served.peer.received())) == 1


def test_connection_close_is_honoured_for_plain_clients_only():
    served = serve()
    served.peer.send(b"GET / HTTP/1.1\r\ncmd: ping\r\nconnection: close\r\n\r\n")
    assert served.peer.tap.closed is False
    served.peer.send(b"GET /x HTTP/1.1\r\nConnection: close\r\n\r\nGET /y HTTP/1.1\r\n\r\n")
    assert served.peer.closed
    assert [b for _, _, b in responses(served.peer.received())] == [b"/ ", b"/x "]


def test_http_1_0_closes_unless_asked_to_stay():
    served = serve()
    served.peer.send(b"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert not served.peer.closed
    served.peer.send(b"GET /x HTTP/1.0\r\n\r\n")
    assert served.peer.closed


def test_head_gets_the_length_and_no_body():
    served = serve()
    served.peer.send(b"HEAD /x HTTP/1.1\r\n\r\n")
    assert served.peer.received().endswith(b"content-length: 3\r\n\r\n")


def test_expect_continue_is_answered_before_the_body():
    served = serve()
    served.peer.send(b"POST /x HTTP/1.1\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n")
    assert served.peer.received() == b"HTTP/1.1 100 Continue\r\n\r\n"
    served.peer.send(b"ok")
    assert responses(served.peer.received())[0][2] == b"/x ok"


def test_header_names_are_lower_cased_and_the_last_value_wins():
    head = parse_head(b"GET /p?q HTTP/1.1\r\nX-Mixed:  a \r\nx-mixed: b")
    assert head.headers == {"x-mixed": "b"}
    assert (head.path, head.query) == ("/p", "q")


def test_the_absolute_form_of_a_target_is_understood():
    assert parse_head(b"GET http://h:1/p?q=1 HTTP/1.1").target == "/p?q=1"


def test_header_values_that_are_no_utf_8_are_taken_as_latin_1():
    assert parse_head(b"GET / HTTP/1.1\r\na: \xe4").headers["a"] == "ä"


def test_of_two_ids_the_last_one_wins():
    served = serve()
    served.peer.send(b"GET / HTTP/1.1\r\ncmd: ping\r\nid: a\r\nid: b\r\n\r\n")
    assert served.echo.taken[0].id == "b"


@pytest.mark.parametrize(
    "raw",
    [
        b"BOGUS / HTTP/1.1",
        b"GET /",
        b"GET / HTTP/2.0",
        b"GET / HTTP/1.",
        b"GET / HTTP/1.1x",
        b"GET /\x01 HTTP/1.1",
        b"GET / HTTP/1.1\r\nno colon",
        b"GET / HTTP/1.1\r\n: empty",
        b"GET / HTTP/1.1\r\nbad name: x",
        b"GET / HTTP/1.1\r\n folded: x",
        b"GET / HTTP/1.1\r\na: b\nc: d",
        b"GET / HTTP/1.1\r\na: b\x00",
        b"GET / HTTP/1.1\r\ncontent-length: x",
        b"GET / HTTP/1.1\r\ncontent-length: -1",
        b"GET / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2",
        b"GET / HTTP/1.1\r\ncontent-length: 9999999999999999999",
        b"GET / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked",
        b"GET / HTTP/1.1\r\ncontent-length: +1",
        b"GET / HTTP/1.1\r\ncontent-length: 1, 1",
        b"GET / HTTP/1.1\r\ncontent-length : 1",
        b"GET / HTTP/1.1\r\ntransfer-encoding: gzip",
        b"GET / HTTP/1.1\r\ntransfer-encoding: chunked, identity",
        b"GET / HTTP/1.1\r\ntransfer-encoding: \x0bchunked",
        b"GET / HTTP/1.0\r\ntransfer-encoding: chunked",
    ],
)
def test_a_head_that_is_not_clear_is_refused(raw: bytes):
    with pytest.raises(BadHead):
        parse_head(raw)
    served = serve()
    served.peer.send(raw + b"\r\n\r\n")
    status, headers, body = responses(served.peer.received())[0]
    assert (status, body) == (400, b"Bad format: command(bad-request) not support")
    assert headers["connection"] == "close"
    assert served.peer.closed


def request(number: int, ident: bytes, body: bytes = b"") -> bytes:
    head = b"GET / HTTP/1.1\r\ncmd: produce\r\nid: %b\r\nversion: %d\r\ncontent-length: %d\r\n\r\n"
    return head % (ident, number, len(body)) + body


def test_requests_that_differ_in_their_id_only_are_told_apart_from_those_that_do_not():
    ids = [
        b"1",
        b"2",
        b"3",
        b"",
        b"x" * 63,
        b"y" * 64,
        b"z" * 500,
        b" padded\t",
        "ä".encode(),
        b"4",
    ]
    odd = b"GET / HTTP/1.1\r\ncmd: produce\r\nid: 5\r\nversion: 1\r\nid: 6\r\ncontent-length: 0\r\n\r\n"
    data = b"".join(request(1, ident, b"ab") for ident in ids) + odd + request(1, b"7", b"ab")
    data += request(2, b"8") * 3 + request(1, b"9", b"\r\n\r\nid: 3\r\n")
    texts = [ident.strip().decode() for ident in ids]
    expected = [*((text, b"ab") for text in texts), ("6", b""), ("7", b"ab"), *([("8", b"")] * 3)]
    expected += [("9", b"\r\n\r\nid: 3\r\n")]
    for splits in (range(0), range(1, len(data)), range(1, len(data), 7)):
        served = serve()
        served.peer.send(data, splits)
        assert [(r.id, r.body) for r in served.echo.taken] == expected


def test_a_control_character_is_refused_in_an_id_of_a_head_that_is_known_too():
    served = serve()
    served.peer.send(request(1, b"1") + request(1, b"2") + request(1, b"3\nset-cookie: b"))
    assert [status for status, _, _ in responses(served.peer.received())] == [200, 200, 400]


def test_a_head_that_is_known_is_no_longer_than_others_may_be():
    served = serve(max_head=100)
    assert len(request(1, b"1" * 35)) - 4 == 100
    served.peer.send(request(1, b"1") + request(1, b"2") + request(1, b"3" * 36))
    assert [status for status, _, _ in responses(served.peer.received())] == [200, 200, 431]


def test_a_control_character_in_an_id_is_refused():
    served = serve()
    served.peer.send(b"GET / HTTP/1.1\r\ncmd: ping\r\nid: a\nset-cookie: b\r\n\r\n")
    assert responses(served.peer.received())[0][0] == 400


@pytest.mark.parametrize(
    "chunks",
    [
        b"x\r\n",
        b"-1\r\n",
        b"1\r\nab\r\n",
        b"a" * 5000,
        b"1_0\r\n",
        b"0x1\r\na\r\n",
        b"\x0b1\r\na\r\n",
        b"1\na\r\n",
        b"1\r\r\na\r\n",
        b"1;a\rb\r\na\r\n",
        b"1\r\na\n0\r\n",
        b"0\r\nt: u\n",
        b"0" * 17 + b"\r\n",
    ],
)
def test_bad_chunks_end_the_connection(chunks: bytes):
    served = serve()
    served.peer.send(b"POST /c HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n" + chunks)
    assert responses(served.peer.received())[0][0] == 400
    assert served.peer.closed


def test_chunks_over_the_limit_get_413():
    served = serve(max_body=10)
    served.peer.send(
        b"POST /c HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n8\r\n12345678\r\n8\r\n"
    )
    assert responses(served.peer.received())[0][0] == 413
    assert served.peer.closed


@pytest.mark.parametrize("mark", [b"", b"cmd: produce\r\nid: 1\r\n"])
def test_a_body_over_the_limit_gets_an_empty_413_and_the_next_request_is_served(mark: bytes):
    request = b"POST /c HTTP/1.1\r\n" + mark + b"content-length: 11\r\n\r\n" + b"x" * 11
    served = serve(max_body=10)
    served.peer.send(request + b"GET /next HTTP/1.1\r\n\r\n", range(1, len(request)))
    data = served.peer.received()
    assert data.startswith(b"HTTP/1.1 413 Request Entity Too Large\r\ncontent-length: 0\r\n\r\n")
    assert [b for _, _, b in responses(data)] == [b"", b"/next "]


def test_who_asks_before_sending_a_body_over_the_limit_gets_413_and_the_end():
    served = serve(max_body=10)
    head = b"POST /c HTTP/1.1\r\ncontent-length: 70\r\nexpect: 100-continue\r\n\r\n"
    # The body is not sent, and what follows must not be taken for it.
    served.peer.send(head + b"GET /next HTTP/1.1\r\n\r\n")
    ((status, headers, _),) = responses(served.peer.received())
    assert (status, headers["connection"]) == (413, "close")
    assert served.peer.closed
    assert served.parties == []


def test_the_application_is_told_what_was_passed_over():
    served = serve(max_body=10)
    served.peer.send(b"POST /c HTTP/1.1\r\ncmd: x\r\n\r\n")
    served.peer.send(
        b"POST /c HTTP/1.1\r\ncmd: x\r\nid: 7\r\ncontent-length: 11\r\n\r\n" + b"x" * 11
    )
    assert [request.id for request in served.echo.passed] == ["7"]
    assert len(served.echo.taken) == 1


def test_a_head_over_the_limit_gets_431():
    served = serve(max_head=100)
    served.peer.send(b"GET / HTTP/1.1\r\na: " + b"x" * 200)
    assert responses(served.peer.received())[0][0] == 431
    assert served.peer.closed


def test_too_many_headers_get_431():
    served = serve(max_headers=3)
    served.peer.send(b"GET / HTTP/1.1\r\na: 1\r\nb: 1\r\nc: 1\r\nd: 1\r\n\r\n")
    assert responses(served.peer.received())[0][0] == 431


@pytest.mark.parametrize(
    "start", [b"GET / HTTP/1.1\r\n", b"POST /x HTTP/1.1\r\ncontent-length: 9\r\n\r\nab"]
)
def test_a_request_that_does_not_come_in_time_gets_408(start: bytes):
    served = serve(request_timeout=30.0)
    served.peer.send(start)
    served.tick(29)
    assert not served.peer.closed
    served.tick(4)
    assert responses(served.peer.received())[0][0] == 408
    assert served.peer.closed


def test_dripping_a_head_does_not_buy_time_but_a_body_that_grows_does():
    served = serve(request_timeout=30.0)
    served.peer.send(b"GET / HTTP/1.1\r\na: ")
    for _ in range(40):
        served.peer.send(b"x")
        served.tick(1)
    assert served.peer.closed
    served = serve(request_timeout=30.0)
    served.peer.send(b"POST /x HTTP/1.1\r\ncontent-length: 99\r\n\r\n")
    for _ in range(40):
        served.peer.send(b"x")
        served.tick(1)
    assert not served.peer.closed


def test_a_busy_client_that_is_always_within_a_request_is_not_cut():
    served = serve(request_timeout=5.0)
    for _ in range(20):
        served.peer.send(b"GET / HTTP/1.1\r\ncmd: ping\r\nid: 1\r\n\r\nGET / HT")
        served.tick(1)
        served.peer.send(b"TP/1.1\r\ncmd: ping\r\nid: 2\r\n\r\n")
    assert not served.peer.closed
    assert len(served.echo.taken) == 40


def test_a_silent_connection_is_closed():
    served = serve(idle_timeout=300.0)
    served.peer.send(b"GET / HTTP/1.1\r\ncmd: ping\r\n\r\n")
    served.tick(299)
    assert not served.peer.closed
    served.tick(5)
    assert served.peer.closed


def test_too_many_waiting_requests_pause_reading_until_they_are_answered():
    served = serve(max_pipelined=4)
    served.peer.send(b"GET /x HTTP/1.1\r\nlater: 1\r\n\r\n" * 6)
    assert not served.peer.tap.reading
    for request in served.echo.taken:
        served.echo.reply(request)
    assert served.peer.tap.reading


def test_input_that_makes_no_whole_request_counts_as_held():
    served = serve()
    outbox = served.peer.connection.outbox
    served.peer.send(b"GET /x HTTP/1.1\r\ncontent-length: 1000\r\n\r\n" + b"x" * 600)
    assert outbox.held_bytes == 600
    served.peer.send(b"x" * 400 + b"GET /y")
    assert outbox.held_bytes == len(b"GET /y")
    served.peer.send(b" HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n200\r\n" + b"x" * 300)
    assert outbox.held_bytes == 300
    served.peer.send(b"x" * 212 + b"\r\n0\r\n\r\n")
    assert outbox.held_bytes == 0
    assert len(served.echo.taken) == 2


def test_an_answer_that_waits_for_the_one_before_it_counts_as_held():
    served = serve()
    served.peer.send(b"GET /x HTTP/1.1\r\nlater: 1\r\n\r\nGET /y HTTP/1.1\r\n\r\n")
    outbox = served.peer.connection.outbox
    assert outbox.held_bytes == len(served.echo.taken[1].answer or b"") > 0
    served.echo.reply(served.echo.taken[0])
    assert outbox.held_bytes == 0


def test_the_largest_holder_of_half_requests_is_cut_when_the_memory_is_spent():
    served = serve()
    budget = served.peer.connection.outbox._budget
    served.peer.send(b"GET /x HTTP/1.1\r\ncontent-length: 9000000\r\n\r\n" + b"x" * 5000)
    budget.limit = 4000
    served.tick(1)
    assert served.peer.closed


def test_the_application_hears_of_the_end_of_a_batch_and_of_the_connection():
    served = serve()
    served.peer.send(b"GET /x HTTP/1.1\r\n\r\n" * 3)
    assert served.echo.flushes == 1
    served.peer.send(b"GET /x HTTP/1.1\r\nalone: yes\r\n\r\n")
    assert served.echo.flushes == 1  # it has gathered nothing
    served.peer.hang_up()
    assert served.echo.ended == [None]


def test_parameters_are_decoded():
    served = serve()
    served.peer.send(b"GET /x?a=1%202&&b=c+d&a=3 HTTP/1.1\r\n\r\n")
    request: Request = served.echo.taken[0]
    assert request.parameters() == {"a": "3", "b": "c d"}


def test_http_is_told_by_its_methods():
    assert sniff(b"GET / HTTP/1.1") is True
    assert sniff(b"GE") is None
    assert sniff(b"P") is None
    assert sniff(b"GETX") is False
    assert sniff(b"\x00\x00\x00\x10") is False
