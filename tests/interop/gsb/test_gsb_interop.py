"""Real Golem Service Bus clients against polybus.

The same scenarios also run against the real router, which shows that they are true of it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.interop.gsb.parts import PolybusNode, RealRouter

pytestmark = pytest.mark.interop

RAW: Final = (
    *("calls", "names", "errors", "streaming", "prefixes", "broadcast", "large"),
    *("concurrent", "push", "takeover", "idle"),
)
# ya-sb-router leaves these callers waiting, cancels some of the calls, and loses some of the broadcasts.
RAW_BETTER: Final = ("service_drop", "many_callers", "broadcast_burst")
BUS: Final = (
    *("typed", "typed_streaming", "typed_errors", "typed_push", "untyped"),
    *("typed_large", "typed_concurrent"),
)
RECONNECT: Final = "reconnect"
# The program gives up by itself after 60 s; this is for the case that it does not.
LIMIT_S: Final = 90


def run(peer: Path, scenario: str, url: str) -> None:
    done = subprocess.run(
        [peer, scenario],
        env=os.environ | {"GSB_URL": url},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert (done.returncode, done.stdout) == (0, f"ok {scenario}\n"), done.stdout + done.stderr


def run_reconnect(peer: Path, url: str, restart: Callable[[], None]) -> None:
    with subprocess.Popen(
        [peer, RECONNECT],
        env=os.environ | {"GSB_URL": url},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "connected\n"
            restart()
            output, _ = process.communicate("restarted\n", timeout=LIMIT_S)
        finally:
            process.kill()
    assert (process.returncode, output) == (0, f"ok {RECONNECT}\n")


@pytest.mark.parametrize("transport", ["tcp", "unix", "tls"])
@pytest.mark.parametrize("scenario", RAW + RAW_BETTER)
def test_connections_of_the_rust_client(
    peer: Path, node: PolybusNode, scenario: str, transport: str
):
    run(peer, scenario, node.urls[transport])


@pytest.mark.parametrize("transport", ["tcp", "unix"])
@pytest.mark.parametrize("scenario", BUS)
def test_processes_of_the_rust_client(peer: Path, node: PolybusNode, scenario: str, transport: str):
    run(peer, scenario, node.urls[transport])


def test_an_idle_rust_client_survives_by_answering_pings(
    peer: Path, start_node: Callable[[str], PolybusNode], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("GSB_PING_TIMEOUT", "1")
    run(peer, "idle", start_node("tcp://127.0.0.1:0").urls["tcp"])


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_rust_clients_return_after_a_node_restart(
    peer: Path,
    start_node: Callable[[str], PolybusNode],
    free_address: Callable[[str], str],
    transport: str,
    by: signal.Signals,
):
    node = start_node(free_address(transport))
    run_reconnect(peer, node.urls[transport], lambda: node.restart(by))


@pytest.mark.parametrize("scenario", RAW + BUS)
def test_the_scenarios_hold_on_the_real_router(peer: Path, real_router: RealRouter, scenario: str):
    run(peer, scenario, real_router.url)


def test_rust_clients_return_after_a_restart_of_the_real_router(
    peer: Path, real_router: RealRouter
):
    run_reconnect(peer, real_router.url, real_router.restart)


def test_no_scenario_of_the_program_is_left_out(peer: Path):
    listed = subprocess.run([peer, "list"], capture_output=True, text=True, check=True).stdout
    expected = [f"raw {name}" for name in RAW + RAW_BETTER]
    expected += [f"bus {name}" for name in (*BUS, RECONNECT)]
    assert listed.splitlines() == expected
