"""Reading CBOR exactly as the real bus reads it: what it accepts, what it refuses, what it skips (protocol page §2).

The real decoder pulls items from a stream, guided by the type it expects; so does this one, and that is why even the
accidents agree (a unit variant written as a map leaves its value unread). Invariant: every read either moves forward
within the frame or raises `RemoteProtocolError`; nothing recurses, and containers nest at most `MAX_DEPTH` deep.
"""

from __future__ import annotations

from codecs import escape_decode
from collections.abc import Callable, Mapping
from typing import Any, Final

from polybus.errors import RemoteProtocolError

MAX_DEPTH: Final = 256  # the real decoder's own limit
MAX_KEY: Final = 4096  # its scratch buffer: longer names of fields and variants are refused

UINT, NEGATIVE, BYTES, TEXT, ARRAY, MAP, TAG, OTHER = range(8)
FALSE, TRUE, NULL, UNDEFINED = 20, 21, 22, 23
INDEFINITE: Final = -1  # as a length; as a value of OTHER it is the "break"
FLOAT: Final = 256  # as a value of OTHER: no simple value is that large
BIG_POSITIVE, BIG_NEGATIVE = 2, 3

# Elements of a payload, spelt as an escaped text: see `count_elements`.
_SPELLING: Final = bytes(
    b"x"[0] if b < 0x18 else b"\\"[0] if b == 0x18 else b"n"[0] for b in range(256)
)
_BLOCK: Final = 4096


def count_elements(span: bytes) -> int:
    """How many integers below 256, in their shortest form, fill the span; -1 if something else stands there.

    This is asked for every publication, so a decoder that is there in C answers it. An element is a value below 24, or
    the prefix 0x18 and a value from 24 on, which may be 0x18 itself. With `x` for a small byte, a backslash for 0x18
    and `n` for a large one, elements are the characters of an escaped text: `x`, `\\n` and `\\\\`. What is no element
    is no such text (`\\x` without digits, a backslash at the end) or leaves a bare `n`.
    """
    try:
        values = escape_decode(span.translate(_SPELLING))[0]
    except ValueError:
        return -1
    return -1 if b"n" in values else len(values)


class Cursor:
    """A position in one frame."""

    __slots__ = ("data", "end", "pos")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.pos = 0
        self.end = len(data)

    def head(self) -> tuple[int, int]:
        """Major type and value (number, length or simple value) of the next item, which is then behind us."""
        pos = self.pos
        if pos >= self.end:
            raise RemoteProtocolError("a message is cut off")
        byte = self.data[pos]
        major, minor = byte >> 5, byte & 31
        pos += 1
        if minor < 24:
            value = minor
        elif minor < 28:
            width = 1 << (minor - 24)
            if pos + width > self.end:
                raise RemoteProtocolError("a message is cut off")
            value = int.from_bytes(self.data[pos : pos + width], "big")
            pos += width
            if major == OTHER and width > 1:
                value = FLOAT
        elif minor == 31 and major not in (UINT, NEGATIVE, TAG):
            value = INDEFINITE
        else:
            raise RemoteProtocolError("not CBOR")
        self.pos = pos
        return major, value

    def untagged(self) -> tuple[int, int]:
        """The next head that is no tag."""
        major, value = self.head()
        while major == TAG:
            major, value = self.head()
        return major, value

    def take(self, length: int) -> bytes:
        """The next `length` bytes."""
        begin = self.pos
        if length > self.end - begin:
            raise RemoteProtocolError("a message is cut off")
        self.pos = begin + length
        return self.data[begin : self.pos]

    # -- what a field of a known type accepts ---------------------------------------------------------------------

    def integer(self) -> int:
        """Any integer, tags and big numbers of up to 16 bytes included."""
        major, value = self.head()
        while major == TAG and value not in (BIG_POSITIVE, BIG_NEGATIVE):
            major, value = self.head()
        if major == UINT:
            return value
        if major == NEGATIVE:
            return -1 - value
        if major != TAG:
            raise RemoteProtocolError("an integer is something else")
        negative = value == BIG_NEGATIVE
        major, length = self.head()
        if major != BYTES:
            raise RemoteProtocolError("an integer is something else")
        digits = self.string(BYTES, length).lstrip(b"\0")
        if len(digits) > 16:
            raise RemoteProtocolError("an integer is too large")
        magnitude = int.from_bytes(digits, "big")
        return -1 - magnitude if negative else magnitude

    def unsigned(self, limit: int) -> int:
        """An integer from 0 to `limit`."""
        value = self.integer()
        if not 0 <= value <= limit:
            raise RemoteProtocolError(f"an integer is out of its range: {value}")
        return value

    def boolean(self) -> bool:
        head = self.untagged()
        if head == (OTHER, TRUE):
            return True
        if head != (OTHER, FALSE):
            raise RemoteProtocolError("a truth value is something else")
        return False

    def text(self) -> str:
        major, length = self.untagged()
        if major != TEXT:
            raise RemoteProtocolError("a text is something else")
        return _utf8(self.string(TEXT, length))

    def key(self) -> bytes:
        """The name of a field or variant: text or byte string in one piece."""
        major, length = self.untagged()
        if major not in (TEXT, BYTES) or not 0 <= length <= MAX_KEY:
            raise RemoteProtocolError("a name is something else")
        name = self.take(length)
        if major == TEXT:
            _utf8(name)
        return name

    def variant(self) -> bytes:
        """The name of an enum's variant; what it carries, if anything, is the next item."""
        before = self.pos
        major, value = self.head()
        while major == TAG:
            before = self.pos
            major, value = self.head()
        if major == TEXT:
            self.pos = before
        elif (major, value) != (MAP, 1):
            raise RemoteProtocolError("a variant is something else")
        return self.key()

    def is_null(self) -> bool:
        """Whether the next item is null, which is then behind us; tags hide it."""
        before = self.pos
        if self.head() in ((OTHER, NULL), (OTHER, UNDEFINED)):
            return True
        self.pos = before
        return False

    def byte_sequence(self) -> bytes:
        """A byte string or an array of integers below 256, given back as it stands in the frame."""
        begin = self.pos
        major, length = self.untagged()
        if major == BYTES:
            self.string(BYTES, length)
        elif major != ARRAY:
            raise RemoteProtocolError("payload data is something else")
        elif length == INDEFINITE:
            while self.data[self.pos : self.pos + 1] != b"\xff":
                self.unsigned(255)
            self.pos += 1
        else:
            self._elements(length)
        return self.data[begin : self.pos]

    def _elements(self, count: int) -> None:
        if count > self.end - self.pos:
            raise RemoteProtocolError("a message is cut off")
        while count:
            # Whole blocks at once: a frame may hold a million elements.
            block = self.data[self.pos : min(self.pos + _BLOCK, self.end)]
            if (len(block) - len(block.rstrip(b"\x18"))) % 2:
                block = block[:-1]  # a prefix whose value is in the next block
            elements = count_elements(block)
            if 0 < elements <= count:
                self.pos += len(block)
                count -= elements
                continue
            for _ in range(min(count, _BLOCK)):
                self.unsigned(255)
                count -= 1

    def record(
        self, readers: Mapping[bytes, Callable[[Cursor], Any]], depth: int
    ) -> dict[bytes, Any]:
        """The known fields of a struct, by name; unknown ones are skipped, a repeated one is refused.

        Args:
            depth: how many more containers may be open inside this one.
        """
        major, left = self.untagged()
        if major != MAP:
            raise RemoteProtocolError("a struct is something else")
        found: dict[bytes, Any] = {}
        while left:
            if left == INDEFINITE:
                if self.data[self.pos : self.pos + 1] == b"\xff":
                    self.pos += 1
                    break
            else:
                left -= 1
            name = self.key()
            reader = readers.get(name)
            if reader is None:
                self.skip(depth)
            elif name in found:
                raise RemoteProtocolError(f"a field is there twice: {name.decode()}")
            else:
                found[name] = reader(self)
        return found

    def string(self, major: int, length: int) -> bytes:
        """The content of a string whose head is behind us; pieces may be nested, as the real decoder allows."""
        if length != INDEFINITE:
            return self.take(length)
        pieces = []
        nested = 1
        while nested:
            kind, length = self.head()
            if (kind, length) == (OTHER, INDEFINITE):
                nested -= 1
            elif kind != major:
                raise RemoteProtocolError("not CBOR")
            elif length == INDEFINITE:
                nested += 1
            else:
                pieces.append(self.take(length))
                if major == TEXT:
                    _utf8(pieces[-1])
        return b"".join(pieces)

    # -- what no field claims -------------------------------------------------------------------------------------

    def skip(self, depth: int) -> None:
        """Pass over one item of any kind whose containers nest at most `depth` deep."""
        # Items left in each open container; below zero: until the break (array, key of a map, value of a map).
        open_: list[int] = []
        in_array, at_key, at_value = -1, -2, -3
        while True:
            major, value = self.head()
            opened = 0
            if major in (BYTES, TEXT):
                content = self.string(major, value)
                if major == TEXT:
                    _utf8(content)
            elif major == ARRAY:
                opened = in_array if value == INDEFINITE else value
                self._deeper(open_, depth)
            elif major == MAP:
                opened = at_key if value == INDEFINITE else 2 * value
                self._deeper(open_, depth)
            elif major == TAG and not self._skip_big(value):
                opened = 1
                self._deeper(open_, depth)
            elif major == OTHER and value == INDEFINITE:
                if not open_ or open_[-1] not in (in_array, at_key):
                    raise RemoteProtocolError("not CBOR")
                open_.pop()
            elif major == OTHER and value != FLOAT and not FALSE <= value <= UNDEFINED:
                raise RemoteProtocolError("an unknown simple value")
            if opened:
                open_.append(opened)
                continue
            while open_:
                top = open_[-1]
                if top < 0:
                    open_[-1] = {at_key: at_value, at_value: at_key}.get(top, in_array)
                    break
                open_[-1] = top - 1
                if top > 1:
                    break
                open_.pop()
            if not open_:
                return

    @staticmethod
    def _deeper(open_: list[int], depth: int) -> None:
        if len(open_) >= depth:
            raise RemoteProtocolError("a message nests too deep")

    def _skip_big(self, tag: int) -> bool:
        """Pass over a big number behind its tag; False, and nothing read, if it is none."""
        if tag not in (BIG_POSITIVE, BIG_NEGATIVE):
            return False
        before = self.pos
        major, length = self.head()
        if major != BYTES or not 0 <= length <= 16:
            self.pos = before
            return False
        digits = self.take(length)
        if tag == BIG_NEGATIVE and int.from_bytes(digits, "big") >> 127:
            raise RemoteProtocolError("an integer is too large")
        return True


def _utf8(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as exc:
        raise RemoteProtocolError("a text is not UTF-8") from exc
