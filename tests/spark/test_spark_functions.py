"""Captured payloads become JSON text, and what cannot is kept with a reason."""

from __future__ import annotations

import base64
import gzip
import json
import zlib

import cbor2
import pytest
from flatbuffers import flexbuffers
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F

from polybus.spark import functions as decoders
from polybus.spark.decoding import DECODERS, decode

VALUE = {"name": "ann", "n": [1, 2.5, None, True]}


@pytest.mark.parametrize(
    ("wire", "payload", "expected"),
    [
        ("json", b' {"a": 1}', {"a": 1}),
        ("native", b"[1]", [1]),
        ("t2", cbor2.dumps(VALUE), VALUE),
        ("t2", gzip.compress(cbor2.dumps(VALUE)), VALUE),
        ("t2", cbor2.dumps({"b": b"\xff", 1: "x"}), {"b": {"$base64": "/w=="}, "1": "x"}),
        ("rmb", json.dumps({"cmd": "a.b", "dat": base64.b64encode(b'{"x":1}').decode()}).encode(),
         {"cmd": "a.b", "dat": {"x": 1}}),
        ("rmb", b"[3]", [3]),
        ("rmb", b'{"cmd":"a","data":"not base64!"}', {"cmd": "a", "data": "not base64!"}),
        ("zbus", b'{"module":"m","method":"f","params":[1],"@type":"T"}',
         {"module": "m", "method": "f", "params": [1]}),
        ("zbus", b'{"error":null,"result":3}', {"error": None, "result": 3}),
        ("gsb", bytes(flexbuffers.Dumps({"Ok": [1, "x"]})), {"Ok": [1, "x"]}),
        ("gsb", zlib.compress(bytes(flexbuffers.Dumps({"Ok": 7}))), {"Ok": 7}),
    ],
)  # fmt: skip
def test_payloads_of_every_wire_become_json(wire, payload, expected):
    text, reason = decode(wire, payload)
    assert reason is None
    assert text is not None
    assert json.loads(text) == expected


@pytest.mark.parametrize("payload", [b"20.5", b"an hour", cbor2.dumps(VALUE) + b"\x00"])
def test_text_that_begins_as_cbor_is_no_half_of_a_value(payload):
    text, reason = decode("t2", payload)
    assert text is None
    assert reason is not None
    assert reason.startswith("no CBOR: ")


@given(st.sampled_from(sorted(DECODERS)), st.binary(max_size=200))
@pytest.mark.timeout(120)
def test_noise_has_a_text_or_a_reason(wire, payload):
    text, reason = decode(wire, payload)
    assert (text is None) != (reason is None)


def test_columns_keep_what_cannot_be_decoded_with_the_reason(spark):
    rows = [
        ("t2", cbor2.dumps(VALUE)),
        ("t2", b"\xff"),
        ("json", b"nope"),
        ("x", b""),
        ("t2", None),
    ]
    frame = spark.createDataFrame(rows, "wire string, payload binary")
    found = frame.select(decoders.decode_as(F.col("wire"), "payload").alias("d")).collect()
    assert json.loads(found[0].d.json) == VALUE
    assert found[0].d.raw is None
    assert [row.d.json for row in found[1:]] == [None] * 4
    assert bytes(found[1].d.raw) == b"\xff"
    assert found[3].d.reason.startswith("no decoder for 'x'")
    assert all(row.d.reason for row in found[1:])


def test_each_wire_has_a_function(spark):
    frame = spark.createDataFrame([(b"1",)], "payload binary")
    for wire in DECODERS:
        function = getattr(decoders, f"decode_{wire}")
        row = frame.select(function("payload").alias("d")).first()
        assert (row.d.json is None) != (row.d.reason is None)
