"""The hot loop: calls, replies and broadcasts between clients of the current framing, forwarded without decoding.

Only frames in canonical field order whose last field ends exactly at the frame's end are handled here; everything
else goes to `session.take`, which parses in full. Invariant: for every input the two ways give the same result.
Consecutive frames for one peer travel as one slice, and each peer gets one write per read batch.

Plain typed Python which Cython also compiles (`relay.pxd` has the C types): no closures, no generators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polybus.core.endpoint import Traffic
    from polybus.core.journal import Opened
    from polybus.protocols.gsb.party import GsbParty
    from polybus.protocols.gsb.session import GsbSession

CALL_TAG = 0x32
REPLY_TAG = 0x3A
BROADCAST_TAG = 0x62

# The real client's have 16; they stay in memory as long as their calls are open
MAX_REQUEST_ID = 1024
MAX_TEMPLATES = 256  # per connection; a mix of more sizes than this gains nothing from them


class Route:
    """Where calls to one address go, as long as the services' epoch stands; `name` is what the journal calls it."""

    __slots__ = ("name", "target", "traffic")

    def __init__(self, target: GsbParty, traffic: Traffic, name: str) -> None:
        self.target = target
        self.traffic = traffic
        self.name = name


CallTemplate = tuple[int, int, bytes, int, Route, "dict[bytes, GsbParty]"]
"""What follows from the first bytes of a call, up to its request id: frame length, end of the id, the bytes between
id and data, their end, the route and the service's table of pending calls."""

ReplyTemplate = tuple[int, int, bytes, int]


def relay(session: GsbSession, data: bytes) -> int:
    """Handle all whole frames in `data`; the position after the last one.

    Two clients that exchange messages of like shape send frames that differ in request id and data only. So what a
    scan has found out is kept under the frame's first bytes, and a frame that begins with them is not scanned again.
    """
    size = len(data)
    pos = 0
    start = 0  # of the run: consecutive frames with one destination
    count = 0
    run: object = None
    serving = session.serving
    calls = session.call_templates
    replies = session.reply_templates
    call_cut = session.call_cut
    reply_cut = session.reply_cut
    journal = session.journal
    noted = 0
    if journal is not None:
        now = journal.now()
        opened = session.opened
        # Calls of one shape that came together share what is noted of them ...
        asked = None
        opening: Opened = (0, 0, "")
        # ... and so do those of one caller that end together with replies of one shape, all but their ids.
        ended = shape = answered = None
        ids: list[bytes] = []
    while size - pos > 4:
        tag = data[pos + 4]
        if tag == CALL_TAG:
            call = calls.get(data[pos : pos + call_cut])
            if call is None:
                call = learn_call(session, data, pos, size)
                call_cut = session.call_cut
            if call is not None:
                length, id_end, tail, tail_end, route, pending = call
                if pos + length > size:
                    break
                request_id = data[pos + call_cut : pos + id_end]
                if (
                    data[pos + id_end : pos + tail_end] == tail
                    and request_id.isascii()
                    # An id that is pending there from another connection is rewritten, by the slow way.
                    and pending.setdefault(request_id, session) is session
                ):
                    if route is not run:
                        if count:
                            hand_over(session, run, data[start:pos], count)
                        run = route
                        start = pos
                        count = 0
                    if journal is not None:
                        if call is not asked:
                            asked = call
                            opening = (now, length - tail_end, route.name)
                        route.target.opened[request_id] = opening
                    count += 1
                    pos += length
                    continue
        elif tag == REPLY_TAG:
            reply = replies.get(data[pos : pos + reply_cut])
            if reply is None:
                reply = learn_reply(session, data, pos, size)
                reply_cut = session.reply_cut
            if reply is not None:
                length, id_end, tail, tail_end = reply
                if pos + length > size:
                    break
                if data[pos + id_end : pos + tail_end] == tail:
                    request_id = data[pos + reply_cut : pos + id_end]
                    caller = serving.pop(request_id, None)
                    if caller is not None:
                        if journal is not None:
                            entry = opened.pop(request_id, None)
                            if entry is not None:
                                same = entry is ended and reply is shape
                                if not same or caller is not answered:
                                    ended, shape, answered = entry, reply, caller
                                    who = caller.identity.text
                                    ids = journal.alike(now, "gsb", entry, who, length - tail_end)
                                ids.append(request_id)
                                noted += 1
                        if caller is not run:
                            if count:
                                hand_over(session, run, data[start:pos], count)
                            run = caller
                            start = pos
                            count = 0
                        count += 1
                        pos += length
                        continue
        elif tag == BROADCAST_TAG:
            length = int.from_bytes(data[pos : pos + 4]) + 4
            if pos + length > size:
                break
            topic = scan_broadcast(data, pos, pos + length)
            if topic is not None:
                recipients = session.recipients(topic)
                if recipients is not None:
                    if recipients is not run:
                        if count:
                            hand_over(session, run, data[start:pos], count)
                        run = recipients
                        start = pos
                        count = 0
                    if journal is not None:
                        session.note_broadcast(topic, length, len(recipients))
                    count += 1
                    pos += length
                    continue
        # Everything else, one frame at a time and after what came before it.
        length = int.from_bytes(data[pos : pos + 4]) + 4
        if length > session.max_frame or pos + length > size:
            break  # too long or not yet whole: the session judges
        if count:
            hand_over(session, run, data[start:pos], count)
            run = None
            count = 0
        end = pos + length
        session.take(data[pos:end])
        pos = end
        if session.stopped:
            break
        call_cut = session.call_cut
        reply_cut = session.reply_cut
    if count:
        hand_over(session, run, data[start:pos], count)
    if journal is not None:
        journal.settle(noted)
    return pos


def hand_over(session: GsbSession, run: object, part: bytes, count: int) -> None:
    """Queue a run of frames at whoever gets it."""
    session.traffic.messages_in += count
    if isinstance(run, Route):
        run.traffic.calls += count
        run.target.enqueue(part, count)
    elif isinstance(run, tuple):
        session.acknowledge_broadcasts(count)
        for target in run:
            target.enqueue(part, count)
    else:
        run.enqueue(part, count)  # type: ignore[attr-defined]  # the caller's session


def learn_call(session: GsbSession, data: bytes, pos: int, size: int) -> CallTemplate | None:
    """Scan a call and keep what was found; None if it is not canonical, not whole, or not for the fast way."""
    end = frame_end(session, data, pos, size)
    caller_at, at = field_at(data, inner_at(data, pos, end), end, 0x0A)
    address_at, address_end = field_at(data, at, end, 0x12)
    id_at, id_end = field_at(data, address_end, end, 0x1A)
    data_at, data_end = field_at(data, id_end, end, 0x22)
    if data_end != end or address_at == address_end or not 0 < id_end - id_at <= MAX_REQUEST_ID:
        return None
    route = session.fast_route(data[caller_at:at], data[address_at:address_end])
    if route is None:
        return None
    session.call_cut = id_at - pos
    tail = data[id_end:data_at]
    template = (end - pos, id_end - pos, tail, data_at - pos, route, route.target.serving)
    if len(session.call_templates) >= MAX_TEMPLATES:
        session.call_templates.clear()
    session.call_templates[data[pos:id_at]] = template
    return template


def learn_reply(session: GsbSession, data: bytes, pos: int, size: int) -> ReplyTemplate | None:
    """Scan a reply and keep what was found; None if it is not canonical, not whole, not OK or not the last one."""
    end = frame_end(session, data, pos, size)
    id_at, id_end = field_at(data, inner_at(data, pos, end), end, 0x0A)
    data_at, data_end = field_at(data, id_end, end, 0x22)
    if data_end != end or id_at == id_end:
        return None
    session.reply_cut = id_at - pos
    template = (end - pos, id_end - pos, data[id_end:data_at], data_at - pos)
    if len(session.reply_templates) >= MAX_TEMPLATES:
        session.reply_templates.clear()
    session.reply_templates[data[pos:id_at]] = template
    return template


def frame_end(session: GsbSession, data: bytes, pos: int, size: int) -> int:
    """Where the frame at `pos` ends; -1, where no field can end, if it is not whole or too long."""
    length = int.from_bytes(data[pos : pos + 4]) + 4
    return pos + length if pos + length <= size and length <= session.max_frame else -1


def inner_at(data: bytes, pos: int, end: int) -> int:
    """Where the inner message of a frame begins; beyond `end` if it does not fill the frame."""
    inner, at = varint_at(data, pos + 5, end)
    return at if at + inner == end else end + 1


def scan_broadcast(data: bytes, pos: int, end: int) -> bytes | None:
    """The topic of a canonical broadcast with an ASCII caller, else None."""
    caller_at, at = field_at(data, inner_at(data, pos, end), end, 0x0A)
    if not data[caller_at:at].isascii():
        return None
    _data_at, at = field_at(data, at, end, 0x12)
    topic_at, topic_end = field_at(data, at, end, 0x1A)
    return data[topic_at:topic_end] if topic_end == end else None


def field_at(data: bytes, pos: int, end: int, tag: int) -> tuple[int, int]:
    """Start and end of the value of the field `tag` at `pos`; both `pos` if another field, or none, stands there.

    A value that runs past the end is given as it is: its end is then not the frame's, which every caller checks.
    """
    if pos >= end or data[pos] != tag:
        return pos, pos
    length, at = varint_at(data, pos + 1, end)
    if length < 0:
        return pos, pos
    return at, at + length


def varint_at(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """The number at `pos` and the position after it; (-1, pos) if it is cut off, too long or not minimal."""
    value = 0
    shift = 0
    at = pos
    while at < end and shift < 35:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                break  # a padded number would not survive re-encoding: leave it to the full parser
            return value, at
        shift += 7
    return -1, pos
