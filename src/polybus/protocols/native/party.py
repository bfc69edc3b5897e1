"""One native client as the others see it: what they send to it.

Invariant: a frame that goes to the same wire is the one that came in, under another id; what another party gives rise
to is bounded, answers are not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from polybus.core.endpoint import Endpoint
from polybus.core.router import Router
from polybus.errors import PolybusError
from polybus.model.message import Call, Publication, Reply, Status
from polybus.protocols.native import wire
from polybus.protocols.native.held import HeldCalls, Kept
from polybus.protocols.native.names import WIRE
from polybus.protocols.native.settings import Settings
from polybus.transports.outbox import Outbox


class Batch:
    """Frames that one read of one connection gave rise to: each peer gets them in one write.

    It lasts for that read only. What is written past it meanwhile are answers to the reading peer's own requests, which
    have no order with calls, replies and publications.
    """

    __slots__ = ("_frames",)

    def __init__(self) -> None:
        self._frames: dict[NativeParty, list[bytes]] = {}

    def add(self, target: NativeParty, frame: bytes) -> None:
        frames = self._frames.get(target)
        if frames is None:
            self._frames[target] = [frame]
        else:
            frames.append(frame)

    def flush(self) -> None:
        for target, frames in self._frames.items():
            if not target.closed:
                data = frames[0] if len(frames) == 1 else b"".join(frames)
                traffic = target.traffic
                traffic.messages_out += len(frames)
                traffic.bytes_out += len(data)
                target.outbox.write(data)


class NativeParty(Endpoint):
    """The endpoint half of a connection; the session half reads."""

    wire = WIRE
    __slots__ = (
        "_held",
        "_made",
        "_max_peer_frame",
        "_settings",
        "_taken",
        "batch",
        "outbox",
        "router",
    )

    def __init__(self, router: Router, settings: Settings) -> None:
        super().__init__()
        self.router = router
        self.outbox: Outbox = None  # type: ignore[assignment]  # set when the connection is made
        self.batch: Batch | None = None
        self._settings = settings
        self._max_peer_frame = settings.max_frame
        self._made: dict[int, Call] = {}
        self._taken: dict[int, Call] = {}
        self._held: HeldCalls | None = None

    # -- Endpoint ------------------------------------------------------------------------------------------------------

    def deliver_call(self, call: Call) -> None:
        if call.wire == WIRE:
            frame = wire.with_id(call.frame, call.id)
        else:
            frame = wire.encode(
                wire.CALL,
                call.id,
                call.name,
                call.payload,
                flags=0 if call.wants_reply else wire.NO_REPLY,
                arg=self._time_left(call),
                meta=wire.encode_headers(call.headers),
            )
        if len(frame) > self._max_peer_frame:
            self.router.fail(call, Status.TOO_LARGE, _too_large(len(frame), self._max_peer_frame))
            return
        call.forget_payload()
        if call.wants_reply:
            self._taken[call.id] = call
        if not self._take(frame, call.caller):
            self._hold(call, frame)

    def deliver_reply(self, reply: Reply) -> None:
        ident: int = reply.call.token
        if reply.final:
            self._made.pop(ident, None)
        if reply.wire == WIRE:
            frame = wire.with_id(reply.frame, ident)
        else:
            flags = 0 if reply.final else wire.MORE
            meta = wire.encode_headers(reply.headers)
            frame = wire.encode(
                wire.REPLY, ident, "", reply.payload, flags=flags, arg=reply.status, meta=meta
            )
        if len(frame) > self._max_peer_frame:
            frame = self._too_large_reply(reply, len(frame))
        source = reply.call.service
        if reply.wire != WIRE or self.outbox.congested or source.batch is None:
            self.send(frame)
        else:
            source.batch.add(self, frame)

    def deliver_publication(self, publication: Publication) -> bool:
        if publication.wire == WIRE:
            frame = publication.frame
        else:
            name = publication.topic if publication.name is None else publication.name
            meta = wire.encode_headers(publication.headers)
            frame = wire.encode(wire.PUBLICATION, 0, name, publication.payload, meta=meta)
        source = publication.publisher
        fits = len(frame) <= self._max_peer_frame
        if fits and self._take(frame, source, self.outbox.offer_publication):
            return True
        self.traffic.dropped += 1
        return False

    def cancel_call(self, call: Call) -> None:
        if self._taken.pop(call.id, None) is not None:
            # Refused when the queue is full: then the answer comes and nobody waits for it.
            self._take(wire.encode(wire.CANCEL, call.id), call.caller)

    def hold_input(self, held: bool) -> None:
        self.outbox.throttle(held)

    def close(self, reason: str) -> None:
        self.outbox.close(reason)

    # -- output --------------------------------------------------------------------------------------------------------

    def answer(self, ident: int, result: Mapping[str, object] | None = None) -> None:
        """End a request well; id 0 wants no answer."""
        if ident:
            meta = wire.encode_meta(result) if result else b""
            self.send(wire.encode(wire.OK, ident, meta=meta))

    def answer_error(self, ident: int, error: PolybusError) -> None:
        """End a request with an error; one that wants no answer is only counted."""
        self.traffic.failures += 1
        if ident:
            self.send(wire.encode_error(ident, error))

    @property
    def max_answer(self) -> int:
        """Bytes that a meta map may have in a frame to this client."""
        return self._max_peer_frame - 64

    def _take(
        self, frame: bytes, source: Endpoint, offer: Callable[[bytes, int], bool] | None = None
    ) -> bool:
        """Queue a frame that another party gave rise to; False when there is no room for it."""
        if (
            isinstance(source, NativeParty)
            and source.batch is not None
            and not self.outbox.congested
        ):
            source.batch.add(self, frame)
            return True
        if not (offer or self.outbox.offer)(frame, source.id):
            return False
        traffic = self.traffic
        traffic.messages_out += 1
        traffic.bytes_out += len(frame)
        return True

    def send(self, frame: bytes) -> None:
        """Write what is never refused: answers."""
        traffic = self.traffic
        traffic.messages_out += 1
        traffic.bytes_out += len(frame)
        self.outbox.write(frame)

    def send_rest(self, part: bytes | memoryview) -> None:
        """Write more of the frame that was begun last."""
        self.traffic.bytes_out += len(part)
        self.outbox.write(cast(bytes, part))  # transports take any buffer

    # -- bounds --------------------------------------------------------------------------------------------------------

    def _hold(self, call: Call, frame: bytes) -> None:
        if self._held is None:
            self._held = HeldCalls()
            self.outbox.input = Kept(self.outbox.input, self._held)
            self.outbox.on_drained = self._retry_held
        until = self.router.clock.monotonic() + self._settings.forward_timeout
        if not self._held.hold(call, frame, until):
            self._stall(call)

    def _retry_held(self) -> None:
        if self._held:
            self._held.retry(self.outbox.offer)

    def _stall(self, call: Call) -> None:
        self.traffic.dropped += 1
        self._taken.pop(call.id, None)
        self.router.fail(call, Status.STALLED, b"the service does not take its calls")

    def _too_large_reply(self, reply: Reply, size: int) -> bytes:
        """What the caller gets instead; a stream ends with it."""
        ident: int = reply.call.token
        self._made.pop(ident, None)
        if not reply.final:
            self.router.cancel(reply.call)
        text = _too_large(size, self._max_peer_frame)
        return wire.encode(wire.REPLY, ident, "", text, arg=Status.TOO_LARGE)

    def _time_left(self, call: Call) -> int:
        if call.deadline is None:
            return 0
        left = round((call.deadline - self.router.clock.monotonic()) * 1000)
        return min(max(left, 1), wire.MAX_TIMEOUT_MS)


def _too_large(size: int, limit: int) -> bytes:
    return f"a frame of {size} bytes does not fit the peer's {limit}".encode()
