"""The client's side of one T2 connection: numbers what it sends and gives what comes to whoever waits for it.

Invariant: every question ends: with its Ack, its response, or `ConnectionLost`; a message that nobody here asked for
is ignored.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Literal

from polybus.core.subscriptions import Subscriptions
from polybus.errors import (
    AckTimeout,
    CallTimeout,
    Conflict,
    ConnectionLost,
    InvalidName,
    LimitExceeded,
    NameTaken,
    NoSuchService,
    PolybusError,
    Refused,
    RemoteProtocolError,
    ServiceFailed,
)
from polybus.protocols.t2.topics import MATCHING
from polybus.protocols.t2.wire import (
    MAX_BODY,
    OK,
    SERVER_KINDS,
    BusError,
    Message,
    encode_frame,
    frame_length,
    parse_message,
    topic_content,
    unit_content,
)
from polybus.transports.outbox import Outbox
from polybus.transports.pieces import Pieces

ACK_TIMEOUT: Final = 5.0  # protocol page §3
MAX_WAITING_BYTES: Final = 64 * 1024 * 1024  # of one subscription that its program has not taken
MESSAGE_COST: Final = 400  # bytes that an empty message takes here


class Inbox:
    """What came for one subscription or claim and was not taken yet; beyond the bound it is dropped and counted."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.dropped = 0
        self._waiting: deque[Message] = deque()
        self._bytes = 0
        self._change = asyncio.Event()
        self._end: PolybusError | None = None

    def put(self, message: Message) -> None:
        size = len(message.data) + MESSAGE_COST
        if self._bytes + size > MAX_WAITING_BYTES:
            self.dropped += 1
            return
        self._bytes += size
        self._waiting.append(message)
        self._change.set()

    def end(self, error: PolybusError) -> None:
        """Nothing more will come; what is there can still be taken."""
        if self._end is None:
            self._end = error
            self._change.set()

    async def get(self) -> Message:
        """The oldest message; raises what ended it once there is none."""
        while not self._waiting:
            if self._end is not None:
                raise self._end
            self._change.clear()
            await self._change.wait()
        message = self._waiting.popleft()
        self._bytes -= len(message.data) + MESSAGE_COST
        return message


class ServerPeer:
    """The bus, seen from a client; a session of the transports."""

    def __init__(self, matching: Literal["upstream", "documented"] = "upstream") -> None:
        self.outbox: Outbox = None  # type: ignore[assignment]  # set when the connection is made
        self.ended = asyncio.Event()
        self._next_id = 0
        self._acks: dict[int, asyncio.Future[Message]] = {}
        self._responses: dict[int, asyncio.Future[Message]] = {}
        # The bus sends one copy for all subscriptions of a connection: sorted out here by the same rules.
        self._subscriptions: Subscriptions[Inbox] = Subscriptions(MATCHING[matching])
        self._topics: dict[str, int] = {}
        self._claims: dict[str, Inbox] = {}
        self._pieces = Pieces()

    # -- Session --

    def connection_made(self, outbox: Outbox) -> None:
        self.outbox = outbox

    def data_received(self, data: bytes) -> None:
        whole = self._pieces.add(data)
        if whole is None:
            return
        pos, size = 0, len(whole)
        while pos < size:
            length = frame_length(whole, pos)
            if length > MAX_BODY + 4:
                raise RemoteProtocolError(f"a frame of {length - 4} bytes is over the limit")
            if pos + length > size or size - pos < 4:
                self._pieces.keep(whole[pos:], length)
                return
            self.take(parse_message(whole[pos + 4 : pos + length], SERVER_KINDS))
            pos += length

    def eof_received(self) -> None:
        """The connection closes after this."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()
        lost = ConnectionLost("the connection to the bus has ended")
        for waiting in (*self._acks.values(), *self._responses.values()):
            if not waiting.done():
                waiting.set_exception(lost)
                waiting.exception()  # who gave up waiting must not leave a warning behind
        for inbox in (*self._claims.values(), *self._subscriptions.matching("**")):
            inbox.end(lost)

    def tick(self, now: float) -> None:
        """Keep-alives are the client's: they do not depend on a node's clock."""

    def take(self, message: Message) -> None:
        """Give one message to whoever waits for it."""
        match message.kind:
            case "Pub":
                for inbox in self._subscriptions.matching(message.topic):
                    inbox.put(message)
            case "Req":
                claim = self._claims.get(message.topic)
                if claim is not None:
                    claim.put(message)
            case kind:
                table = self._acks if kind == "Ack" else self._responses
                waiting = table.pop(message.req_id, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)

    # -- questions --

    def send(self, content: bytes) -> int:
        """Send a message whose Ack nobody waits for; its id."""
        if self.ended.is_set():
            raise ConnectionLost("the connection to the bus has ended")
        self._next_id = self._next_id % 0xFFFFFFFF + 1
        frame = encode_frame(self._next_id, content)
        if len(frame) > MAX_BODY + 4:
            # The bus would close the connection at the header.
            raise LimitExceeded("message in bytes", limit=MAX_BODY, actual=len(frame) - 4)
        self.outbox.write(frame)
        return self._next_id

    async def ask(self, content: bytes, topic: str = "") -> Message:
        """Send a message and wait for its Ack.

        Raises:
            PolybusError: what the Ack says, AckTimeout, or ConnectionLost.
        """
        return await self._acknowledged(self.send(content), topic)

    async def request(self, content: bytes, topic: str, timeout: float | None) -> bytes:
        """Send a request and wait for the payload of its response.

        Raises:
            CallTimeout: none came in time, or the bus says that none did.
            ServiceFailed: the service failed and its text came with the Timeout, as from services of other wires.
        """
        number = self.send(content)
        response: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._responses[number] = response
        try:
            async with asyncio.timeout(timeout):
                await self._acknowledged(number, topic)
                answer = await response
        except TimeoutError as exc:
            raise CallTimeout(f"no response from {topic} within {timeout:g} s") from exc
        finally:
            self._responses.pop(number, None)
        payload = answer.payload()
        if answer.status == OK:
            return payload
        if payload:
            raise ServiceFailed(payload.decode("utf-8", "replace"), payload)
        raise CallTimeout(f"{topic} did not answer")

    async def _acknowledged(self, number: int, topic: str) -> Message:
        waiting: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._acks[number] = waiting
        try:
            async with asyncio.timeout(ACK_TIMEOUT):
                ack = await waiting
        except TimeoutError as exc:
            raise AckTimeout(f"no Ack within {ACK_TIMEOUT:g} s") from exc
        finally:
            self._acks.pop(number, None)
        if ack.error is not None:
            raise to_error(ack.error, topic)
        return ack

    def keep_alive(self) -> None:
        self.send(unit_content("KeepAlive"))

    # -- subscriptions and claims --

    async def subscribe(self, topic: str) -> Inbox:
        """Let publications to a topic come; a second subscription to it costs the bus nothing."""
        inbox = Inbox(topic)
        self._subscriptions.add(topic, inbox)
        self._topics[topic] = self._topics.get(topic, 0) + 1
        try:
            if self._topics[topic] == 1:
                await self.ask(topic_content("Sub", topic), topic)
        except BaseException:
            self._forget(inbox)
            raise
        return inbox

    def unsubscribe(self, inbox: Inbox) -> None:
        """Take a subscription back; the last one to a topic tells the bus."""
        if self._forget(inbox) and not self.ended.is_set():
            self.send(topic_content("Unsub", inbox.topic))

    def _forget(self, inbox: Inbox) -> bool:
        if not self._subscriptions.remove(inbox.topic, inbox):
            return False
        self._topics[inbox.topic] -= 1
        if self._topics[inbox.topic]:
            return False
        del self._topics[inbox.topic]
        return True

    async def claim(self, topic: str) -> Inbox:
        """Let requests for a topic come here."""
        if topic in self._claims:
            raise NameTaken(topic)
        inbox = self._claims[topic] = Inbox(topic)
        try:
            await self.ask(topic_content("Srv", topic), topic)
        except BaseException:
            self._claims.pop(topic, None)
            raise
        return inbox

    def release(self, inbox: Inbox) -> None:
        """Give a claim up."""
        if self._claims.get(inbox.topic) is inbox:
            del self._claims[inbox.topic]
            if not self.ended.is_set():
                self.send(topic_content("Unsrv", inbox.topic))


def to_error(error: BusError, topic: str) -> PolybusError:
    """What an Ack refuses with, as an error of ours; the text stays the bus's."""
    match error.name:
        case "ServiceNotFound":
            return NoSuchService(topic, str(error))
        case "TopicAlreadyClaimed":
            return NameTaken(topic)
        case "InvalidTopicString" | "ClaimWildcardNotSupported":
            return InvalidName(topic, str(error))
        case "InvalidRequestId":
            return Conflict(str(error))
        case _:
            return Refused(str(error))
