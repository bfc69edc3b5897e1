"""RPC over Zbus: calling methods of a topic, and serving the methods of an object (protocol page §8).

Invariant: every request gets one answer; an error of the service reaches the caller as `RpcError` with its text.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec

from polybus.errors import ServiceFailed
from polybus.protocols.zbus.bridge import error_text
from polybus.protocols.zbus.broker import Broker, Selector, most_consumers
from polybus.protocols.zbus.client import MqClient
from polybus.protocols.zbus.connection import MqError
from polybus.protocols.zbus.wire import JSON, Message

log = logging.getLogger("polybus.zbus.rpc")


class RpcError(ServiceFailed):
    """The service answered with an error; `value` is what it sent."""

    def __init__(self, value: Any) -> None:
        super().__init__(error_text(value))
        self.value = value


class RpcInvoker:
    """Calls methods of the service behind a topic: `await RpcInvoker(broker, "Calc").plus(1, 2)`."""

    def __init__(
        self,
        broker: Broker,
        topic: str,
        module: str = "",
        *,
        timeout: float = 10.0,
        selector: Selector = most_consumers,
    ) -> None:
        self._broker = broker
        self._topic = topic
        self._module = module
        self._timeout = timeout
        self._selector = selector

    async def invoke(self, method: str, *params: Any, module: str | None = None) -> Any:
        """Call a method.

        Raises:
            RpcError: what the service raised; MqError: nobody serves the topic; CallTimeout, NotReachable.
        """
        where = self._module if module is None else module
        request = {"method": method, "module": where, "params": list(params)}
        async with self._broker.client(self._topic, self._selector) as client:
            headers = {"cmd": "produce", "topic": self._topic, "ack": "0"}
            if client.token:
                headers["token"] = client.token
            body = msgspec.json.encode(request)
            answer = await client.connection.invoke(headers, body, self._timeout)
        return unwrap(answer)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)

        async def call(*params: Any) -> Any:
            return await self.invoke(name, *params)

        return call


def unwrap(answer: Message) -> Any:
    """The result of a response of any dialect.

    Raises:
        RpcError, MqError.
    """
    if answer.status == 600:
        raise RpcError(answer.text)
    if answer.status != 200:
        raise MqError(answer)
    try:
        response = msgspec.json.decode(answer.body) if answer.body else None
    except msgspec.DecodeError:
        return answer.text
    if isinstance(response, dict) and response.keys() & {"result", "error"}:
        if response.get("error") is not None:
            raise RpcError(response["error"])
        return response.get("result")
    return response


class RpcProcessor:
    """Serves the public methods of objects; give `handle` to a Consumer of a topic with the rpc bit.

    Arguments that come as texts, as they do from a URL, are converted by the annotations of the method.
    """

    def __init__(self, *services: object) -> None:
        self._methods: dict[tuple[str, str], Callable[..., Any]] = {}
        for service in services:
            self.add_module(service)

    def add_module(self, service: object, module: str = "") -> None:
        """Serve an object under a module name, and under its class name as the original does."""
        for name, method in inspect.getmembers(service, callable):
            if not name.startswith("_"):
                self._methods[module, name] = method
                if not module:
                    self._methods[type(service).__name__, name] = method

    async def handle(self, message: Message, client: MqClient) -> None:
        """Answer one request."""
        client.route(message, await self.answer(message.body), headers=JSON)

    async def answer(self, body: bytes) -> bytes:
        """The response to a request."""
        try:
            request = msgspec.json.decode(body)
            method = request.get("method") or ""
            module = request.get("module") or ""
            if not method:
                return _result(sorted(name for where, name in self._methods if where == module))
            found = self._methods.get((module, method))
            if found is None:
                raise LookupError(f"{module}:{method} not found")
            value = found(*convert(found, request.get("params") or []))
            if inspect.isawaitable(value):
                value = await value
            return _result(value)
        except Exception as exc:
            # Whatever the served object raises is the caller's to know, and must not end the service.
            log.info("a call failed: %s", exc)
            return msgspec.json.encode({"error": f"{type(exc).__name__}: {exc}", "result": None})


def convert(method: Callable[..., Any], params: list[Any]) -> list[Any]:
    """Parameters as the method's annotations want them, where they came as texts."""
    try:
        hints = get_type_hints(method)
        names = list(inspect.signature(method).parameters)
    except (TypeError, ValueError, NameError):
        return params
    wanted = [hints.get(names[at]) if at < len(names) else None for at in range(len(params))]
    return [_convert(value, hint) for value, hint in zip(params, wanted, strict=True)]


def _convert(value: Any, hint: Any) -> Any:
    if not isinstance(value, str) or hint is None or hint is str or hint is Any:
        return value
    return msgspec.convert(value, hint, strict=False)


def _result(value: Any) -> bytes:
    return msgspec.json.encode({"error": None, "result": value})
