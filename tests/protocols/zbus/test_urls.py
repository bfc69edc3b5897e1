"""What a URL asks for, in all dialects."""

from __future__ import annotations

import pytest

from polybus.http.head import parse_head
from polybus.protocols.zbus.urls import Command, resolve


def asked(url: str, *headers: str, body: bool = False, rpc: str = "", module_first: bool = False):
    raw = "\r\n".join([f"GET {url} HTTP/1.1", *headers]).encode()
    return resolve(parse_head(raw), body, lambda topic: topic == rpc, module_first=module_first)


@pytest.mark.parametrize(
    ("url", "name", "headers"),
    [
        ("/", "home", {}),
        ("/query", "query", {}),
        ("/query/", "query", {}),
        ("/QUERY/T", "query", {"topic": "T"}),
        ("/produce/T", "produce", {"topic": "T"}),
        ("/consume/T/g", "consume", {"topic": "T", "consume_group": "g"}),
        ("//consume//T//g//", "consume", {"topic": "T", "consume_group": "g"}),
        ("/declare/T/g?group_filter=a.b&&Group_Mask=4", "declare",
         {"topic": "T", "consume_group": "g", "group_filter": "a.b", "group_mask": "4"}),
        ("/consume/T?group=g", "consume", {"topic": "T", "consume_group": "g"}),
        ("/consume/T/path?consume_group=g", "consume", {"topic": "T", "consume_group": "path"}),
        ("/produce/a%20b?body=c%20d", "produce", {"topic": "a%20b", "body": "c%20d"}),
        ("/tracker/x", "tracker", {}),
        ("/track_sub", "track_sub", {}),
        ("/js/a.js", "file", {}),
        ("/favicon.ico", "file", {}),
        ("/T", "produce", {"topic": "T"}),
        ("/T/g", "produce", {"topic": "T", "consume_group": "g"}),
        ("/T/g?cmd=consume", "consume", {"topic": "T", "consume_group": "g"}),
        ("/?cmd=query", "query", {}),
        ("/?cmd=Query&topic=T", "query", {"topic": "T"}),
        ("/consume?cmd=query", "query", {"topic": "consume"}),
    ],
)  # fmt: skip
def test_every_form_of_the_documentation(url: str, name: str, headers: dict[str, str]):
    command = asked(url)
    assert (command.name, command.headers) == (name, headers)


def test_headers_win_over_the_url_key_by_key():
    command = asked("/consume/T/g?tag=u&x=y", "topic: H", "tag: h")
    assert command.headers == {"topic": "H", "consume_group": "g", "tag": "h", "x": "y"}


def test_a_cmd_header_means_that_the_url_is_not_looked_at():
    command = asked("/remove/T?topic=X", "cmd: Query", "topic: H")
    assert command == Command("query", {"topic": "H"})


def test_an_rpc_url_becomes_a_request_and_keeps_appid_and_token():
    command = asked("/rpc/T/plus/1/2?module=M&&appid=me&&token=t&&other=x")
    assert command.name == "produce"
    assert command.headers == {"appid": "me", "token": "t", "ack": "0", "topic": "T"}
    assert command.body == b'{"method":"plus","module":"M","paramTypes":null,"params":["1","2"]}'


def test_an_rpc_url_without_a_method_has_no_topic():
    assert asked("/rpc/T") == Command("produce", {"ack": "0"})


def test_an_rpc_url_with_a_body_is_the_command_rpc():
    assert asked("/rpc/T", body=True) == Command("rpc", {"topic": "T"})


def test_a_url_of_an_rpc_topic_calls_it_in_the_later_dialects():
    command = asked("/T/plus/1?module=M", rpc="T")
    assert command.body == b'{"method":"plus","module":"M","paramTypes":null,"params":["1"]}'
    command = asked("/T/M/plus/1", rpc="T", module_first=True)
    assert command.body == b'{"method":"plus","module":"M","paramTypes":null,"params":["1"]}'
    assert asked("/T/g", rpc="T", body=True).body is None
