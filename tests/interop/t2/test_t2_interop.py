"""The published T2 client gets from polybus what it gets from the real server, or better."""

from __future__ import annotations

import subprocess
from itertools import product
from pathlib import Path

import pytest

from tests.interop.t2.conftest import PYTHON_IDLE
from tests.interop.t2.servers import PATIENCE_S, Server, polybus_server

# Building the real parts counts towards the first test that needs them.
pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

SCENARIOS = [
    *("publish", "wildcards", "recipients", "one_copy", "own_messages", "unsubscribe"),
    *("typed_prefix", "invalid_topic", "order", "noise_payload", "text_payload"),
    *("request", "exclusive", "no_service", "request_ids", "answer_after_unserve"),
    *("large_request", "disconnect"),
]
SLOW_SCENARIOS = ["request_timeout", "idle"]
# The real server locks up, goes silent or ends on these (protocol page §5, §6, §7 and §9).
POLYBUS_SCENARIOS = [
    *("order_in_bulk", "concurrent", "kill_topics", "deep_wildcards", "vanished_server"),
]
TRANSPORTS = ["tcp", "unix"]


def check(peer: Path, address: str, scenario: str) -> None:
    run = subprocess.run([peer, address, scenario], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_scenario_of_the_peer_is_run(t2_peer: Path):
    listed = subprocess.run([t2_peer, "--list"], capture_output=True, text=True, check=True)
    wanted = dict.fromkeys(SCENARIOS, "nothing") | dict.fromkeys(SLOW_SCENARIOS, "time")
    wanted |= dict.fromkeys(POLYBUS_SCENARIOS, "polybus")
    wanted |= dict.fromkeys(["stop", "stop_refused"], "own-server")
    assert dict(line.split() for line in listed.stdout.splitlines()) == wanted


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("scenario", SCENARIOS + POLYBUS_SCENARIOS)
def test_a_scenario_passes(t2_peer: Path, polybus_t2: Server, scenario: str, transport: str):
    check(t2_peer, polybus_t2.addresses[transport], scenario)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_is_what_the_real_server_does(
    t2_peer: Path, real_t2: Server, scenario: str, transport: str
):
    check(t2_peer, real_t2.addresses[transport], scenario)


@pytest.mark.parametrize("transport", ["t2+tcp", "t2+unix"])
@pytest.mark.parametrize("scenario", ["publish", "concurrent"])
def test_a_listener_pinned_to_t2_serves_the_same(
    t2_peer: Path, polybus_t2: Server, scenario: str, transport: str
):
    check(t2_peer, polybus_t2.addresses[transport], scenario)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("scenario", SCENARIOS + POLYBUS_SCENARIOS)
def test_the_first_release_of_the_client_passes_them_too(
    first_t2_peer: Path, polybus_t2: Server, scenario: str, transport: str
):
    check(first_t2_peer, polybus_t2.addresses[transport], scenario)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_local_client_stops_the_bus_and_polybus_ends_in_order(t2_peer: Path, transport: str):
    with polybus_server() as server:
        check(t2_peer, server.addresses[transport], "stop")
        assert server.process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_client_that_may_not_stop_the_bus_is_told_and_goes_on(
    t2_peer: Path, first_t2_peer: Path, monkeypatch: pytest.MonkeyPatch, transport: str
):
    monkeypatch.setenv("POLYBUS_T2_STOP", "never")
    with polybus_server() as server:
        for peer in (t2_peer, first_t2_peer):
            check(peer, server.addresses[transport], "stop_refused")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_stopping_is_what_the_real_server_does(t2_peer: Path, real_t2: Server, transport: str):
    check(t2_peer, real_t2.addresses[transport], "stop")


@pytest.mark.parametrize(
    "slow_run",
    list(product(["polybus", "real"], [*SLOW_SCENARIOS, PYTHON_IDLE], TRANSPORTS)),
    indirect=True,
    ids="-".join,
)
def test_a_slow_scenario_passes(slow_run: subprocess.Popen[str]):
    output, _ = slow_run.communicate(timeout=130)
    assert slow_run.returncode == 0, output
