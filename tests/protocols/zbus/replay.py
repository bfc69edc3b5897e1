"""Replays captured sessions of the real servers S (0.8.0), N (0.9.0) and L (0.11) against ours.

One bus per dialect, its vectors in order, since each builds on what those before it declared. Values that a server
makes up (UUIDs, times, addresses, offsets in bytes) are replaced on both sides; ids that a client sent are not. What
a dialect does differently everywhere is taken out of the captured message here, by `Style`; what differs in one
exchange is listed in `differences`.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polybus.protocols.zbus.wire import Message, MessageReader
from tests.protocols.zbus.bus import Bus, Client, settle

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "zbus.json").read_text()
)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_MILLIS = re.compile(r"^1[0-9]{12}$")
_VOLATILE = {"createdTime", "lastUpdatedTime", "infoVersion", "serverVersion"}
# In the replay connections stay open, so that the next consume confirms the last; the real ones were closed.
_CONNECTIONS = {"consumerCount", "consumerList"}

Shown = tuple[int, dict[str, str], Any]
"""Status, headers and body (JSON parsed), without what cannot be the same twice."""


@dataclass
class Style:
    """What one dialect says in every message that we say otherwise (docs/protocols/zbus.md, differences)."""

    dialect: str

    def headers(self, message: Message) -> dict[str, str]:
        headers = dict(message.headers)
        headers.pop("content-length", None)
        if self.dialect != "S":
            # Only S stamps its version on what has none.
            headers.setdefault("version", "0.8.0")
            # N types its texts, L the unknown command; zbuspy fails on that. N adds the charset to JSON.
            kind = headers.get("content-type", "")
            if kind.startswith("application/json"):
                headers["content-type"] = "application/json"
            elif "origin_id" not in headers and "sender" not in headers:
                headers.pop("content-type", None)
        if self.dialect == "L":
            for name in ("origin_method", "timestamp", "consume_group"):
                headers.pop(name, None)
        return headers

    def body(self, value: Any) -> Any:
        return clean(value, drop_default=self.dialect == "L")


def clean(value: Any, *, drop_default: bool) -> Any:
    """JSON without nulls, times and connections; L has no default group, so it is left out there."""
    if isinstance(value, dict):
        kept = {
            k: clean(v, drop_default=drop_default)
            for k, v in value.items()
            if v is not None and k not in _VOLATILE | _CONNECTIONS | {"trackedServerList"}
        }
        groups = kept.get("consumeGroupList")
        if isinstance(groups, list):
            if drop_default:
                groups = [g for g in groups if g["groupName"] != g["topicName"]]
            kept["consumeGroupList"] = sorted(groups, key=lambda g: str(g["groupName"]))
        return kept
    if isinstance(value, list):
        return [clean(v, drop_default=drop_default) for v in value]
    return value


@dataclass
class Outcome:
    """How one exchange went: what the real server sent and what ours did, per client."""

    name: str
    expected: dict[str, list[Shown]] = field(default_factory=lambda: defaultdict(list))
    actual: dict[str, list[Shown]] = field(default_factory=lambda: defaultdict(list))

    def differences(self) -> list[str]:
        """Where the two are not the same: path, the real server's value, ours."""
        expected = {who: shown for who, shown in self.expected.items() if shown}
        actual = {who: shown for who, shown in self.actual.items() if shown}
        return differences(expected, actual)


def differences(real: Any, ours: Any, path: str = "") -> list[str]:
    """All places where two values differ, one line each."""
    if isinstance(real, dict) and isinstance(ours, dict):
        found = []
        for key in sorted(real.keys() | ours.keys()):
            found += differences(real.get(key, "-"), ours.get(key, "-"), f"{path}/{key}")
        return found
    if isinstance(real, (list, tuple)) and isinstance(ours, (list, tuple)):
        found = []
        for at in range(max(len(real), len(ours))):
            left = real[at] if at < len(real) else "-"
            right = ours[at] if at < len(ours) else "-"
            found += differences(left, right, f"{path}/{at}")
        return found
    return [] if real == ours else [f"{path}: {_short(real)} | {_short(ours)}"]


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= 160 else text[:160] + "…"


class Replay:
    """One dialect's sessions against one bus."""

    def __init__(self, dialect: str, bus: Bus, splits: int = 0) -> None:
        self.style = Style(dialect)
        self.bus = bus
        self.splits = splits
        self.uuids: dict[str, str] = {}
        self.sent_ids: set[str] = set()
        self.standing: dict[str, Client] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.links: dict[str, Any] = {}

    async def run(self) -> None:
        self.bus.room.tracker.dial = self._dial
        for vector in VECTORS:
            if vector["name"].startswith(self.style.dialect + "/"):
                await self._run_vector(vector)

    def _dial(self, address: str, up: Any, down: Any) -> Any:
        class Link:
            def close(self) -> None:
                pass

        self.links[address] = down
        up()
        return Link()

    async def _run_vector(self, vector: dict[str, Any]) -> None:
        outcome = self.outcomes[vector["name"]] = Outcome(vector["name"])
        steps = [(s["from"], s.get("to", ""), bytes.fromhex(s["hex"])) for s in vector["steps"]]
        alone = any(b"track_sub" in data for who, _, data in steps if who != "server")
        clients = {} if alone else self.standing
        if "websocket" in vector["name"]:
            await self._run_websocket(outcome, steps)
            return
        answers: dict[str, list[Message]] = defaultdict(list)
        for who, to, data in steps:
            if who == "server":
                expected = MessageReader().feed(data)
                found = answers[to][: len(expected)]
                del answers[to][: len(expected)]
                self._learn(expected, found)
                outcome.expected[to] += [self._show_captured(m) for m in expected]
                outcome.actual[to] += [self._show(m) for m in found]
                continue
            if who not in clients:
                clients[who] = self.bus.client()
            await self._send(clients[who], data)
            for name, client in clients.items():
                answers[name] += client.received()
        for down in self.links.values():
            down()
        self.links.clear()
        await settle()
        for name, client in clients.items():
            left = answers[name] + client.received()
            outcome.actual[name] += [self._show(m) for m in left]
            if alone:
                await client.hang_up()

    async def _run_websocket(self, outcome: Outcome, steps: list[tuple[str, str, bytes]]) -> None:
        client = self.bus.client()
        for who, _, data in steps:
            if who == "server":
                outcome.expected["client-a"].append(self._show_frame(data, captured=True))
                outcome.actual["client-a"].append(self._show_frame(client.peer.received()))
            else:
                client.peer.send(data, range(1, len(data)) if self.splits else ())
                await settle()

    def _show_frame(self, data: bytes, captured: bool = False) -> Shown:
        if data.startswith(b"HTTP/1.1 101"):
            # Field names and the value of `connection` are the same in any case.
            lines = data.decode().lower().split("\r\n")
            return 101, dict(line.split(": ") for line in lines[1:] if line), ""
        if data[:1] != b"\x81":
            return 0, {}, data.hex()
        length = data[1]
        payload = data[2:] if length < 126 else data[4:]
        (message,) = MessageReader().feed(payload)
        return self._show_captured(message) if captured else self._show(message)

    async def _send(self, client: Client, data: bytes) -> None:
        for uuid in _UUID.findall(data.decode("latin-1")):
            self.sent_ids.add(uuid)
            if uuid in self.uuids:
                data = data.replace(uuid.encode(), self.uuids[uuid].encode())
        client.peer.send(data, range(self.splits, len(data), self.splits) if self.splits else ())
        await settle()

    def _learn(self, expected: list[Message], found: list[Message]) -> None:
        """Which of our UUIDs stands for which captured one, so that a service can answer to it."""
        for old, new in zip(expected, found, strict=False):
            for name in old.headers.keys() & new.headers.keys() & {"sender", "origin_id", "id"}:
                if old.headers[name] != new.headers[name]:
                    self.uuids[old.headers[name]] = new.headers[name]

    # -- comparing ------------------------------------------------------------------------------------------

    def _show_captured(self, message: Message) -> Shown:
        headers = self.style.headers(message)
        return message.status, self._plain(headers), self._body(message)

    def _show(self, message: Message) -> Shown:
        headers = dict(message.headers)
        headers.pop("content-length", None)
        if headers.pop("content-security-policy", "") == "sandbox":
            headers.pop("x-content-type-options")
        return message.status, self._plain(headers), self._body(message)

    def _plain(self, headers: dict[str, str]) -> dict[str, str]:
        shown = {}
        for name, value in headers.items():
            made_up = _UUID.fullmatch(value) and value not in self.sent_ids
            if name in ("remote-addr", "host", "offset"):
                value = f"<{name}>"
            elif made_up or name == "sender" or value in self.uuids or value in self.uuids.values():
                value = "<uuid>"
            shown[name] = value
        return shown

    def _body(self, message: Message) -> Any:
        text = re.sub(r"127\.0\.0\.2:\d+", "<server>", message.text)
        if _MILLIS.match(text):
            return "<millis>"
        if message.get("content-type").startswith("application/json"):
            return self.style.body(json.loads(text))
        return text
