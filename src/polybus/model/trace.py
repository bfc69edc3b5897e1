"""The headers of W3C trace context, which cross from wire to wire as they are.

Invariant: a node carries them and makes none; whether there is a trace is for the caller to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from polybus.model.message import NO_HEADERS

TRACE_HEADERS: Final = ("traceparent", "tracestate")


def trace_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Those of them that are among the headers, whose names are in lower case."""
    if "traceparent" not in headers:
        return NO_HEADERS
    return {name: headers[name] for name in TRACE_HEADERS if name in headers}
