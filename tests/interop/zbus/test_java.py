"""The published Java client against polybus, in every role, and its trackers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.zbus.parts import Program, Server, run_peer, start_polybus, start_real

pytestmark = pytest.mark.interop


@pytest.mark.parametrize(
    "scenario",
    ["unicast", "broadcast", "multicast", "filter", "starts", "admin", "rpc", "many"],
)
def test_the_java_client_finds_what_it_expects(scenario: str, peer: list[str], node: Server):
    assert f"ok {scenario}" in run_peer(peer, scenario, node.address)


@pytest.mark.parametrize("scenario", ["unicast", "filter", "rpc"])
def test_the_same_program_agrees_with_the_real_server(
    scenario: str, peer: list[str], real_server: Server
):
    assert f"ok {scenario}" in run_peer(peer, scenario, real_server.address)


def test_java_clients_move_on_when_one_of_two_tracked_nodes_is_killed(
    peer: list[str], tmp_path: Path
):
    tracker = start_polybus(tmp_path / "tracker")
    joined = start_polybus(tmp_path / "joined", "--tracker", tracker.address)
    client = Program([*peer, "failover", tracker.address, "FailOver"], tmp_path / "client.log")
    try:
        client.wait_for("serving")
        joined.kill()
        client.say("killed")
        client.wait_for("ok failover")
    finally:
        for program in (client, joined, tracker):
            program.stop()


def test_a_node_joins_a_real_tracker_and_java_clients_find_it_there(
    peer: list[str], tmp_path: Path
):
    tracker = start_real(peer, tmp_path / "tracker")
    joined = start_polybus(tmp_path / "joined", "--tracker", tracker.address)
    client = Program([*peer, "failover", tracker.address, "FailOver"], tmp_path / "client.log")
    try:
        client.wait_for("serving")
        joined.kill()
        client.say("killed")
        client.wait_for("ok failover")
    finally:
        for program in (client, joined, tracker):
            program.stop()


def test_a_real_server_joins_a_node_as_its_tracker(peer: list[str], tmp_path: Path):
    tracker = start_polybus(tmp_path / "tracker")
    joined = start_real(peer, tmp_path / "joined", tracker.address)
    client = Program([*peer, "failover", tracker.address, "FailOver"], tmp_path / "client.log")
    try:
        client.wait_for("serving")
        joined.kill()
        client.say("killed")
        client.wait_for("ok failover")
    finally:
        for program in (client, joined, tracker):
            program.stop()
