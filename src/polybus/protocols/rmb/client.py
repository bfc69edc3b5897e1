"""The API that programs on the Reliable Message Bus know: prepare, send, read; handlers and their server.

Invariant: it talks to a twin's Redis only, so it works on polybus and on the original daemons alike; every read ends
with as many answers as destinations or with an error.

Each verb can be awaited inside of an event loop; in a program without one it just runs:

    bus = connect()
    message = bus.prepare("wallet.stellar.balance.tft", [1002, 1003], 60, 2)
    bus.send(message, "GA7OPN4A3JNHLPHPEWM4PJDOYYDYNZOM7ES6YL3O7NC3PRY3V3UX6ANM")
    for answer in bus.read(message):
        print(answer.src, answer.err or answer.dat)
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Self

import msgspec

from polybus.errors import CallTimeout, LocalProtocolError
from polybus.model.ids import random_id
from polybus.protocols.rmb.answers import decode_dat, encode_dat
from polybus.protocols.rmb.message import (
    DEFAULT_EXP,
    Message,
    Unreadable,
    encode,
    parse_lenient,
)
from polybus.protocols.rmb.queues import DECLARED_S, LOCAL, REPLY, declare, handler_queue
from polybus.protocols.rmb.resp import DEFAULT_PORT, RedisConnection, RedisLost, RedisUrl
from polybus.protocols.rmb.resp import connect as dial

log = logging.getLogger("polybus.rmb.client")

HOST: Final = "127.0.0.1"
GRACE: Final = 10  # seconds beyond the deadline in which the bus answers with an error
WAIT: Final = 5  # seconds of one blocking question to Redis
RECONNECT: Final = 0.5


class Answer(Message, kw_only=True):
    """A reply; `dat` is its payload as text, `payload` as bytes."""

    payload: bytes = b""


Handler = Callable[[Message, Any], Any]
Callback = Callable[[list[Answer]], Any]


def to_text(value: object) -> bytes:
    """What a handler returned or a client sends, as a payload: text and bytes as they are, anything else as JSON."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if value is None:
        return b""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError) as exc:
        raise LocalProtocolError(f"a {type(value).__name__} cannot be sent: {exc}") from exc


def from_dat(dat: str) -> str | bytes:
    """A payload as handlers and readers get it: text, or bytes when it is none."""
    payload = decode_dat(dat)
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return payload


class _Program:
    """Runs verbs: as coroutines inside of an event loop, to their end outside of one."""

    def __init__(self, port: int, host: str, url: RedisUrl | None) -> None:
        self.url = url or RedisUrl(host, port)
        self._runner: asyncio.Runner | None = None
        self._connection: RedisConnection | None = None

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            if self._runner is None:
                self._runner = asyncio.Runner()
            return self._runner.run(work)
        return work

    async def _connected(self) -> RedisConnection:
        if self._connection is None or self._connection.lost:
            self._connection = await dial(self.url)
        return self._connection

    def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            self._connection.close()
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class MessageBusClient(_Program):
    """Sends requests through the twin whose Redis is on `port`."""

    def __init__(
        self, port: int = DEFAULT_PORT, host: str = HOST, *, url: RedisUrl | None = None
    ) -> None:
        super().__init__(port, host, url)
        self._prepared: Message | None = None

    def prepare(self, cmd: str, dst: int | list[int], exp: int = 0, num_retry: int = 2) -> Message:
        """A message for some twins that is neither sent nor has a payload yet."""
        self._prepared = Message(
            cmd=cmd,
            dst=[dst] if isinstance(dst, int) else list(dst),
            exp=exp,
            tries=num_retry,
            ret=random_id(),
            err="",
        )
        return self._prepared

    def send(self, *arguments: Any) -> Any:
        """`send(payload)` sends the message prepared last, `send(message, payload)` any; returns the message.

        Raises:
            LocalProtocolError: nothing was prepared.
            RedisLost: the twin's Redis is not there, or does not take it.
        """
        message, payload = (self._last(), *arguments) if len(arguments) == 1 else arguments
        return self._do(self._send(message, payload))

    def read(self, message: Message | None = None, callback: Callback | None = None) -> Any:
        """All answers to a message, or to the one prepared last: as many as it has destinations.

        Raises:
            CallTimeout: the bus did not answer, not even with an error.
            RedisLost: the twin's Redis went away, or gives nothing out.
        """
        return self._do(self._read(message or self._last(), callback))

    def _last(self) -> Message:
        if self._prepared is None:
            raise LocalProtocolError("prepare a message first")
        return self._prepared

    async def _send(self, message: Message, payload: object) -> Message:
        message.now = int(time.time())
        message.dat = encode_dat(to_text(payload))
        connection = await self._connected()
        (pushed,) = await connection.run(("LPUSH", LOCAL, encode(message, "rs")))
        if isinstance(pushed, Exception):
            raise RedisLost(str(pushed))
        return message

    async def _read(self, message: Message, callback: Callback | None) -> list[Answer]:
        answers: list[Answer] = []
        connection = await dial(self.url)  # of its own: it waits there
        until = time.monotonic() + (message.exp or DEFAULT_EXP) + GRACE
        try:
            while len(answers) < len(message.dst):
                (found,) = await connection.run(("BLPOP", message.ret, WAIT))
                if isinstance(found, Exception):
                    raise RedisLost(str(found))
                if found is not None:
                    answers.append(to_answer(found[1]))
                elif time.monotonic() > until:
                    missing = len(message.dst) - len(answers)
                    raise CallTimeout(f"{missing} answers to {message.cmd} are missing")
        finally:
            connection.close()
        if callback is not None:
            outcome = callback(answers)
            if inspect.isawaitable(outcome):
                await outcome
        return answers


def answer_to(message: Message, payload: bytes, error: str) -> Message:
    """The answer to a request as a well-behaved handler writes it."""
    own = message.dst[0] if message.dst else 0  # whoever can write into the queue may leave it out
    return message.copy(
        dat="" if error else encode_dat(payload),
        err=error.encode("utf-8", "replace").decode(),
        src=own,
        dst=[message.src],
    )


def to_answer(text: bytes) -> Answer:
    """A reply from a return queue."""
    m = parse_lenient(text)
    payload = decode_dat(m.dat)
    fields = {name: getattr(m, name) for name in Message.__struct_fields__}
    return Answer(**fields | {"dat": payload.decode("utf-8", "replace"), "payload": payload})


def connect(port: int = DEFAULT_PORT, host: str = HOST) -> MessageBusClient:
    """A client of the twin whose Redis is on `port`."""
    return MessageBusClient(port, host)


class Context:
    """One request as a handler of `server` gets it; it may be answered at any later time, once."""

    def __init__(self, message: Message, answer: Callable[[Message, bytes, str], None]) -> None:
        self.message = message
        self.payload = from_dat(message.dat)
        self._answer: Callable[[Message, bytes, str], None] | None = answer

    def reply(self, value: object) -> None:
        """Answer with a value; one that is no text becomes JSON.

        Raises:
            LocalProtocolError: the value cannot be sent, and nothing was; or there was an answer before.
        """
        payload = to_text(value)
        self._take()(self.message, payload, "")

    def error(self, text: object) -> None:
        """Answer with an error."""
        self._take()(self.message, b"", str(text) or "error")

    @property
    def answered(self) -> bool:
        return self._answer is None

    def _take(self) -> Callable[[Message, bytes, str], None]:
        answer, self._answer = self._answer, None
        if answer is None:
            raise LocalProtocolError(f"{self.message.cmd} {self.message.uid} was answered already")
        return answer


class MessageBusServer(_Program):
    """Answers commands of the twin whose Redis is on `port`."""

    def __init__(
        self, port: int = DEFAULT_PORT, host: str = HOST, *, url: RedisUrl | None = None
    ) -> None:
        super().__init__(port, host, url)
        self._handlers: dict[str, Callable[[Message], Coroutine[Any, Any, None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsent: list[bytes] = []

    def with_handler(self, cmd: str, handler: Handler) -> Self:
        """Answer `cmd` with what `handler(message, payload)`, sync or async, returns; what it raises is the error."""

        async def handle(message: Message) -> None:
            try:
                value = handler(message, from_dat(message.dat))
                if inspect.isawaitable(value):
                    value = await value
                payload = to_text(value)
            except Exception as exc:
                log.debug("the handler of %s failed", cmd, exc_info=exc)
                self._answer(message, b"", str(exc) or type(exc).__name__)
            else:
                self._answer(message, payload, "")

        self._handlers[cmd] = handle
        return self

    withHandler = with_handler  # as the JavaScript library spells it

    def with_context(self, cmd: str, handler: Callable[[Context], Any]) -> Self:
        """Answer `cmd` through the context that `handler`, sync or async, gets."""

        async def handle(message: Message) -> None:
            context = Context(message, self._answer)
            try:
                outcome = handler(context)
                if inspect.isawaitable(outcome):
                    await outcome
            except Exception as exc:
                log.debug("the handler of %s failed", cmd, exc_info=exc)
                if not context.answered:
                    context.error(str(exc) or type(exc).__name__)

        self._handlers[cmd] = handle
        return self

    def run(self) -> Any:
        """Serve until cancelled or interrupted."""
        return self._do(self._serve())

    serve = run

    async def _serve(self) -> None:
        queues = {handler_queue(cmd).encode(): cmd for cmd in self._handlers}
        if not queues:
            raise LocalProtocolError("there is no handler to serve")
        declaring = asyncio.create_task(self._declare())
        self._tasks.add(declaring)
        try:
            while True:
                try:
                    await self._connected()
                    self._flush()
                    await self._take(await dial(self.url), queues)
                except RedisLost as exc:
                    log.warning("%s; trying again", exc.text)
                    await asyncio.sleep(RECONNECT)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _declare(self) -> None:
        """Tell a polybus node what is answered here, so that other wires reach it; the originals never look."""
        while True:
            connection = self._connection
            if connection is not None and not connection.lost:
                connection.send([declare(self._handlers, time.time_ns() // 1_000_000)], _ignore)
                await asyncio.sleep(DECLARED_S / 3)
            else:
                await asyncio.sleep(RECONNECT)

    async def _take(self, connection: RedisConnection, queues: Mapping[bytes, str]) -> None:
        try:
            while True:
                (found,) = await connection.run(("BLPOP", *queues, WAIT))
                if isinstance(found, Exception):
                    raise RedisLost(str(found))
                if found is None:
                    continue
                try:
                    message = parse_lenient(found[1])
                except Unreadable as exc:
                    log.warning("dropped an unreadable request: %s", exc.text)
                    continue
                work = self._handlers[queues[found[0]]](message)
                task = asyncio.get_running_loop().create_task(work)
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        finally:
            connection.close()

    def _answer(self, message: Message, payload: bytes, error: str) -> None:
        """Push an answer; callable from handlers that returned long ago."""
        reply = answer_to(message, payload, error)
        self._unsent.append(encode(reply, "rs"))
        self._flush()

    def _flush(self) -> None:
        connection = self._connection
        if connection is None or connection.lost or not self._unsent:
            return  # sent when Redis is back
        texts, self._unsent = self._unsent, []

        def answered(replies: list[Any] | None) -> None:
            if replies is None:
                self._unsent += texts

        connection.send([("LPUSH", REPLY, text) for text in texts], answered)


def _ignore(replies: list[Any] | None) -> None:
    """Said again in a moment."""


def server(
    commands: Mapping[str, Callable[[Context], Any]], port: int = DEFAULT_PORT, host: str = HOST
) -> MessageBusServer:
    """A server of commands by name, each a function of a context; `.serve()` runs it."""
    made = MessageBusServer(port, host)
    for cmd, handler in commands.items():
        made.with_context(cmd, handler)
    return made
