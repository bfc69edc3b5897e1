"""The matrix as data: the cases, how each must end for each caller, and why some cells cannot be played.

The invariant: a cell is either played or has a reason in words; nothing is skipped.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

from tests.matrix.callers import CALLERS, Caller
from tests.matrix.services import FAILURE, SERVICES, Service

CASES: Final = (
    "success",
    "error",
    "no such service",
    "gone",
    "timeout",
    "512 KiB",
    "too large",
    "not UTF-8",
)

# The word for a reply, for an error of the service, for a name that nobody answers, for a service that left, for a
# deadline, and for a payload that does not fit (DESIGN 3: a foreign error becomes the system's own, its text kept).
_ROWS: Final = {
    "GSB": "OK 500 400 500 - 400",
    "T2": "Ok Timeout ServiceNotFound Timeout Timeout Timeout",
    "Zbus TCP": "result error 404 502 502 502",
    "/rpc URL": "result error 404 502 502 502",
    "Zbus WebSocket": "result error 404 502 502 502",
    "RMB own twin": "dat err err err err err",
    "RMB other twin": "dat err err err err err",
    "SDK": "reply ServiceFailed NoSuchService ServiceFailed CallTimeout LimitExceeded",
}
_ENDS: Final = ("ok", "error", "none", "gone", "late", "large")
WORDS: Final = {name: dict(zip(_ENDS, row.split(), strict=True)) for name, row in _ROWS.items()}

ZBUS: Final = ("Zbus TCP", "/rpc URL", "Zbus WebSocket")
RMB: Final = ("RMB own twin", "RMB other twin")
OWN: Final = {
    **dict.fromkeys(ZBUS, "Zbus RPC"),
    **dict.fromkeys(RMB, "RMB"),
    "GSB": "GSB",
    "T2": "T2",
    "SDK": "SDK",
}
"""The system that a caller is of."""


@dataclass(frozen=True)
class Cell:
    """One caller, one service, one case."""

    caller: type[Caller]
    service: type[Service]
    case: str

    @property
    def id(self) -> str:
        return f"{self.caller.name} to {self.service.name}, {self.case}".replace("/", "")

    @property
    def impossible(self) -> str:
        """Why this cell cannot be played; empty when it can."""
        caller, service = self.caller.name, self.service.name
        if service == "RMB" and self.case == "gone" and caller == "GSB":
            return "a handler that pops a queue is never seen to leave, and GSB has no deadline"
        if self.case == "timeout" and caller == "GSB":
            return "GSB has no deadlines: a call lasts while both ends live"
        if self.case == "timeout" and caller in ZBUS and service == "Zbus RPC":
            return "Zbus has no deadlines of its own: its clients stop waiting by themselves"
        if self.case == "512 KiB" and caller == "/rpc URL":
            return "a URL ends at 64 KiB"
        if self.case == "too large" and caller == "/rpc URL":
            return "a URL is smaller than any frame"
        if self.case == "not UTF-8" and caller == "/rpc URL":
            return "the arguments in a URL are texts"
        if self.case == "too large" and OWN[caller] == service:
            return "the same frame on both sides: the caller's own is refused first"
        if self.case == "too large" and {OWN[caller], service} == {"GSB", "SDK"}:
            return "one limit bounds both frames: the caller's own is refused first"
        return ""

    @property
    def expected(self) -> tuple[str, str]:
        """The caller's word, and what its text holds."""
        words, service = WORDS[self.caller.name], self.service.name
        own = OWN[self.caller.name] == service
        match self.case:
            case "error":
                return words["error"], FAILURE
            case "no such service":
                return words["none"], ""
            case "gone":
                if service == "RMB":  # gone means expired (DESIGN 3)
                    return words["late"], ""
                if own and service in ("T2", "Zbus RPC"):
                    return words["gone"], {"T2": "", "Zbus RPC": "Down"}[service]
                return words["gone"], "disconnected"
            case "timeout":
                # A twin's requests end by the core's clock or by the room's, and read the same either way.
                return words["late"], "expiration reached" if self.caller.name in RMB else ""
            case "too large":
                return words["large"], "does not fit" if service == "SDK" else "larger"
            case _:
                return words["ok"], ""


CELLS: Final = [
    Cell(caller, service, case)
    for caller, service, case in itertools.product(CALLERS, SERVICES, CASES)
]
