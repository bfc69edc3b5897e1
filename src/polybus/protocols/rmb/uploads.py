"""Files between twins, both directions; off unless a folder is set (protocol page §3.4).

Invariant: a file that comes in gets a name made here, inside the folder; nothing of the sender's own naming is used.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from polybus.core.endpoint import Identity
from polybus.errors import ConfigError, NotAuthorized, PolybusError, Refused
from polybus.http.request import Request
from polybus.model.ids import random_id
from polybus.protocols.rmb.answers import decode_dat, encode_dat
from polybus.protocols.rmb.failures import refusal
from polybus.protocols.rmb.message import Message, encode
from polybus.protocols.rmb.names import to_shared
from polybus.protocols.rmb.peers import Answer
from polybus.protocols.rmb.queues import is_reserved
from polybus.protocols.rmb.signature import parse_signature, upload_digest, verify
from polybus.protocols.rmb.twins import Twin

if TYPE_CHECKING:
    from polybus.protocols.rmb.room import RmbRoom

MAX_PARTS: Final = 64
_NUMBER: Final = re.compile("[0-9]{1,12}")
_BOUNDARY: Final = re.compile(r'boundary="?([^";]{1,70})"?')


class _Wanted(msgspec.Struct):
    path: str
    cmd: str


class Uploads:
    """The file side of a room."""

    def __init__(self, room: RmbRoom) -> None:
        self.room = room

    # -- in --

    def take(self, request: Request) -> None:
        """A file of another twin."""
        folder = self.room.options.uploads
        if folder is None:
            request.respond(405)
        else:
            self.room.spawn(self._take(request, folder))

    async def _take(self, request: Request, folder: Path) -> None:
        try:
            cmd, source = await self._verify(request)
            parts = parse_multipart(request.head.headers.get("content-type", ""), request.body)
            paths = await asyncio.to_thread(_save, folder, parts)
        except NotAuthorized as exc:
            request.respond(401, {}, f"unauthorized: {exc}".encode())
            return
        except (PolybusError, OSError) as exc:
            request.respond(400, {}, f"bad request: {exc}".encode())
            return
        for path in paths:
            m = Message(cmd=cmd, dat=encode_dat(str(path).encode()), src=self.room.own)
            m.dst = [source]
            m.now = self.room.wall_ms() // 1000
            self.room.serving.push(cmd, encode(m, self.room.generation), None)
        request.respond(202)

    async def _verify(self, request: Request) -> tuple[str, int]:
        """The command and the sender.

        Raises:
            Refused: a header is missing, or its signature is not the sender's.
            NotAuthorized: the policy does not let that twin call the command.
        """
        room = self.room
        headers = request.head.headers
        cmd = headers.get("rmb-upload-cmd", "")
        numbers = [headers.get(f"rmb-{name}", "") for name in ("source-id", "timestamp")]
        if not cmd or is_reserved(cmd) or not all(map(_NUMBER.fullmatch, numbers)):
            raise Refused("rmb-source-id, rmb-timestamp and rmb-upload-cmd are needed")
        source, time = map(int, numbers)
        if abs(room.wall_ms() // 1000 - time) > room.options.max_age:
            raise Refused("message is too old")
        twin = await room.look_up(source)
        if twin is None or twin.public_key is None:
            raise Refused(f"source twin {source} not found")
        signature = parse_signature(headers.get("rmb-signature"))
        problem = verify(signature, upload_digest(time, source), twin.public_key)
        if problem:
            raise Refused(problem)
        room.router.check(Identity("twin", str(source)), "call", to_shared(cmd) or cmd)
        return cmd, source

    # -- out --

    def send(self, m: Message, dst: list[int]) -> None:
        """A local client asks for a file to be sent; the answers come from here."""
        self.room.spawn(self._send(m, dst))

    async def _send(self, m: Message, dst: list[int]) -> None:
        room = self.room
        try:
            if room.options.uploads is None:
                raise Refused("file uploads are off (setting rmb.uploads)")
            wanted = msgspec.json.decode(decode_dat(m.dat), type=_Wanted)
            content = await asyncio.to_thread(_read, Path(wanted.path), room.options.max_body)
        except (PolybusError, msgspec.DecodeError, UnicodeDecodeError, OSError) as exc:
            for d in dst:
                self._answer(m, d, Answer(0, reason=str(exc)))
            return
        for d in dst:
            twin = await room.look_up(d)
            if twin is None:
                self._answer(m, d, Answer(0, reason=f"twin with id {d} not found"))
            else:
                self._post(m, twin, wanted.cmd, content)

    def _post(self, m: Message, twin: Twin, cmd: str, content: bytes) -> None:
        room = self.room
        now = room.wall_ms() // 1000
        boundary = random_id()
        body = (
            f'--{boundary}\r\ncontent-disposition: form-data; name="file"; filename="file"\r\n\r\n'
        ).encode() + content
        body += f"\r\n--{boundary}--\r\n".encode()
        cmd = re.sub(r"[^\x21-\x7e]", "", cmd)  # it becomes a header
        headers = (
            f"content-type: multipart/form-data; boundary={boundary}\r\n"
            f"rmb-source-id: {room.own}\r\nrmb-timestamp: {now}\r\nrmb-upload-cmd: {cmd}\r\n"
            f"rmb-signature: {room.signer.sign(upload_digest(now, room.own))}\r\n"
        )
        done = partial(self._answer, m, twin.id)
        room.peers.post(twin.place, "/zbus-upload", body, done, headers=headers)

    def _answer(self, m: Message, dst: int, answer: Answer) -> None:
        room = self.room
        if answer.status in (200, 202):
            success = encode_dat(b"success")
            reply = m.copy(src=dst, dst=[room.own], dat=success, err=None, sig=None)
        else:
            reason = answer.phrase if answer.status else answer.reason
            reply = refusal(room.generation, room.own, m, dst, f"upload failed: {reason}")
        room.redis.write(room.layout.deliver(m.ret, encode(reply, room.generation)))


def parse_multipart(content_type: str, body: bytes) -> list[bytes]:
    """The contents of a multipart body.

    Raises:
        Refused: it is none.
    """
    found = _BOUNDARY.search(content_type)
    if found is None or not content_type.startswith("multipart/"):
        raise Refused("the body is not multipart")
    mark = b"--" + found[1].encode()
    pieces = (b"\r\n" + body).split(b"\r\n" + mark)
    if len(pieces) < 3 or len(pieces) > MAX_PARTS + 2 or not pieces[-1].startswith(b"--"):
        raise Refused("the multipart body has no end, or too many parts")
    parts = []
    for piece in pieces[1:-1]:
        # A part without headers begins with the empty line at once.
        _head, gap, content = piece.partition(b"\r\n\r\n")
        if not gap or not piece.startswith(b"\r\n"):
            raise Refused("a part of the multipart body has no head")
        parts.append(content)
    return parts


def _save(folder: Path, parts: list[bytes]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for content in parts:
        path = folder.resolve() / random_id()
        path.write_bytes(content)
        paths.append(path)
    return paths


def _read(path: Path, limit: int) -> bytes:
    with path.open("rb") as stream:
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise ConfigError(f"the file is larger than {limit} bytes")
    return content
