"""Messages keep their frame and decode it only when asked."""

from __future__ import annotations

from polybus.model.message import Call, Publication, Reply, Status


def test_a_payload_is_decoded_once_and_only_when_somebody_looks():
    decoded: list[bytes] = []

    def decode(frame: bytes) -> bytes:
        decoded.append(frame)
        return frame[1:]

    call = Call(None, "a", None, wire="w", frame=b"!body", decode=decode)
    assert decoded == []
    assert call.payload == call.payload == b"body"
    assert decoded == [b"!body"]


def test_a_message_without_payload_and_decoder_is_empty():
    assert Publication(None, "t", None, None).payload == b""


def test_an_error_reply_has_a_text_whatever_its_bytes():
    call = Call(None, "a", b"")
    assert Reply(call, b"caf\xc3\xa9", Status.FAILED).text == "café"
    assert Reply(call, b"\xff", Status.FAILED).text == "�"
