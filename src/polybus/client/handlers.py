"""Turning a plain function into a handler of calls by its annotations.

Invariant: how a function is called is decided once, when it is registered; a function that cannot be called with one
body is refused then and not at its first call.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from polybus.client.message import Message, decode_payload, encode_payload
from polybus.errors import LocalProtocolError, Refused, RemoteProtocolError

Outcome = bytes | Awaitable[bytes] | AsyncIterator[bytes]
LinkHandler = Callable[[str, bytes, Mapping[str, str]], Outcome]
"""A handler as the wires' clients want it: name, payload and headers in, the reply out."""


def wrap(function: Callable[..., Any]) -> LinkHandler:
    """A handler that decodes the body for `function` and encodes what it returns.

    Without parameters it is just called; with one, its annotation decides: `bytes` or nothing gets the body untouched,
    `Message` gets name and headers too, any other type gets the body decoded from JSON.

    Raises:
        LocalProtocolError: it asks for more than one parameter.
    """
    argument = _argument(function)
    if inspect.isasyncgenfunction(function):

        def handle(name: str, payload: bytes, headers: Mapping[str, str]) -> Outcome:
            return _encode_parts(function(*argument(name, payload, headers)))

    else:

        def handle(name: str, payload: bytes, headers: Mapping[str, str]) -> Outcome:
            result = function(*argument(name, payload, headers))
            # A callable object or a partial may be async without looking it.
            if inspect.isawaitable(result):
                return _encode_later(result)
            if isinstance(result, AsyncIterator):
                return _encode_parts(result)
            return encode_payload(result)

    return handle


def _argument(
    function: Callable[..., Any],
) -> Callable[[str, bytes, Mapping[str, str]], tuple[Any, ...]]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as exc:
        raise LocalProtocolError(f"{function!r} cannot be a handler: {exc}") from exc
    wanted = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
    ]
    if len(wanted) > 1:
        names = ", ".join(parameter.name for parameter in wanted)
        raise LocalProtocolError(
            f"a handler takes one parameter, the body; this one asks for {names}"
        )
    if not wanted:
        return lambda name, payload, headers: ()
    kind = _annotation(function, wanted[0])
    if kind is Message:
        return lambda name, payload, headers: (Message(name, payload, headers),)
    if kind is None or kind is bytes:
        return lambda name, payload, headers: (payload,)
    return lambda name, payload, headers: (_decode(payload, kind, name),)


def _annotation(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    if parameter.annotation is parameter.empty:
        return None
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    target: Any = function
    if not inspect.isroutine(function):  # a partial, or an object that can be called
        target = getattr(function, "func", None) or type(function).__call__
    try:
        return typing.get_type_hints(target)[parameter.name]
    except NameError as exc:
        raise LocalProtocolError(
            f"the annotation of {parameter.name!r} cannot be resolved: {exc}"
        ) from exc


def _decode(payload: bytes, kind: Any, name: str) -> Any:
    try:
        return decode_payload(payload, kind, name)
    except RemoteProtocolError as exc:
        raise Refused(f"the body does not fit: {exc.__cause__}") from exc


async def _encode_later(result: Awaitable[Any]) -> bytes:
    return encode_payload(await result)


async def _encode_parts(parts: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    async for part in parts:
        yield encode_payload(part)
