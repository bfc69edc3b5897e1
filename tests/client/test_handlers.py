"""How plain functions become handlers."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import msgspec
import pytest

from polybus.client.handlers import wrap
from polybus.client.message import Message, decode_payload, encode_payload
from polybus.errors import LocalProtocolError, Refused, RemoteProtocolError


class Point(msgspec.Struct):
    x: int
    y: int = 0


async def answer(function: Any, payload: bytes = b"", **headers: str) -> Any:
    outcome = wrap(function)("a/b", payload, headers)
    if isinstance(outcome, AsyncIterator):
        return [part async for part in outcome]
    return await outcome if isinstance(outcome, Awaitable) else outcome


class Callable_:
    async def __call__(self, body: Point) -> int:
        return body.x


def two(first: int, second: int) -> int:
    return first + second


@pytest.mark.parametrize(
    ("function", "payload", "reply"),
    [
        (lambda: b"none", b"ignored", b"none"),
        (lambda body: body, b"\x00\xff", b"\x00\xff"),
        (lambda: None, b"", b""),
        (lambda: bytearray(b"ba"), b"", b"ba"),
        (lambda: {"a": [1, None]}, b"", b'{"a":[1,null]}'),
        (lambda: "text", b"", b'"text"'),
        (Callable_(), b'{"x":5}', b"5"),
        (functools.partial(two, 2), b"3", b"5"),
    ],
)
async def test_what_a_function_takes_and_gives(function, payload: bytes, reply: bytes):
    assert await answer(function, payload) == reply


async def test_an_annotation_decides_how_the_body_is_decoded():
    def typed(point: Point) -> Point:
        return Point(point.y, point.x)

    def raw(body: bytes) -> bytes:
        return body

    async def whole(message: Message) -> list[str]:
        return [message.name, message.headers["h"], message.decode(str)]

    async def parts(most: int):
        for number in range(most):
            yield number

    assert await answer(typed, b'{"x":1,"y":2,"new":3}') == b'{"x":2,"y":1}'
    assert await answer(raw, b"{") == b"{"
    assert await answer(whole, b'"body"', h="v") == b'["a/b","v","body"]'
    assert await answer(parts, b"3") == [b"0", b"1", b"2"]


async def test_parameters_with_defaults_are_left_alone():
    def handler(body: int, scale: int = 2) -> int:
        return body * scale

    assert await answer(handler, b"3") == b"6"


@pytest.mark.parametrize("payload", [b"", b"[]", b'{"x":"1"}', b"\xff", b'{"x":1'])
async def test_a_body_that_does_not_fit_is_refused(payload: bytes):
    def handler(point: Point) -> None:
        raise AssertionError("never called")

    with pytest.raises(Refused, match="the body does not fit"):
        await answer(handler, payload)


def test_what_cannot_take_one_body_is_refused_at_once():
    def unknown(body: Unheard) -> None:  # type: ignore[name-defined]  # noqa: F821
        pass

    with pytest.raises(LocalProtocolError, match="first, second"):
        wrap(two)
    with pytest.raises(LocalProtocolError, match="cannot be resolved"):
        wrap(unknown)
    with pytest.raises(LocalProtocolError, match="cannot be a handler"):
        wrap(type)


def test_a_value_that_json_has_no_form_for_is_refused():
    with pytest.raises(LocalProtocolError, match="object cannot be sent"):
        encode_payload(object())


def test_a_reply_of_another_shape_names_the_type():
    with pytest.raises(RemoteProtocolError, match="a/b sent something that is no int"):
        decode_payload(b'"x"', int, "a/b")
    with pytest.raises(RemoteProtocolError, match="list"):
        decode_payload(b"{}", list[int], "a/b")
    assert decode_payload(b"", type(None), "a/b") is None
    assert decode_payload(b"x", bytes, "a/b") == b"x"
