"""The JSON message of the Reliable Message Bus: read leniently or as the second generation does, written exactly.

Invariant: what is written has the keys of its generation in that generation's order, and nothing else.

    first generation    ver uid cmd exp try dat src dst ret shm now err          (its later form: pxy before err)
    second generation   ver uid cmd exp try dat tag src dst ret shm now err sig  (pxy is read, never written)
    second document     id dst cmd data ret, all else absent; `id` and `data` are other names of `uid` and `dat`
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from polybus.errors import RemoteProtocolError

Generation = Literal["rs", "v1", "v2", "documented"]
GENERATIONS: Final[tuple[Generation, ...]] = ("rs", "v1", "v2", "documented")

DEFAULT_EXP: Final = 3600  # what `exp: 0` means (protocol page §1.1)
MAX_TRY: Final = 5  # protocol page §3.1; more would only multiply what an unreachable twin costs
REPLY_QUEUE: Final = "msgbus.system.reply"

U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
U63 = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]  # the largest bound that msgspec has


class Unreadable(RemoteProtocolError):
    """The text is no message; `ret` and `fields` are what could be told of it, for an answer."""

    def __init__(self, text: str, fields: dict[str, Any] | None = None) -> None:
        super().__init__(text)
        self.fields = fields or {}

    @property
    def ret(self) -> str:
        found = self.fields.get("ret")
        return found if isinstance(found, str) else ""


class Message(msgspec.Struct, kw_only=True, rename={"tries": "try"}):
    """One message, in the names of the wire; `tries` is the key `try`."""

    ver: int = 1
    uid: str = ""
    cmd: str = ""
    exp: int = 0
    tries: int = 0
    dat: str = ""
    tag: str | None = None
    src: int = 0
    dst: list[int] = []
    ret: str = ""
    shm: str = ""
    now: int = 0
    err: str | None = None
    sig: str | None = None
    pxy: bool = False

    def copy(self, **changes: Any) -> Message:
        """The same with some fields changed."""
        return msgspec.structs.replace(self, **changes)

    @property
    def failed(self) -> bool:
        return bool(self.err)


class _Strict(Message, kw_only=True):
    """The same with what the second generation insists on; in the same order, so that it is written alike."""

    ver: U63
    uid: str
    cmd: str
    exp: U63
    tries: U63
    dat: str
    tag: str | None = None
    src: U32
    dst: list[U32]
    ret: str
    shm: str
    now: U63
    err: str | None = None
    sig: str | None = None
    pxy: bool = False


class _Lenient(msgspec.Struct, kw_only=True, rename={"tries": "try"}):
    ver: U63 | None = None
    uid: str | None = None
    id: str | None = None
    cmd: str | None = None
    exp: U63 | None = None
    tries: U63 | None = None
    dat: str | None = None
    data: str | None = None
    tag: str | None = None
    src: U32 | None = None
    dst: list[U32] | U32 | None = None
    ret: str | None = None
    shm: str | None = None
    now: U63 | None = None
    err: Any = None
    sig: str | None = None
    pxy: bool | None = None


class _First(msgspec.Struct, kw_only=True, rename={"tries": "try"}):
    ver: int
    uid: str
    cmd: str
    exp: int
    tries: int
    dat: str
    src: int
    dst: list[int]
    ret: str
    shm: str
    now: int
    err: str


class _FirstLater(msgspec.Struct, kw_only=True, rename={"tries": "try"}):
    ver: int
    uid: str
    cmd: str
    exp: int
    tries: int
    dat: str
    src: int
    dst: list[int]
    ret: str
    shm: str
    now: int
    pxy: bool
    err: str


_decode_strict: Final = msgspec.json.Decoder(_Strict).decode
_decode_lenient: Final = msgspec.json.Decoder(_Lenient).decode
_encode: Final = msgspec.json.Encoder().encode
# How every encoded message ends; the second generation never writes it (protocol page §3.1).
_NO_PROXY: Final = b',"pxy":false}'
_PROXY: Final = b',"pxy":true}'


def parse_strict(text: bytes) -> Message:
    """A message as the second generation's daemon reads one from HTTP: every field but four has to be there.

    Raises:
        Unreadable.
    """
    try:
        return _decode_strict(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise Unreadable(str(exc)) from exc


def parse_lenient(text: bytes) -> Message:
    """A message as clients and handlers write them: anything may be absent, and the second document's names count.

    An `err` that is no text, as one real client sends it (protocol page §4), becomes its JSON.

    Raises:
        Unreadable: no JSON object, or a field of the wrong type; numbers as text are.
    """
    try:
        whole = _decode_strict(text)
        if whole.uid or b'"id"' not in text:
            return whole  # as most clients write them
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        m = _decode_lenient(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise Unreadable(str(exc), _fields(text)) from exc
    dst = m.dst if m.dst is not None else []
    err = m.err
    if err is not None and not isinstance(err, str):
        err = _encode(err).decode()
    return Message(
        ver=1 if m.ver is None else m.ver,
        uid=m.uid or m.id or "",
        cmd=m.cmd or "",
        exp=m.exp or 0,
        tries=m.tries or 0,
        dat=(m.dat if m.dat is not None else m.data) or "",
        tag=m.tag,
        src=m.src or 0,
        dst=dst if isinstance(dst, list) else [dst],
        ret=m.ret or "",
        shm=m.shm or "",
        now=m.now or 0,
        err=err,
        sig=m.sig,
        pxy=bool(m.pxy),
    )


def _fields(text: bytes) -> dict[str, Any]:
    """What can be told of a text that is JSON at least."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def salvage(error: Unreadable) -> Message:
    """What is left of an unreadable message, with its error: enough for an answer on `ret`."""
    fields = error.fields

    def text(*keys: str) -> str:
        return next((v for k in keys if isinstance(v := fields.get(k), str)), "")

    tag = fields.get("tag")
    return Message(
        uid=text("uid", "id"),
        cmd=text("cmd"),
        tag=tag if isinstance(tag, str) else None,
        ret=error.ret,
        err=f"message is not valid: {error.text}",
    )


def encode(m: Message, generation: Generation) -> bytes:
    """The message as that generation writes it."""
    if generation == "rs" or generation == "documented":
        text = _encode(m)
        return text[: -len(_NO_PROXY if text.endswith(_NO_PROXY) else _PROXY)] + b"}"
    common: dict[str, Any] = {
        "ver": m.ver,
        "uid": m.uid,
        "cmd": m.cmd,
        "exp": m.exp,
        "tries": m.tries,
        "dat": m.dat,
        "src": m.src,
        "dst": m.dst,
        "ret": m.ret,
        "shm": m.shm,
        "now": m.now,
        "err": m.err or "",
    }
    if generation == "v2":
        return _encode(_FirstLater(**common, pxy=m.pxy))
    return _encode(_First(**common))


def stamp(now: int, m: Message) -> tuple[int, int]:
    """The `now` and `exp` a message gets when it is passed on at `now` (protocol page §3.3)."""
    exp = m.exp or DEFAULT_EXP
    if m.now == 0 or m.now > now:
        return now, exp
    return now, max(0, exp - (now - m.now))
