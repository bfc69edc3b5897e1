"""Answers to consumes carry the headers of their own message, whoever it came from."""

from __future__ import annotations

from typing import Any, cast
from weakref import ref

from hypothesis import given
from hypothesis import strategies as st

from polybus.http.head import Head
from polybus.http.request import Request
from polybus.model.record import Delivery, Record
from polybus.protocols.zbus.deliveries import PRODUCERS, Deliveries
from polybus.protocols.zbus.wire import MessageReader

HEAD = Head("GET", "/", {})
HEAD.ordered = False
NOBODY = cast(Any, None)
# More than are kept, and each of them one object, as records of one chunk share theirs
SENDERS = [{"sender": f"s{number}"} for number in range(2 * PRODUCERS)]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(SENDERS), st.sampled_from(["", "a", "b"]), st.sampled_from(["T", "U"])
        ),
        max_size=60,
    )
)
def test_producers_who_take_turns_are_not_mixed_up(sent: list[tuple[dict[str, str], str, str]]):
    deliveries, reader = Deliveries(), MessageReader()
    for offset, (headers, tag, topic) in enumerate(sent):
        record = Record(offset, 0, b"x" * (offset % 3), b"id", tag, headers)
        request = Request(NOBODY, HEAD, str(offset), b"")
        (found,) = reader.feed(deliveries.encode(Delivery(topic, "g", record), request))
        assert (found.get("sender"), found.get("topic")) == (headers["sender"], topic)
        assert (found.get("tag") or "") == tag
        assert (found.get("offset"), found.id, found.get("origin_id")) == (
            str(offset),
            str(offset),
            "id",
        )
        assert found.body == record.payload


class Headers(dict[str, str]):
    """Headers of which can be told how many are still held."""


def test_headers_that_are_made_anew_for_each_message_do_not_pile_up():
    deliveries = Deliveries()
    given: list[ref[Headers]] = []
    for number in range(100):
        headers = Headers(number=str(number))
        given.append(ref(headers))
        record = Record(number, 0, b"", b"", "", headers)
        raw = deliveries.encode(Delivery("T", "g", record), Request(NOBODY, HEAD, "1", b""))
        assert b"\r\nnumber: %d\r\n" % number in raw
        assert sum(each() is not None for each in given) <= PRODUCERS + 1
