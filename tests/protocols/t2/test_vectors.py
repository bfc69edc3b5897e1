"""The captured exchanges of the real server, replayed: in whole, byte by byte, and cut anywhere.

Where polybus differs on purpose, the difference is written down in `DIFFERENCES` and asserted.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polybus.model.clock import ManualClock
from polybus.protocols.t2.wire import (
    EMPTY,
    TIMEOUT,
    ack_content,
    encode_data,
    encode_frame,
    encode_uint,
    invalid_topic,
    payload_content,
    response_content,
)
from tests.protocols.t2.conftest import Bus, Client

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "t2.json").read_text())
BY_NAME = {vector["name"]: vector for vector in VECTORS}
KILLS = [name for name in BY_NAME if name.startswith("raw_kill_")]


def frame_of(step: dict[str, Any]) -> bytes:
    """The bytes of a step; a frame that the file shortens is made whole again."""
    begin = bytes.fromhex(step["hex"])
    if not step.get("truncated"):
        return begin
    missing: int = step["bytes"] - len(begin)
    if begin.endswith(b"/a/"):
        return begin + (b"a/" * missing)[:missing]
    unit = begin[-2:] if begin.endswith(b"\x18\xff") else begin[-1:]
    end = b"mis_compressed\xf4"
    return begin + unit * ((missing - len(end)) // len(unit)) + end


def ack(number: int, message_id: int, error: Any = None, recipients: int | None = None) -> bytes:
    return encode_frame(number, ack_content(encode_uint(message_id), error, recipients))


def different_deep_topic(step: dict[str, Any], expected: dict[str, bytes]) -> None:
    """The real server takes any depth and dies of it; ours is capped."""
    frame = frame_of(step)
    topic = frame[frame.index(b"a/a/a") :].decode()
    expected["client-a"] = ack(0, 1, invalid_topic(topic))


def expect_differences(name: str, vector: dict[str, Any], expected: dict[str, bytes]) -> None:
    """Change what the real server sent into what polybus sends, one difference after the other."""
    if name in KILLS:
        # An ordinary topic: acknowledged, and nobody else notices.
        expected["client-a"] = ack(1, 1, recipients=0)
        expected["client-b"] = ack(0, 1) + ack(2, 2)
        expected["client-c"] = ack(3, 1)
    elif name.startswith("raw_deep_topic_"):
        different_deep_topic(vector["steps"][0], expected)
    elif name == "raw_payload_as_byte_string":
        # Relayed as it came instead of as an array of integers.
        content = payload_content("Pub", "a", encode_data(b"\x01\xff\x20"), False)
        expected["client-a"] = ack(0, 1) + encode_frame(1, content)
    elif name == "raw_relay_grows_over_limit":
        content = payload_content("Pub", "a", encode_data(b"\xff" * 600_000), False)
        expected["client-a"] = ack(0, 1) + encode_frame(1, content)
        assert len(content) < 1 << 20
    elif name == "server_client_disconnects":
        # The requester is told at once.
        content = response_content(encode_uint(2), TIMEOUT, EMPTY, False)
        expected["client-b"] += encode_frame(5, content)


DIFFERENCES = {
    *KILLS,
    "raw_deep_topic_1000",
    "raw_deep_topic_10000",
    "raw_deep_topic_50000",
    "raw_deep_topic_200000",
    "raw_payload_as_byte_string",
    "raw_relay_grows_over_limit",
    "server_client_disconnects",
}


def replay(vector: dict[str, Any], cut: Callable[[int], list[int]]) -> dict[str, bytes]:
    """Feed the clients' side of an exchange and check the closes; what each client got."""
    bus = Bus(ManualClock())
    clients: dict[str, Client] = {}
    survives = vector["name"] in KILLS
    for step in vector["steps"]:
        to_client = step["from"] == "server"
        client = clients.setdefault(step["to"] if to_client else step["from"], bus.client())
        event = step.get("event")
        if to_client:
            if event == "close" and not survives:
                assert client.closed, "the real server closed this connection"
                client.settle()
            elif (
                b"\x67Timeout" in bytes.fromhex(step["hex"]) and vector["name"] == "request_timeout"
            ):
                bus.pass_time(31)
        elif event == "close":
            client.hang_up()
        else:
            data = frame_of(step)
            client.send(data, cut(len(data)))
    return {name: client.received() for name, client in clients.items()}


def captured(vector: dict[str, Any]) -> dict[str, bytes]:
    """What the real server sent to each client."""
    expected: dict[str, bytes] = defaultdict(bytes)
    for step in vector["steps"]:
        if step["from"] == "server":
            expected[step["to"]] += frame_of(step)
    return expected


def whole(length: int) -> list[int]:
    return []


def single_bytes(length: int) -> list[int]:
    # Of a very long frame the middle comes in larger pieces, or the test would take minutes.
    return [n for n in range(1, length) if n < 3000 or length - n < 3000 or n % 4096 == 0]


def test_all_exchanges_are_there():
    assert len(VECTORS) == len(BY_NAME) == 98
    assert BY_NAME.keys() >= DIFFERENCES


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("cut", [whole, single_bytes])
def test_the_captured_exchange_gives_the_captured_bytes(name, cut):
    vector = BY_NAME[name]
    expected = captured(vector)
    got = replay(vector, cut)
    if name in DIFFERENCES:
        assert got != dict(expected), "no difference: take it off the list"
        expect_differences(name, vector, expected)
    assert got == {client: expected[client] for client in got}


SMALL = [v for v in VECTORS if not any(s.get("truncated") for s in v["steps"])]


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_split_of_the_input_gives_the_same_result(data):
    vector = data.draw(st.sampled_from(SMALL), label="exchange")

    def cut(length: int) -> list[int]:
        cuts: list[int] = data.draw(st.lists(st.integers(0, length), max_size=6))
        return cuts

    assert replay(vector, cut) == replay(vector, whole)
