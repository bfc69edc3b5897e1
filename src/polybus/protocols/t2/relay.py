"""The hot loop: publications, requests and responses between T2 clients, forwarded without decoding.

Only frames in the real client's own field order, whose payload ends exactly at the frame's end, are handled here;
everything else goes to `session.take`, which parses in full. Invariant: for every input the two ways give the same
result. A forwarded frame is a new head (length and id) and the rest of the old frame.

Plain typed Python which Cython also compiles (`relay.pxd` has the C types): no closures, no generators. Where a
function says `view = data`, the view is a plain C pointer once compiled: it costs next to nothing, and nothing guards
its bounds, so every position is known to lie within the frame before it is used.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from polybus.errors import RemoteProtocolError
from polybus.protocols.t2.cbor import count_elements

if TYPE_CHECKING:
    from polybus.core.endpoint import Endpoint, Traffic
    from polybus.core.journal import Opened
    from polybus.protocols.t2.party import T2Party
    from polybus.protocols.t2.session import T2Session

MAX_BODY = 1 << 20
MAX_TAIL = MAX_BODY - 9  # what leaves room for the longest id in front of it
MAX_ASKED = 65536  # requests that one client waits for, as the core's calls of one caller
# Bytes of the shortest body with a payload: everything up to its topic can be looked at
SHORTEST = 57
COMPILED = not __file__.endswith(".py")

ENVELOPE = b"\xa2bid"
PUB = b"gcontent\xa1cPub\xa2etopic"
REQ = b"gcontent\xa1cReq\xa2etopic"
RSP = b"gcontent\xa1cRsp\xa3freq_id"
RSP_OK = b"fstatusbOkgpayload\xa2ddata"
RSP_TIMEOUT = b"fstatusgTimeoutgpayload\xa2ddata"
PAYLOAD = b"gpayload\xa2ddata"
COMPRESSED = b"mis_compressed"
ACK = b"gcontent\xa1cAck\xa3fmsg_id"
NO_COUNT = b"cerr\xf6nnum_recipients\xf6"
COUNTS = [b"cerr\xf6nnum_recipients" + bytes((n,)) for n in range(24)]

# Length, ENVELOPE as a number, the head of a four-byte integer, the id: how nearly every frame of a busy bus begins.
pack_head = struct.Struct(">IIBI").pack
pack_ack = struct.Struct(f">IIBI{len(ACK)}s").pack
unpack_head = struct.Struct(">II").unpack_from
ENVELOPE_NUMBER = 0xA2626964


class Route:
    """Where publications to one topic (`targets`, `others`) or requests for it (`owner`) go while the epochs stand."""

    __slots__ = ("opened", "others", "owner", "targets", "topic", "traffic")

    def __init__(
        self,
        topic: str,
        targets: tuple[T2Party, ...] = (),
        others: tuple[Endpoint, ...] = (),
        owner: T2Party | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        self.topic = topic
        self.opened: Opened | None = None
        """What the journal was last told of a request: those of one batch and size share it."""
        self.targets = targets
        self.others = others
        self.owner = owner
        self.traffic = traffic


def relay(session: T2Session, data: bytes) -> int:
    """Handle all whole frames in `data`, or those up to where the session has to rest; the position after the last.

    Raises:
        RemoteProtocolError: a header announces more than a frame may hold, or a frame is refused.
    """
    size = len(data)
    view = data
    pos = 0
    routes = session.routes
    while size - pos >= 8:
        if COMPILED:
            length = view[pos + 1] << 16 | view[pos + 2] << 8 | view[pos + 3]
            if view[pos]:
                break  # 16 MiB and more
            envelope = ENVELOPE_NUMBER if data.startswith(ENVELOPE, pos + 4) else 0
        else:
            length, envelope = unpack_head(data, pos)
        end: int = pos + 4 + length
        if length > MAX_BODY or end > size:
            break
        if envelope == ENVELOPE_NUMBER and length >= SHORTEST:
            at = after_id(data, pos + 8)
            if at:
                if view[at + 11] == 0x73:  # the s of Rsp
                    if respond(session, data, pos + 8, at, end):
                        pos = end
                        continue
                else:
                    head = view[at + 20]
                    # A topic of 24 bytes and more has its length in a byte of its own.
                    payload_at = at + head - 61 if head < 0x78 else at + view[at + 21] + 36
                    if at < payload_at < end:
                        route = routes.get(view[at:payload_at])
                        if route is None:
                            if session.resting:
                                return pos
                            route = learn(session, data, at, payload_at)
                        if route is not None and is_payload(data, payload_at, end):
                            if route.owner is None:
                                if route.others and session.resting:
                                    return pos
                                publish(session, route, view[at:end], view[pos + 8 : at])
                            else:
                                request(session, route, view[at:end], view[pos + 8 : at])
                            pos = end
                            continue
        if session.resting:
            return pos
        session.take(view[pos + 4 : end])
        pos = end
        if session.stopped:
            return pos
    if size - pos >= 4:
        length = int.from_bytes(data[pos : pos + 4], "big")
        if length > MAX_BODY:
            raise RemoteProtocolError(f"a frame of {length} bytes is over the limit of {MAX_BODY}")
        if length < 4 and pos + 4 + length <= size:
            # Too short for any message: it is refused there.
            session.take(data[pos + 4 : pos + 4 + length])
    return pos


def after_id(data: bytes, pos: int) -> int:
    """The position after the id at `pos`; 0 if it is no number of up to 32 bits in its shortest form."""
    view = data
    first = view[pos]
    if first < 24:
        return pos + 1
    if first == 24:
        return pos + 2 if view[pos + 1] > 23 else 0
    if first == 25:
        return pos + 3 if view[pos + 1] else 0
    if first == 26:
        return pos + 5 if view[pos + 1] or view[pos + 2] else 0
    return 0


def learn(session: T2Session, data: bytes, at: int, payload_at: int) -> Route | None:
    """Find the route of a frame whose content is `data[at:payload_at]` up to its payload, and keep it.

    None if the frame is not written as the real client writes it, or is not for the fast way.
    """
    prefix = data[at:payload_at]
    head = data[at + 20]
    skip = 21 if head < 0x78 else 22
    if not (0x61 <= head <= 0x78) or (head == 0x78 and data[at + 21] < 24):
        return None
    if not prefix.endswith(PAYLOAD) or len(prefix) <= skip + 14:
        return None
    topic = prefix[skip:-14]
    if prefix.startswith(PUB):
        route = session.publish_route(topic)
    elif prefix.startswith(REQ):
        route = session.request_route(topic)
    else:
        return None
    if route is not None:
        session.room.keep_route(session.routes, prefix, route)
    return route


def is_payload(data: bytes, at: int, end: int) -> bool:
    """Whether the rest of the frame is payload data at `at` and the compression flag, in their shortest form."""
    view = data
    tail = end - 15
    if at >= tail or not data.startswith(COMPRESSED, tail) or view[end - 1] & 0xFE != 0xF4:
        return False
    head = view[at]
    major = head & 0xE0
    count = head & 0x1F
    at += 1
    if count == 24:
        count = view[at]
        at += 1
    elif count == 25:
        count = view[at] << 8 | view[at + 1]
        at += 2
    elif count == 26:
        count = view[at] << 24 | view[at + 1] << 16 | view[at + 2] << 8 | view[at + 3]
        at += 4
    elif count > 26:
        return False
    if major == 0x40:
        return at + count == tail
    if major != 0x80 or at > tail:
        return False
    found = count_bytes(data, at, tail) if COMPILED else count_elements(data[at:tail])
    return found == count


def count_bytes(data: bytes, at: int, end: int) -> int:
    """The same as `count_elements` of a span of `data`, in the shape that is fast once compiled."""
    view = data
    count = 0
    while at < end:
        value = view[at]
        if value == 24:
            at += 1
            if at == end or view[at] < 24:
                return -1
        elif value > 24:
            return -1
        at += 1
        count += 1
    return count


def frame_head(message_id: int, size: int) -> bytes:
    """What stands before a content of `size` bytes: length, envelope and id."""
    if message_id > 0xFFFF:
        return pack_head(size + 9, ENVELOPE_NUMBER, 26, message_id)
    if message_id < 24:
        number = bytes((message_id,))
    elif message_id < 256:
        number = bytes((24, message_id))
    else:
        number = bytes((25, message_id >> 8, message_id & 255))
    return (size + 4 + len(number)).to_bytes(4, "big") + ENVELOPE + number


def ack_frame(number: int, message_id: bytes, rest: bytes) -> bytes:
    """An Ack; `rest` is what follows the id of the message, see `NO_COUNT` and `COUNTS`."""
    size = len(ACK) + len(message_id) + len(rest)
    if number > 0xFFFF:
        return pack_ack(size + 9, ENVELOPE_NUMBER, 26, number, ACK) + message_id + rest
    return frame_head(number, size) + ACK + message_id + rest


def send_ack(session: T2Session, message_id: bytes, rest: bytes) -> None:
    """Queue an Ack: it follows whatever the message caused (protocol page §3)."""
    room = session.room
    number = room.next_id
    room.next_id = number + 1 & 0xFFFFFFFF
    queue = session.queue
    if not queue:
        room.waiting.append(session)
    queue.append(ack_frame(number, message_id, rest))
    session.acks += 1


def publish(session: T2Session, route: Route, content: bytes, message_id: bytes) -> None:
    """Deliver to everybody on the route and acknowledge with their number."""
    room = session.room
    size = len(content)
    if size > MAX_TAIL:
        session.publish_oversized(route, content, message_id)
        return
    number = room.next_id
    waiting = room.waiting
    count = 0
    for target in route.targets:
        wide = number > 0xFFFF
        head = (
            pack_head(size + 9, ENVELOPE_NUMBER, 26, number) if wide else frame_head(number, size)
        )
        number = number + 1 & 0xFFFFFFFF
        if target.outbox.congested:
            if not target.offer_publication(head + content, session):
                continue
        else:
            queue = target.queue
            if not queue:
                waiting.append(target)
            queue.append(head)
            queue.append(content)
        count += 1
    room.next_id = number
    if route.others:
        count += session.publish_abroad(route, content)
    if room.journal is not None:
        session.note_publication(route.topic, size, count)
    send_ack(session, message_id, COUNTS[count] if count < 24 else session.count_of(count))


def request(session: T2Session, route: Route, content: bytes, message_id: bytes) -> None:
    """Pass a request to the owner of its topic and acknowledge that."""
    room = session.room
    owner = route.owner
    size = len(content)
    if size > MAX_TAIL or owner is None:
        session.request_oversized(message_id)
        return
    asked = session.asked
    if len(asked) >= MAX_ASKED:
        session.request_refused(message_id)
        return
    number = room.next_id
    head = frame_head(number, size)
    key = head[8:]
    serving = owner.serving
    if key in serving or key in asked:  # the counter has gone round
        number = room.free_id(serving, asked)
        head = frame_head(number, size)
        key = head[8:]
    room.next_id = number + 1 & 0xFFFFFFFF
    opened = None
    if room.journal is not None:
        opened = route.opened
        if opened is None or opened[0] is not room.now or opened[1] != size:
            opened = route.opened = (room.now, size, route.topic)
    serving[key] = (session, message_id, room.deadline, opened)
    asked[key] = owner
    if route.traffic is not None:
        route.traffic.calls += 1
    if owner.outbox.congested:
        # One that finds no room is never answered: its requester gets the Timeout in time.
        owner.offer(head + content, session)
    else:
        queue = owner.queue
        if not queue:
            room.waiting.append(owner)
        queue.append(head)
        queue.append(content)
    send_ack(session, message_id, NO_COUNT)


def respond(session: T2Session, data: bytes, id_at: int, at: int, end: int) -> bool:
    """Pass a response to whoever waits for it; False, and nothing done, if the frame is not for the fast way."""
    view = data
    if not data.startswith(RSP, at) or end - at < 62:
        return False
    key_end = after_id(data, at + 21)
    if not key_end:
        return False
    if data.startswith(RSP_OK, key_end):
        payload_at = key_end + 24
    elif data.startswith(RSP_TIMEOUT, key_end):
        payload_at = key_end + 29
    else:
        return False
    key = view[at + 21 : key_end]
    entry = session.serving.get(key)
    if entry is None or not is_payload(data, payload_at, end):
        return False
    requester = entry[0]
    asked = entry[1]
    if requester is None or not isinstance(asked, bytes):
        return False  # a call of another wire
    size = 21 + len(asked) + end - key_end
    if size > MAX_TAIL:
        return False
    del session.serving[key]
    del requester.asked[key]
    room = session.room
    opened = entry[3]
    if opened is not None and room.journal is not None:
        status = 0 if payload_at == key_end + 24 else 5  # the numbers of Status.OK and TIMED_OUT
        room.note_answered(opened, requester, end - payload_at, status)
    number = room.next_id
    room.next_id = number + 1 & 0xFFFFFFFF
    queue = requester.queue
    if not queue:
        room.waiting.append(requester)
    queue.append(frame_head(number, size) + RSP + asked)
    queue.append(view[key_end:end])
    send_ack(session, view[id_at:at], NO_COUNT)
    return True
