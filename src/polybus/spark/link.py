"""A synchronous client of the native wire for Spark's processes: questions, raw chunks, staging.

Invariant: a request that the connection lost is sent again on a new one within `patience`, so every request made
here may be repeated safely. Needs the standard library only; `docs/protocols/native.md` is the specification.
"""

from __future__ import annotations

import random
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, TypeVar

from polybus.errors import (
    ConfigError,
    ConnectionLost,
    Draining,
    LimitExceeded,
    NotAuthorized,
    PeerUnavailable,
    PolybusError,
    RemoteProtocolError,
    from_code,
)
from polybus.spark.msgpack import pack, unpack
from polybus.transports.tls import client_context
from polybus.transports.url import Address

PREFACE: Final = b"PBUS\x01"
HELLO, PING, PONG, GOODBYE, OK, ERROR = 0x01, 0x02, 0x03, 0x04, 0x05, 0x06
FETCH, CHUNKS, ASK = 0x38, 0x39, 0x3F
MAX_FRAME: Final = 80 * 1024 * 1024  # a staged chunk of 64 MiB, sent back, and its meta

PATIENCE: Final = 60.0  # a node restarts within seconds; a task that waits longer should be retried
CONNECT_TIMEOUT: Final = 10.0
ANSWER_TIMEOUT: Final = 60.0  # reading a cold segment or a sync of a busy disk
FETCH_BYTES: Final = (
    256 * 1024
)  # a full chunk, or a few: what a node sends at once, live calls wait for
STAGES_UNDER_WAY: Final = 4  # hides the sync of one chunk behind the others

_HEAD: Final = Struct(">IBBHQII")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the node is and who we are; it travels to the executors."""

    address: Address
    token: str = ""
    patience: float = PATIENCE

    def __str__(self) -> str:
        return str(self.address)


@dataclass(frozen=True, slots=True)
class Answer:
    """What ended a request."""

    meta: Any
    payload: memoryview


class Link:
    """One connection, made when it is first needed and again when it was lost.

    Args:
        eager: refuse at once when the node cannot be reached the first time: a wrong address should not cost a minute.
    """

    def __init__(self, place: Place, *, eager: bool = False) -> None:
        self.place = place
        self._eager = eager
        self._socket: socket.socket | None = None
        self._last = 0
        self._answers: dict[int, Answer | PolybusError] = {}
        self._max_frame = MAX_FRAME

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up; the next request connects again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._answers.clear()

    # -- what Spark asks for -------------------------------------------------------------------------------------------

    def topics(self) -> list[dict[str, Any]]:
        """All topics with their offsets."""
        return list(self.ask("topic/list")["topics"])

    def topic(self, topic: str) -> dict[str, Any]:
        """One topic; raises NoSuchTopic."""
        return dict(self.ask("topic/info", {"topic": topic})["topic"])

    def offset_at(self, topic: str, time_ms: int) -> int:
        """The first offset at or after a time."""
        return int(self.ask("topic/offset_at", {"topic": topic, "time_ms": time_ms})["offset"])

    def declare(self, topic: str) -> None:
        """Make sure that a topic exists."""
        self.ask("topic/declare", {"topic": topic})

    def publish(self, topic: str, sink: str, batch: int, tickets: Sequence[str]) -> int:
        """Make staged chunks visible under (sink, batch); the first offset, also of a repeat."""
        asked = {"topic": topic, "sink": sink, "batch": batch, "tickets": list(tickets)}
        return int(self.ask("topic/publish", asked)["first"])

    def report(self, topic: str, group: str, offset: int) -> None:
        """Let a group stand at an offset, so that its lag shows."""
        start = {"at": "offset", "offset": offset}
        asked = {"topic": topic, "group": group, "start": start}
        self.ask("group/declare", asked)
        self.ask("group/reset", asked)

    def ask(self, question: str, arguments: Mapping[str, object] | None = None) -> dict[str, Any]:
        """The answer to one question of the native wire."""

        def once() -> dict[str, Any]:
            answer = self._receive(self._send(ASK, question, dict(arguments or {})))
            return answer.meta if isinstance(answer.meta, dict) else {}

        return self._patiently(once)

    def fetch(
        self,
        topic: str,
        start: int,
        end: int,
        max_bytes: int = FETCH_BYTES,
        *,
        verify: bool = False,
    ) -> Iterator[memoryview]:
        """The encoded chunks that hold offsets `start` to `end`; the first and last may hold more.

        The next request is under way while the caller works on what the last one brought.

        Args:
            verify: the node looks at the checksums of bodies, which are the caller's to look at anyway.

        Raises:
            OutOfRange, NoSuchTopic, CorruptRecord; PeerUnavailable once patience is over.
        """
        at, asked = start, 0

        def send() -> int:
            wanted = {"start": at, "end": end, "max_bytes": max_bytes, "verify": verify}
            return self._send(FETCH, topic, wanted)

        def receive() -> Answer:
            nonlocal asked
            if not asked or self._socket is None:
                asked = send()
            return self._receive(asked)

        while at < end:
            answer = self._patiently(receive)
            asked, last, at = 0, at, int(answer.meta["next"])
            if at <= last:
                raise RemoteProtocolError(f"the node sent nothing of {topic} from {last} on")
            if at < end:
                try:
                    asked = send()
                except OSError:
                    self.close()  # `receive` will connect and ask again
            position = 0
            for size in answer.meta["sizes"]:
                yield answer.payload[position : position + size]
                position += size

    def stage(self, topic: str, chunks: Iterator[bytes]) -> list[str]:
        """Leave chunks with the node, synced and invisible; their tickets in order."""
        tickets: list[str] = []
        waiting: list[tuple[int, bytes]] = []

        def settle(most: int) -> None:
            while len(waiting) > most:
                tickets.append(self._patiently(first_ticket))
                del waiting[0]

        def first_ticket() -> str:
            if self._socket is None:
                # The tickets of lost answers are never published, and expire.
                waiting[:] = [(self._stage_one(topic, chunk), chunk) for _, chunk in waiting]
            return str(self._receive(waiting[0][0]).meta["ticket"])

        def send(chunk: bytes) -> int:
            try:
                return self._stage_one(topic, chunk) if self._socket is not None else 0
            except OSError:
                self.close()
                return 0

        for chunk in chunks:
            waiting.append((send(chunk), chunk))
            settle(STAGES_UNDER_WAY)
        settle(0)
        return tickets

    def _stage_one(self, topic: str, chunk: bytes) -> int:
        return self._send(ASK, "topic/stage", {"topic": topic}, chunk)

    # -- the wire ------------------------------------------------------------------------------------------------------

    def _patiently(self, once: Callable[[], T]) -> T:
        """Do something on the connection, and again on a new one while patience lasts."""
        deadline = time.monotonic() + (0.0 if self._eager else self.place.patience)
        pause = 0.05
        while True:
            try:
                found = once()
            except (OSError, ConnectionLost, Draining) as exc:
                self.close()
                if time.monotonic() + pause > deadline:
                    raise PeerUnavailable(
                        f"option url: no node answers at {self.place}: {exc}"
                    ) from exc
            else:
                self._eager = False
                return found
            # Spread, so that the tasks of a cluster do not come back all at once.
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, 2.0)

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket = self._dial()
            try:
                self._greet()
            except BaseException:
                self.close()
                raise
        return self._socket

    def _dial(self) -> socket.socket:
        address = self.place.address
        if address.scheme == "unix":
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(CONNECT_TIMEOUT)
            connection.connect(address.path)
        else:
            target = (address.host, address.port)
            connection = socket.create_connection(target, CONNECT_TIMEOUT)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.scheme == "tls":
            connection = self._encrypted(connection)
        connection.settimeout(ANSWER_TIMEOUT)
        return connection

    def _encrypted(self, connection: socket.socket) -> socket.socket:
        """The connection under TLS; a certificate or file that does not fit is not tried again."""
        address = self.place.address
        options = {name: address.options.get(name, "") for name in ("ca", "cert", "key")}
        try:
            return client_context(**options).wrap_socket(connection, server_hostname=address.host)
        except ssl.SSLCertVerificationError as exc:
            connection.close()
            raise ConfigError(
                f"option tlsCa: the certificate of {self.place} is not trusted: {exc.verify_message}"
            ) from exc
        except ConfigError as exc:
            connection.close()
            raise ConfigError(f"options tlsCa, tlsCert and tlsKey: {exc.text}") from exc

    def _greet(self) -> None:
        assert self._socket is not None
        hello = pack(
            {
                "versions": [1],
                "agent": "polybus-spark",
                "max_frame": MAX_FRAME,
                "token": self.place.token,
            }
        )
        self._socket.sendall(PREFACE + _frame(HELLO, 0, "", hello))
        if bytes(self._take(len(PREFACE))) != PREFACE:
            raise RemoteProtocolError(
                f"option url: what listens at {self.place} is no node of this version"
            )
        kind, _, answer = self._take_frame()
        if isinstance(answer, NotAuthorized):
            answer.text = f"option token: {answer.text}"
            answer.args = (answer.text,)
        if isinstance(answer, PolybusError):
            raise answer
        if kind != HELLO:
            raise RemoteProtocolError(f"the node greets with the kind {kind:#x}")
        self._max_frame = int(answer.meta.get("max_frame", MAX_FRAME))

    def _send(self, kind: int, name: str, meta: object, payload: bytes = b"") -> int:
        connection = self._connected()
        self._last += 1
        head = _frame(kind, self._last, name, pack(meta), len(payload))
        if len(head) + len(payload) > self._max_frame:
            # Else the node would hang up, and that looks as if it had gone.
            raise LimitExceeded(
                "bytes of a record, which must fit a frame of the node",
                limit=self._max_frame,
                actual=len(head) + len(payload),
            )
        connection.sendall(head)
        if payload:
            connection.sendall(payload)
        return self._last

    def _receive(self, ident: int) -> Answer:
        if self._socket is None:
            raise ConnectionLost("the connection was lost before the answer came")
        while ident not in self._answers:
            kind, found, answer = self._take_frame()
            if kind == PING:
                self._socket.sendall(_frame(PONG, found, "", b""))
            elif kind == GOODBYE:
                raise Draining("the node is stopping")
            elif found:
                self._answers[found] = answer
            elif isinstance(answer, PolybusError):
                raise answer
        answer = self._answers.pop(ident)
        if isinstance(answer, PolybusError):
            raise answer
        return answer

    def _take_frame(self) -> tuple[int, int, Answer | PolybusError]:
        length, kind, _, name_size, ident, arg, meta_size = _HEAD.unpack(self._take(_HEAD.size))
        rest = length - 20 - name_size - meta_size
        if rest < 0 or length > MAX_FRAME:
            raise RemoteProtocolError("the lengths of a frame contradict each other")
        self._take(name_size)
        meta = unpack(bytes(self._take(meta_size))) if meta_size else {}
        # A buffer of its own: chunks then lie where Arrow wants them, at a multiple of eight.
        payload = self._take(rest)
        if kind == ERROR:
            return kind, ident, from_code(arg, bytes(payload).decode("utf-8", "replace"), meta)
        return kind, ident, Answer(meta, payload)

    def _take(self, size: int) -> memoryview:
        assert self._socket is not None
        whole = memoryview(bytearray(size))
        at = 0
        while at < size:
            count = self._socket.recv_into(whole[at:])
            if not count:
                raise ConnectionLost("the node closed the connection")
            at += count
        return whole


def _frame(kind: int, ident: int, name: str, meta: bytes, payload_size: int = 0) -> bytes:
    raw = name.encode()
    size = 20 + len(raw) + len(meta) + payload_size
    return _HEAD.pack(size, kind, 0, len(raw), ident, 0, len(meta)) + raw + meta
