"""The Zbus client that its users know: produce, consume, declare, query, remove, empty on one server.

Invariant: a method returns what the server confirmed, or raises; nothing is retried behind the caller's back.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from polybus.errors import CallTimeout
from polybus.protocols.zbus.connection import MqError, OnMessage, ZbusConnection, open_connection
from polybus.protocols.zbus.wire import Message

_DECLARED: Final = {
    "mask": "topic_mask",
    "group_mask": "group_mask",
    "filter": "group_filter",
    "start_copy": "group_start_copy",
    "start_offset": "group_start_offset",
    "start_msgid": "group_start_msgid",
    "start_time": "group_start_time",
    "ack_window": "group_ack_window",
    "ack_timeout": "group_ack_timeout",
}


class MqClient:
    """One connection to one server: `async with await MqClient.connect("localhost:15555") as client`."""

    def __init__(self, connection: ZbusConnection, token: str = "", timeout: float = 10.0) -> None:
        self.connection = connection
        self.token = token
        self.timeout = timeout

    @classmethod
    async def connect(
        cls,
        address: str = "localhost:15555",
        *,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        timeout: float = 10.0,
    ) -> Self:
        """Connect.

        Args:
            address: `host:port`; `[SSL]host:port` or a `tls` context for TLS.
            timeout: for every answer except that of a consume.

        Raises:
            PeerUnavailable.
        """
        return cls(await open_connection(address, tls, timeout), token, timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection."""
        await self.connection.close()

    @property
    def closed(self) -> bool:
        """Whether the connection is over."""
        return self.connection.closed.is_set()

    # -- messages ---------------------------------------------------------------------------------------------

    async def produce(
        self,
        topic: str,
        body: bytes | str = b"",
        *,
        tag: str = "",
        id: str = "",
        ack: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> Message | None:
        """Send a message to a topic; returns once the server has it safe, or at once (None) without `ack`.

        Raises:
            MqError: the topic does not exist, or the server refused; CallTimeout, ConnectionLost.
        """
        asked = self._headers("produce", topic, dict(headers or {}), tag=tag, id=id)
        payload = body.encode() if isinstance(body, str) else body
        if not ack:
            self.connection.send({**asked, "ack": "0"}, payload)
            return None
        return _good(await self.connection.invoke(asked, payload, self.timeout))

    async def consume(
        self,
        topic: str,
        group: str = "",
        *,
        window: int = 0,
        several: bool = False,
        timeout: float | None = None,
    ) -> Message:
        """Wait for the next message of a group; the next consume confirms this one.

        Args:
            several: let this consume wait beside others of this connection, instead of replacing them.

        Raises:
            MqError, CallTimeout, ConnectionLost.
        """
        extra = {"consume_window": str(window)} if window else {}
        if several:
            extra["consume_several"] = "1"
        asked = self._headers("consume", topic, extra, consume_group=group)
        waiting = self.connection.ask(asked)
        try:
            async with asyncio.timeout(timeout):
                return _good(await waiting)
        except TimeoutError as exc:
            raise CallTimeout(f"no message on {topic} within {timeout} s") from exc

    async def unconsume(self, topic: str, group: str = "") -> None:
        """Take back a consume that still waits."""
        await self._done("unconsume", topic, consume_group=group)

    async def ack(self, message: Message, group: str = "") -> None:
        """Confirm a message of a group that requires it."""
        topic, offset = message.get("topic"), message.get("offset")
        await self._done("ack", topic, consume_group=group, offset=offset)

    async def read(self, topic: str, offset: int) -> Message:
        """One message by its offset, whatever the groups have done with it."""
        asked = self._headers("consume", topic, {}, offset=str(offset))
        return _good(await self.connection.invoke(asked, timeout=self.timeout))

    def route(
        self,
        request: Message,
        body: bytes,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Answer a request that was consumed from an RPC topic."""
        asked = self._headers("route", request.get("topic"), dict(headers or {}))
        asked |= {
            "ack": "0",
            "recver": request.get("sender"),
            "id": request.get("origin_id"),
            "origin_status": str(status),
        }
        self.connection.send(asked, body)

    # -- administration ---------------------------------------------------------------------------------------

    async def declare(
        self, topic: str, group: str = "", **policy: str | int | None
    ) -> dict[str, Any]:
        """Create a topic (and group), or change the policy of existing ones.

        Args:
            policy: `mask` of the topic, `group_mask`, `filter`, `start_copy`, `start_offset` and `start_msgid`,
                `start_time` (ms), `ack_window`, `ack_timeout` (ms).

        Returns:
            ConsumeGroupInfo when a group is named, else TopicInfo.
        """
        unknown = sorted(policy.keys() - _DECLARED.keys())
        if unknown:
            raise TypeError(f"declare() has no option {unknown[0]!r}")
        extra = {_DECLARED[name]: str(value) for name, value in policy.items() if value is not None}
        return await self._info("declare", topic, extra, consume_group=group)

    async def query(self, topic: str = "", group: str = "") -> dict[str, Any]:
        """ServerInfo, TopicInfo or ConsumeGroupInfo."""
        # The 0.9 servers take a query without a topic for a bad one; `server` asks the same everywhere.
        return await self._info("query" if topic else "server", topic, {}, consume_group=group)

    async def tracker_info(self) -> dict[str, Any]:
        """TrackerInfo: the servers that this one knows."""
        return await self._info("tracker", "", {})

    async def remove(self, topic: str, group: str = "") -> None:
        """Remove a group, or a topic with all it holds."""
        await self._done("remove", topic, consume_group=group)

    async def empty(self, topic: str, group: str = "") -> None:
        """Empty a topic, or move a group to its end."""
        await self._done("empty", topic, consume_group=group)

    async def ping(self) -> int:
        """The server's time in milliseconds."""
        asked = self._headers("ping", "", {})
        return int(_good(await self.connection.invoke(asked, timeout=self.timeout)).text)

    def subscribe_tracker(self, on_message: OnMessage) -> None:
        """Be told of the tracked servers, now and at every change."""
        self.connection.on_message = on_message
        self.connection.send(self._headers("track_sub", "", {}))

    # -- parts ------------------------------------------------------------------------------------------------

    def _headers(self, cmd: str, topic: str, extra: dict[str, str], **more: str) -> dict[str, str]:
        named = {"topic": topic, "token": self.token, **more}
        return {"cmd": cmd, **extra, **{name: value for name, value in named.items() if value}}

    async def _done(self, cmd: str, topic: str, **more: str) -> None:
        asked = self._headers(cmd, topic, {}, **more)
        _good(await self.connection.invoke(asked, timeout=self.timeout))

    async def _info(
        self, cmd: str, topic: str, extra: dict[str, str], **more: str
    ) -> dict[str, Any]:
        asked = self._headers(cmd, topic, extra, **more)
        answer = _good(await self.connection.invoke(asked, timeout=self.timeout))
        info: dict[str, Any] = msgspec.json.decode(answer.body)
        return info


def _good(message: Message) -> Message:
    if message.status != 200:
        raise MqError(message)
    return message
