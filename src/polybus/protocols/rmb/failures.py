"""What a client is told when its request failed: texts and shapes of each generation.

Invariant: every failed request gets one message per destination, made here; texts are the originals' where they have
one (protocol page §1.3, §2, §3.3).
"""

from __future__ import annotations

from typing import Final

from polybus.protocols.rmb.message import DEFAULT_EXP, Generation, Message
from polybus.protocols.rmb.pending import Waiting

_TIMEOUT: Final = "request timeout (expiration reached, "


def not_found(generation: Generation, dst: int) -> str:
    match generation:
        case "rs":
            return f"receive error reply from remote rmb: `twin with id {dst} not found`"
        case "v1":
            return "unknown twin destination"
        case "v2":
            why = f"failed to resolve twin ({dst}) destination"
            return f"could not send request and all retries done, last error: {why}"
        case _:
            return "destination not found"


def refused(generation: Generation, dst: int, phrase: str, body: str) -> str:
    """The peer answered with a status that is a refusal."""
    match generation:
        case "rs":
            return (
                f"receive error reply from remote rmb: `received error {phrase} from remote twin`"
            )
        case "v1":
            return f"could not send request: {phrase}"
        case "v2":
            code = phrase.partition(" ")[0]
            why = f"got error response from twin {dst}:\nstatus code: {code}\nresponse: {body}"
            return f"could not send request and all retries done, last error: {why}"
        case _:
            return f"twin {dst} refused the message: {phrase}"


def unreachable(generation: Generation, dst: int, reason: str) -> str:
    """No attempt reached the peer."""
    match generation:
        case "rs":
            return (
                f"failed to deliver message to remote rmb: failure of message delivery!: {reason}"
            )
        case "v1":
            return "could not send request and all retries done"
        case "v2":
            why = f"failed to send message to twin {dst} with error: {reason}"
            return f"could not send request and all retries done, last error: {why}"
        case _:
            return f"could not deliver the message to twin {dst}: {reason}"


def too_late(generation: Generation, exp: int) -> str:
    """The time was over before it could be sent."""
    if generation == "rs":
        text = "message validation failed: message has expired"
        return f"failed to deliver message to remote rmb: {text}"
    return unanswered(exp)


def unanswered(exp: int) -> str:
    """It was sent, and no answer came in time."""
    return f"{_TIMEOUT}{exp or DEFAULT_EXP} seconds)"


def is_timeout(text: str) -> bool:
    """Whether an error says that no answer came in time."""
    return text.startswith(_TIMEOUT)


def reply_with(generation: Generation, own: int, waiting: Waiting, text: str) -> Message:
    """The answer to a request of ours that failed on its way to `waiting.dst`."""
    m = waiting.message
    if generation in ("v1", "v2"):
        # Not swapped, and the body kept: so the first generation does it.
        return m.copy(src=own, dst=[waiting.dst], uid=m.uid or waiting.uid, err=text)
    uid = m.uid or waiting.uid
    return m.copy(uid=uid, src=waiting.dst, dst=[own], dat="", err=text, sig=waiting.sig)


def refusal(generation: Generation, own: int, m: Message, dst: int, text: str) -> Message:
    """The answer to a message that was not accepted for `dst`."""
    if generation in ("v1", "v2"):
        return m.copy(src=own, dst=[dst], err=text)
    return m.copy(src=dst, dst=[own], dat="", err=text, sig=None)


def expired(generation: Generation, own: int, waiting: Waiting) -> Message:
    """The answer to a request whose deadline passed."""
    text = unanswered(waiting.message.exp)
    if generation in ("v1", "v2"):
        m = waiting.message
        return m.copy(uid=m.uid, src=0, err=text)
    return reply_with(generation, own, waiting, text)
