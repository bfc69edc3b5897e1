"""Columns decoded from captured payloads: `decode_t2("payload")` and its kin, as vectorised functions.

Invariant: each gives a struct of `json` (text), `raw` (the bytes, where they could not be decoded) and `reason`; of a
row exactly one of `json` and `reason` is null, and nothing fails the query.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from polybus.spark.decoding import decode

RESULT: Final = "json string, raw binary, reason string"


def decode_json(payload: Column | str) -> Column:
    """JSON, checked."""
    return decode_as("json", payload)


def decode_t2(payload: Column | str) -> Column:
    """CBOR of the T2 Bus, under gzip or not."""
    return decode_as("t2", payload)


def decode_rmb(payload: Column | str) -> Column:
    """Messages of the Reliable Message Bus, with `dat` decoded."""
    return decode_as("rmb", payload)


def decode_zbus(payload: Column | str) -> Column:
    """Requests and answers of Zbus RPC."""
    return decode_as("zbus", payload)


def decode_gsb(payload: Column | str) -> Column:
    """FlexBuffers of the Golem Service Bus, under zlib or not."""
    return decode_as("gsb", payload)


def decode_as(wire: Column | str, payload: Column | str) -> Column:
    """The payload of a wire, which is a name (`"t2"`) or a column of names."""
    name = F.lit(wire) if isinstance(wire, str) else wire
    value = F.col(payload) if isinstance(payload, str) else payload
    # Spark takes the kind of a function from its hints, and warns when it is told.
    make: Any = arrow_udf
    function: Callable[..., Column] = make(_decode_arrow, RESULT)
    return function(name.cast("string"), value.cast("binary"))


def _decode_arrow(wires: pa.Array, payloads: pa.Array) -> pa.Array:
    texts, raws, reasons = [], [], []
    for wire, payload in zip(wires.to_pylist(), payloads.to_pylist(), strict=True):
        text, reason = decode(wire, payload)
        texts.append(text)
        raws.append(payload if reason is not None else None)
        reasons.append(reason)
    columns = [
        pa.array(texts, pa.string()),
        pa.array(raws, pa.binary()),
        pa.array(reasons, pa.string()),
    ]
    return pa.StructArray.from_arrays(columns, ["json", "raw", "reason"])
