"""Addresses as URLs."""

from __future__ import annotations

import pytest

from polybus.errors import ConfigError
from polybus.transports.url import Address, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp://127.0.0.1:15555", Address("tcp", "127.0.0.1", 15555)),
        ("tcp://127.0.0.1", Address("tcp", "127.0.0.1", 15555)),
        ("tcp://127.0.0.1:0", Address("tcp", "127.0.0.1", 0)),
        ("tcp://[::1]:80", Address("tcp", "::1", 80)),
        ("gsb+tcp://0.0.0.0:7464", Address("tcp", "0.0.0.0", 7464, pin="gsb")),
        ("unix:/run/x.sock", Address("unix", path="/run/x.sock")),
        ("unix:///run/x.sock", Address("unix", path="/run/x.sock")),
        ("t2+unix:///run/a+b", Address("unix", path="/run/a+b", pin="t2")),
        ("unix:/run/a+b", Address("unix", path="/run/a+b")),
        (
            "tls://h:1?cert=c.pem&key=k.pem",
            Address("tls", "h", 1, options={"cert": "c.pem", "key": "k.pem"}),
        ),
    ],
)
def test_addresses_are_parsed(text, address):
    parsed = parse_address(text)
    assert parsed == address
    assert parsed.options == address.options
    assert parse_address(str(parsed)) == Address(
        parsed.scheme, parsed.host, parsed.port, parsed.path, parsed.pin
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "begins with none"),
        ("127.0.0.1:80", "begins with none"),
        ("http://x", "begins with none"),
        ("tcp://:80", "no host"),
        ("tcp://h:port", "port"),
        ("tcp://h:99999", "ort"),
        ("tcp://h:1/path", "nothing but"),
        ("tcp://u@h:1", "nothing but"),
        ("tls://h:1?cret=x", "unknown option 'cret'"),
        ("unix:relative", "absolute"),
        ("unix://", "absolute"),
    ],
)
def test_a_bad_address_is_one_clear_error(text, reason):
    with pytest.raises(ConfigError) as refused:
        parse_address(text)
    assert reason in refused.value.text
    assert repr(text) in refused.value.text


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        ("8080", "tcp://127.0.0.1:8080"),
        ("127.0.0.1:8080", "tcp://127.0.0.1:8080"),
        ("http://node.example:8080/", "tcp://node.example:8080"),
        ("[::1]:80", "tcp://[::1]:80"),
        ("nowhere", None),
        ("ftp://127.0.0.1:21", None),
        ("http://127.0.0.1:80/path", None),
    ],
)
def test_what_only_lacks_its_scheme_is_answered_with_a_suggestion(text, suggestion):
    with pytest.raises(ConfigError) as refused:
        parse_address(text)
    _, asked, end = refused.value.text.partition("; did you mean ")
    assert (end if asked else None) == (f"{suggestion}?" if suggestion else None)
