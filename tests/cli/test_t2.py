from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from polybus import __version__
from polybus.cli.main import polybus
from polybus.cli.t2 import encode_value, show, show_f32, t2, to_f32
from polybus.cli.t2_names import Place, parse_place
from polybus.errors import ConfigError, LocalProtocolError, NotReachable, RemoteProtocolError
from polybus.protocols.t2.client import Connector
from polybus.protocols.t2.server import ServerBuilder

T2 = (sys.executable, "-c", "from polybus.__main__ import t2; t2()")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return Path(tmp_path)


def run(*arguments: str) -> None:
    CliRunner().invoke(t2, arguments, catch_exceptions=False, standalone_mode=False)


# -- values --


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1", "1"), ("1.5", "1.5"), ("-0", "-0"), ("0.1", "0.1"), ("1e10", "10000000000"),
        ("1e-7", "0.0000001"), ("16777217", "16777216"), ("3.4028235e38", "340282350000000000000000000000000000000"),
        ("inf", "inf"), ("-inf", "-inf"), ("1e50", "inf"), ("-1e50", "-inf"), ("NaN", "NaN"), (".5", "0.5"),
        ("1.", "1"), ("+2", "2"), ("0.333333333", "0.33333334"),
    ],
)  # fmt: skip
def test_numbers_are_shown_in_the_originals_notation(text, shown):
    assert show("f32/a", encode_value("f32/a", text)) == shown


def test_values_are_written_in_the_shortest_form():
    assert encode_value("f32/a", "1.5").hex() == "f93e00"
    assert encode_value("f32/a", "0.1").hex() == "fa3dcccccd"
    assert encode_value("f32/a", "nan").hex() == "f97e00"
    assert encode_value("string/a", "hi").hex() == "626869"
    assert math.isinf(to_f32(1e300))
    assert show_f32(float("nan")) == "NaN"


@pytest.mark.parametrize(
    ("topic", "value"),
    [("x/a", "1"), ("f32/a", "one"), ("f32/a", "1_0"), ("f32/a", "٣"), ("string", "x")],
)
def test_a_value_that_cannot_be_sent_is_refused(topic, value):
    with pytest.raises(LocalProtocolError):
        encode_value(topic, value)


def test_payloads_are_shown_by_the_protocol_of_their_topic():
    assert show("string/a", b"\x62hi") == "hi"
    assert show("string", b"\x62hi") == "0x626869"
    assert show("other/a", b"\x01\xff") == "0x01ff"
    for topic, payload in [
        ("f32/a", b"\x62hi"),
        ("f32/a", b"\x01"),
        ("string/a", b"\x01"),
        ("string/a", b"\xff"),
    ]:
        with pytest.raises(RemoteProtocolError, match="CBOR deserialization failed"):
            show(topic, payload)


# -- names --


def test_names_are_kept_in_the_originals_file(home):
    run("register", "lab", "tcp:127.0.0.1:4242")
    run("register", "den", "unix:/run/bus", "--default")
    assert (home / ".t2").read_text() == "den unix:/run/bus\nlab tcp:127.0.0.1:4242\n"
    run("register", "lab", "name:den")
    assert (home / ".t2").read_text() == "den unix:/run/bus\nlab unix:/run/bus\n"
    run("unregister", "den")
    run("unregister", "nobody")
    assert (home / ".t2").read_text() == "lab unix:/run/bus\n"
    assert parse_place("name:lab") == Place("name", "lab")
    assert Place("name", "lab").resolve() == Place("unix", "/run/bus")


def test_an_address_may_be_copied_from_the_lines_that_a_node_prints():
    assert parse_place("tcp://127.0.0.1:15555") == Place("tcp", "127.0.0.1:15555")
    assert parse_place("unix:///run/bus") == Place("unix", "///run/bus")  # the same file
    assert parse_place("http://127.0.0.1") is None


def test_what_is_not_registered_is_an_error(home):
    with pytest.raises(NotReachable, match="Name is not registered: nobody"):
        run("sub", "string/a", "name:nobody")
    with pytest.raises(NotReachable, match="No default address found"):
        run("pub", "string/a", "x")


def test_without_a_home_nothing_is_registered(monkeypatch):
    monkeypatch.delenv("HOME")
    with pytest.raises(NotReachable):
        run("ls", "**")
    with pytest.raises(ConfigError, match="HOME"):
        run("register", "lab", "unix:x")


def test_a_file_that_cannot_be_used_is_one_clear_error(home):
    (home / ".t2").mkdir()
    with pytest.raises(ConfigError, match="cannot read"):
        run("pub", "string/a", "x")
    (home / ".t2").rmdir()
    (home / ".t2").write_text("nonsense\n")
    with pytest.raises(NotReachable):
        run("pub", "string/a", "x")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("sub", "a", "127.0.0.1"), "Invalid bus address"),
        (("register", "Lab", "unix:x"), "lowercase and underscore"),
        (("register", "lab2", "unix:x"), "lowercase and underscore"),
        (("pub", "a"), "VALUE"),
        (("serve",), "name at least one address"),
    ],
)
def test_wrong_arguments_are_usage_errors(arguments, words):
    result = CliRunner().invoke(polybus, ["t2", *arguments])
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())


# -- the program --


@asynccontextmanager
async def started(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *T2, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def lines(process: asyncio.subprocess.Process, count: int) -> list[str]:
    """The next lines that say something else than that the subscription is in place."""
    assert process.stdout is not None
    found: list[str] = []
    async with asyncio.timeout(15):
        while len(found) < count:
            line = (await process.stdout.readline()).decode().rstrip("\n")
            assert line, "the program has ended"
            if not line.startswith("string/ready"):
                found.append(line)
    return found


async def until(done: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(1500):
        if await done():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come true")


async def test_what_is_published_is_printed(tmp_path):
    path = tmp_path / "bus"
    place = f"unix:{path}"
    stopper, _ = await ServerBuilder().serve_unix_socket(path).build()
    async with (
        stopper,
        await Connector.unix(path).connect() as client,
        started("sub", "**", place) as sub,
        started("ls", "**", place) as ls,
    ):

        async def both_listen() -> bool:
            return await client.publish_bytes("string/ready", b"\x60") == 2

        await until(both_listen)
        async with started("pub", "f32/a", "1.5", place) as pub:
            assert await pub.communicate() == (b"", b"")
            assert pub.returncode == 0
        await client.publish_bytes("f32/a", b"\xf9\x3c\x00")
        await client.publish_bytes("raw", b"\x01")
        assert await lines(sub, 3) == ["f32/a: 1.5", "f32/a: 1", "raw: 0x01"]
        assert await lines(ls, 2) == ["f32/a", "raw"]
        ls.send_signal(signal.SIGTERM)
        assert await ls.wait() == 0
        await client.stop_bus()
        _out, err = await sub.communicate()
        assert sub.returncode == 1
        assert b"the connection to the bus has ended" in err


async def test_serve_says_who_comes_and_goes(tmp_path: Path):
    path = tmp_path / "bus"
    async with started("serve", "--unix", str(path), "--tcp", "127.0.0.1:0") as server:

        async def is_there() -> bool:
            return path.exists()

        await until(is_there)
        client = await Connector.unix(path).connect()
        await client.publish_bytes("a", b"")
        await client.close()
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"\0\0\0\x01\0")
        assert await reader.read() == b""
        writer.close()
        assert await lines(server, 5) == [
            "[B] Client #1 connected",
            "[B] Client #1 disconnected",
            "[B] Client #2 connected",
            "[B] Client #2: Error: a struct is something else",
            "[B] Client #2 disconnected",
        ]
        server.send_signal(signal.SIGTERM)
        assert await server.wait() == 0
    assert not path.exists()


def test_an_error_is_one_line_and_a_code():
    found = subprocess.run(
        [*T2, "pub", "string/a", "x", "unix:/nowhere"],
        capture_output=True,
        text=True,
        env=os.environ,
        timeout=15,
        check=False,
    )
    assert found.returncode == 3
    assert found.stdout == ""
    assert "No such file or directory" in found.stderr
    assert len(found.stderr.splitlines()) == 1


def test_the_program_tells_its_version_as_the_original_has_the_flag():
    for flag in ("-V", "--version"):
        result = CliRunner().invoke(t2, [flag])
        assert (result.exit_code, result.output) == (0, f"polybus t2, version {__version__}\n")
