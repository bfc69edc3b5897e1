"""The executors' client against a real node: chunks, staging, refusals, reconnecting, imports."""

from __future__ import annotations

import subprocess
import sys
from itertools import chain

import pyarrow as pa
import pytest

import polybus
from polybus.errors import (
    ConfigError,
    CorruptRecord,
    LimitExceeded,
    NoSuchTopic,
    NotAuthorized,
    OutOfRange,
    PeerUnavailable,
    RemoteProtocolError,
)
from polybus.model.chunk import parse_chunk
from polybus.spark.link import Link, Place
from polybus.spark.options import parse_options, parse_url
from polybus.spark.packing import by_topic, chunks_of
from tests.cli.processes import ANY_PORT, node

EXECUTOR_MODULES = ("link", "offsets", "options", "packing", "msgpack")


def place_of(served) -> Place:
    return Place(parse_url(served.url), patience=5)


def offsets_of(chunks) -> list[int]:
    return list(chain.from_iterable(range(v.base, v.end) for v in map(parse_chunk, chunks)))


def test_fetched_chunks_hold_the_range_that_was_asked_for(served):
    topic = served.topic(*(b"%d" % i for i in range(20_000)))
    with Link(place_of(served)) as link:
        found = offsets_of(link.fetch(topic, 5_000, 15_000, max_bytes=10_000))
    assert set(range(5_000, 15_000)) <= set(found)
    assert sorted(set(found)) == found


def test_a_connection_that_is_lost_between_fetches_is_made_again(served):
    topic = served.topic(*(bytes(100) for _ in range(20_000)))
    with Link(place_of(served)) as link:
        found = []
        for chunk in link.fetch(topic, 0, 20_000, max_bytes=1):
            found.append(chunk)
            assert link._socket is not None
            link._socket.close()
    assert offsets_of(found) == list(range(20_000))


def test_staged_chunks_are_invisible_until_published_and_a_repeat_is_a_no_op(served):
    topic = served.topic()
    rows = pa.record_batch({"payload": [b"%d" % i for i in range(10_000)]})
    with Link(place_of(served)) as link:
        tickets = link.stage(topic, chunks_of(rows))
        assert len(tickets) == 3
        assert link.topic(topic)["end"] == 0
        assert link.publish(topic, "sink", 4, tickets) == 0
        assert link.publish(topic, "sink", 4, link.stage(topic, chunks_of(rows))) == 0
        assert link.topic(topic)["end"] == 10_000
    assert served.payloads(topic) == [b"%d" % i for i in range(10_000)]


def test_rows_are_divided_by_their_topic_in_order():
    rows = pa.record_batch({"topic": ["a", "b", "a"], "payload": [b"1", b"2", b"3"]})
    assert [(t, part["payload"].to_pylist()) for t, part in by_topic(rows, "")] == [
        ("a", [b"1", b"3"]),
        ("b", [b"2"]),
    ]
    assert [t for t, _ in by_topic(rows, "c")] == ["c"]


def test_large_payloads_end_a_chunk_early():
    rows = pa.record_batch({"payload": [bytes(400_000)] * 5 + [bytes(3_000_000), b""]})
    chunks = list(chunks_of(rows))
    assert [parse_chunk(chunk).count for chunk in chunks] == [2, 2, 1, 1, 1]


def test_what_no_frame_of_the_node_holds_is_refused_at_once(served):
    topic = served.topic()
    rows = pa.record_batch({"payload": [bytes(65 << 20)]})
    with Link(place_of(served)) as link:
        with pytest.raises(LimitExceeded, match="bytes of a record, which must fit a frame"):
            link.stage(topic, chunks_of(rows))
        assert link.topic(topic)["end"] == 0


def test_errors_of_the_node_come_as_errors(served):
    topic = served.topic(b"1")
    with Link(place_of(served)) as link:
        with pytest.raises(NoSuchTopic, match="no such topic: nowhere"):
            link.topic("nowhere")
        with pytest.raises(OutOfRange):
            list(link.fetch(topic, 17, 18))
        with pytest.raises(RemoteProtocolError, match="sent nothing"):
            list(link.fetch(topic, 1, 2))


@pytest.mark.timeout(60)
def test_a_corrupt_chunk_is_an_error_with_its_place_and_never_a_gap(tmp_path):
    with node("--listen", ANY_PORT, "--data", str(tmp_path)) as (process, where):
        with polybus.connect_sync(where[0]) as bus:
            bus.produce_many("t", [b"payload that will be found"] * 100, create=True)
        process.terminate()
        process.wait()
    for file in (tmp_path / "topics").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes().replace(b"will be", b"WILL BE", 1))
    again = node("--listen", ANY_PORT, "--data", str(tmp_path))
    with again as (_, where), Link(Place(parse_url(where[0]))) as link:
        (unverified,) = link.fetch("t", 0, 100)
        with pytest.raises(CorruptRecord, match="the body's checksum"):
            parse_chunk(unverified)
        with pytest.raises(CorruptRecord, match=r"corrupt chunk in .*\.seg at byte 64"):
            list(link.fetch("t", 0, 100, verify=True))


def test_an_address_without_a_node_is_refused_at_once():
    with pytest.raises(PeerUnavailable, match="option url: no node answers at tcp://"):
        Link(Place(parse_url("polybus://127.0.0.1:1")), eager=True).topics()


@pytest.mark.timeout(60)
def test_tls_wants_an_authority_that_is_trusted_and_files_that_are_there(secured, tmp_path):
    def topics(**options: str) -> list[dict[str, object]]:
        place = parse_options({"url": secured.url, **options}).place
        with Link(place, eager=True) as link:
            return link.topics()

    assert topics(**secured.options) == []
    with pytest.raises(ConfigError, match=r"option tlsCa: the certificate of tls://.* not trusted"):
        topics()
    with pytest.raises(ConfigError, match=r"options tlsCa, .*: TLS file not found: /absent"):
        topics(tlsCa="/absent")
    with pytest.raises(PeerUnavailable, match="option url: no node answers at tls://"):
        topics(tlsCa=secured.options["tlsCa"])


@pytest.mark.timeout(60)
def test_a_token_lets_in_and_a_wrong_one_is_named(guarded):
    def topics(**options: str) -> list[dict[str, object]]:
        with Link(parse_options({"url": guarded, **options}).place) as link:
            link.declare("t")
            return link.topics()

    assert [topic["name"] for topic in topics(token="secret")] == ["t"]
    with pytest.raises(NotAuthorized, match=r"option token: .* a token that nobody has"):
        topics(token="guess")
    with pytest.raises(NotAuthorized, match=r"may not .* t"):
        topics()


def test_executors_need_the_standard_library_and_arrow_only():
    code = (
        "import sys\n"
        + "".join(f"import polybus.spark.{name}\n" for name in EXECUTOR_MODULES)
        + "import polybus.model.chunk\n"
        "heavy = {'msgspec', 'uvloop', 'asyncio', 'lmdb', 'click', 'cbor2'}\n"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
