"""The small parts: messages, masks, filters, tokens, names and payloads of the bridge, the route table."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.errors import ConfigError, InvalidName, RemoteProtocolError
from polybus.model.message import Call, Reply, Status
from polybus.protocols.zbus.bridge import (
    error_text,
    unwrap_call,
    unwrap_result,
    wrap_call,
    wrap_result,
)
from polybus.protocols.zbus.filters import parse_0_8, parse_0_9
from polybus.protocols.zbus.masks import parse_mask
from polybus.protocols.zbus.names import from_shared, to_shared
from polybus.protocols.zbus.route_table import BrokerRouteTable
from polybus.protocols.zbus.tokens import Tokens, parse_rule, token_of
from polybus.protocols.zbus.wire import (
    Message,
    MessageReader,
    encode_reply,
    encode_request,
    header_text,
)

# -- messages -----------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.binary(max_size=50), st.integers(100, 999)), max_size=5), st.data())
def test_messages_are_read_back_in_any_split(bodies: list[tuple[bytes, int]], data: st.DataObject):
    raw = b"".join(encode_reply(status, {"id": "1"}, body) for body, status in bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=5)))
    reader = MessageReader()
    found: list[Message] = []
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        found += reader.feed(raw[start:end])
    assert [(m.body, m.status) for m in found] == bodies


def test_requests_are_read_as_well():
    (message,) = MessageReader().feed(encode_request({"cmd": "ping"}, b"x", url="/a"))
    assert (message.status, message.url, message.method, message.get("cmd")) == (
        0,
        "/a",
        "GET",
        "ping",
    )
    assert message.id == ""


@pytest.mark.parametrize(
    "raw",
    [b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200\r\nno colon\r\n\r\n", b"x" * (2 << 20),
     b"HTTP/1.1 200\r\ncontent-length: x\r\n\r\n", b"HTTP/1.1 200\r\ncontent-length: 99\r\n\r\n"],
)  # fmt: skip
def test_what_is_no_message_is_refused(raw: bytes):
    with pytest.raises(RemoteProtocolError):
        MessageReader(max_bytes=10).feed(raw)


def test_headers_of_other_wires_cannot_break_a_line():
    text = header_text({"A b": "x\r\ny: z\x00", "ok": "v"})
    assert text == "a-b: x y: z \r\nok: v\r\n"


# -- masks --------------------------------------------------------------------------------------------------------


def test_a_mask_is_a_number_of_32_bits():
    assert [parse_mask(text) for text in ("0", "-1", "64")] == [0, -1, 64]
    for text in ("", "x", "1.5", "²", str(1 << 31)):
        with pytest.raises(ValueError, match=f'For input string: "{text}"'):
            parse_mask(text)


# -- filters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tag", "old", "new"),
    [
        ("abc", "abc", True, True),
        ("abc", "abd", False, False),
        ("abc", "", False, False),
        ("a.b", "a", False, False),
        ("a.+", "a.b", True, True),
        ("a.+", "a.b.c", False, False),
        ("a.*", "a.b", True, True),
        ("a.*", "a.b.c", True, False),
        ("a.*", "a", False, False),
        ("*", "x.y", True, False),
        ("a.#", "a", True, True),
        ("a.#", "a.b.c", True, True),
        ("#", "anything.at.all", True, True),
        ("#", "", False, False),
        ("a;b", "b", True, True),
        ("a;b.+", "b.c", True, True),
        ("a;b", "c", False, False),
        ("a*", "ab", False, False),
    ],
)
def test_filters_of_both_dialects(text: str, tag: str, old: bool, new: bool):
    assert parse_0_8(text)(tag) is old
    assert parse_0_9(text)(tag) is new


def test_a_filter_remembers_a_bounded_number_of_tags():
    passes = parse_0_8("a.+")
    assert all(passes(f"a.{number}") for number in range(3000))
    assert passes("a.0")


def test_a_filter_is_at_most_127_bytes():
    with pytest.raises(InvalidName):
        parse_0_8("x" * 128)


# -- tokens -------------------------------------------------------------------------------------------------------


def test_tokens_allow_what_their_rule_says_and_nothing_else():
    tokens = Tokens(("admin: *", "shop: produce, consume on Orders, stock/shop", ": query"))
    assert tokens
    assert tokens.may("admin", "remove", "any")
    assert tokens.may("shop", "produce", "orders")
    assert tokens.may("shop", "consume", "Stock", "shop")
    assert not tokens.may("shop", "consume", "Stock", "other")
    assert not tokens.may("shop", "remove", "orders")
    assert tokens.may("", "query")
    assert not tokens.may("unknown", "query")
    assert tokens.may("unknown", "heartbeat")
    assert tokens.shows("shop", "stock")
    assert not tokens.shows("shop", "other")
    assert not tokens.shows("unknown", "orders")


def test_without_rules_everybody_may_do_everything():
    assert not Tokens()
    assert Tokens().may("", "remove", "T")
    assert Tokens().shows("", "T")


def test_bad_rules_are_refused():
    for line in ("no colon", "token:", "token:  on T"):
        with pytest.raises(ConfigError):
            parse_rule(line)
    with pytest.raises(ConfigError):
        Tokens(("a: *", "a: query"))


def test_a_token_comes_from_the_header_or_the_cookie():
    assert token_of({"token": "h", "cookie": "token=c"}) == "h"
    assert token_of({"cookie": "a=b; token=c"}) == "c"
    assert token_of({"cookie": "a=b"}) == ""


# -- the bridge ---------------------------------------------------------------------------------------------------


def test_names_cross_both_ways():
    assert to_shared("a", "b", "c") == "a/b/c"
    assert to_shared("a", "", "c") == "a/c"
    assert to_shared("a") == "a"
    assert to_shared("a*", "", "**") is None
    assert from_shared("a/b/c", "a") == ("b", "c")
    assert from_shared("a/c", "a") == ("", "c")
    assert from_shared("a", "a") == ("", "")
    assert from_shared("a/b/c/d", "a") is None


@pytest.mark.parametrize(
    ("payload", "params"),
    [
        (b"", b"[]"),
        (b"[1,2]", b"[1,2]"),
        (b'{"a":1}', b'[{"a":1}]'),
        (b"text", b'["text"]'),
        (b"\xff\x00", b'[{"$base64":"/wA="}]'),
    ],
)
def test_payloads_are_wrapped_as_the_design_says(payload: bytes, params: bytes):
    assert wrap_call("b", "c", payload) == b'{"method":"c","module":"b","params":' + params + b"}"


def test_a_request_to_the_topic_itself_is_passed_on():
    body = b'{"method":"plus","params":[1,2]}'
    assert wrap_call("", "", body) == body


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"method":"c","module":"b","params":[1]}', ("b", "c", b"1")),
        (b'{"method":"c","params":[1,2]}', ("", "c", b"[1,2]")),
        (b'{"method":"c"}', ("", "c", b"")),
        (b'{"method":"c","params":7}', ("", "c", b"7")),
        (b'{"method":"c","params":[{"$base64":"/wA="}]}', ("", "c", b"\xff\x00")),
        (b'{"method":"c","params":[{"$base64":"!"}]}', ("", "c", b'{"$base64":"!"}')),
        (b'{"method":1}', None),
        (b"[1]", None),
        (b"{", None),
    ],
)
def test_requests_are_unwrapped(body: bytes, found: Any):
    assert unwrap_call(body) == found


def test_results_and_errors_cross_both_ways():
    call = Call(None, "n", b"")
    assert wrap_result(Reply(call, b"[1]")) == (200, b'{"result":[1]}')
    assert wrap_result(Reply(call, b"boom", Status.FAILED)) == (200, b'{"error":"boom"}')
    assert wrap_result(Reply(call, b"gone", Status.GONE)) == (502, b"502: gone")
    assert unwrap_result(200, b'{"error":null,"result":3}') == (False, b"3")
    assert unwrap_result(200, b'{"error":{"message":"m"}}') == (True, b"m")
    assert unwrap_result(200, b'{"error":{"x":1}}') == (True, b'{"x":1}')
    assert unwrap_result(200, b"plain") == (False, b"plain")
    assert unwrap_result(200, b"7") == (False, b"7")
    assert unwrap_result(600, b"bad") == (True, b"bad")
    assert error_text("x") == "x"


# -- the route table ----------------------------------------------------------------------------------------------


def server(address: str, version: int, *topics: str) -> dict[str, Any]:
    where = {"address": address, "sslEnabled": False}
    table = {name: {"topicName": name, "serverAddress": where} for name in topics}
    return {"serverAddress": where, "infoVersion": version, "topicTable": table}


def tracker(address: str, version: int, *servers: dict[str, Any]) -> dict[str, Any]:
    return {
        "serverAddress": {"address": address, "sslEnabled": False},
        "infoVersion": version,
        "serverTable": {info["serverAddress"]["address"]: info for info in servers},
    }


def test_update_votes_step_1_takes_the_trackers_vote_and_ignores_what_is_not_newer():
    table = BrokerRouteTable()
    assert table.update_votes(tracker("t1", 5, server("a", 1))) == []
    assert table.votes_table["t1"].servers == ["a"]
    assert table.update_votes(tracker("t1", 5)) == []
    assert table.update_votes(tracker("t1", 4)) == []
    assert list(table.server_table) == ["a"]


def test_update_votes_step_2_takes_over_what_is_newer_about_a_server():
    table = BrokerRouteTable()
    table.update_votes(tracker("t1", 1, server("a", 5, "new")))
    table.update_votes(tracker("t2", 1, server("a", 4, "old")))
    assert list(table.topic_table) == ["new"]
    table.update_votes(tracker("t2", 2, server("a", 6, "newer")))
    assert list(table.topic_table) == ["newer"]


def test_update_votes_step_3_drops_servers_with_too_few_votes_and_rebuilds_the_topics():
    table = BrokerRouteTable()
    table.update_votes(tracker("t1", 1, server("a", 1, "T"), server("b", 1, "T")))
    table.update_votes(tracker("t2", 1, server("a", 1, "T")))
    assert len(table.topic_table["T"]) == 2  # one of two is half
    table.update_votes(tracker("t3", 1, server("a", 1, "T")))
    assert list(table.server_table) == ["a"]
    assert len(table.topic_table["T"]) == 1
    assert table.update_votes(tracker("t1", 2, server("a", 1, "T"))) == []


def test_a_vote_that_is_taken_back_removes_the_server():
    table = BrokerRouteTable()
    table.update_votes(tracker("t1", 1, server("a", 1, "T")))
    assert table.update_votes(tracker("t1", 2)) == ["a"]
    assert table.topic_table == {}


def test_a_tracker_that_is_lost_no_longer_votes_but_still_counts():
    table = BrokerRouteTable()
    table.update_votes(tracker("t1", 1, server("a", 1)))
    table.update_votes(tracker("t2", 1, server("a", 1)))
    assert table.remove_tracker("t1") == []
    assert table.remove_tracker("t2") == ["a"]


def test_the_share_that_keeps_a_server_can_be_set():
    table = BrokerRouteTable(share=1.0)
    table.update_votes(tracker("t1", 1, server("a", 1)))
    assert table.update_votes(tracker("t2", 1)) == ["a"]


def test_servers_added_by_hand_need_no_votes():
    table = BrokerRouteTable()
    table.add_server(server("x", 1, "T"))
    table.update_votes(tracker("t1", 1))
    assert list(table.topic_table) == ["T"]
    table.remove_server("x")
    assert table.server_table == {}
    assert table.topic_table == {}
