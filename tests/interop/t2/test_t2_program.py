"""The real program `t2` works on polybus, and `polybus t2` works like it, on the real server too."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import pytest

from tests.interop.t2.servers import (
    PATIENCE_S,
    POLYBUS,
    Server,
    folder,
    free_port,
    is_listening,
    polybus_server,
    real_server,
    started,
    wait_ready,
    wait_until,
)

# Building the real parts counts towards the first test that needs them.
pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

# Topic, value and the line that a subscriber prints, in Rust's notation of numbers.
LINES = [
    ("f32/a", "1", "f32/a: 1"),
    ("f32/a", "1.5", "f32/a: 1.5"),
    ("f32/a", "0.1", "f32/a: 0.1"),
    ("f32/a", "-0", "f32/a: -0"),
    ("f32/a", "-inf", "f32/a: -inf"),
    ("f32/a", "NaN", "f32/a: NaN"),
    ("f32/a/b", "1e10", "f32/a/b: 10000000000"),
    ("f32/a/b", "1e-7", "f32/a/b: 0.0000001"),
    ("f32/a/b", "16777217", "f32/a/b: 16777216"),
    ("string/a", "hello world", "string/a: hello world"),
    ("string/a", "", "string/a: "),
    ("string/a", "Grüße 🚌", "string/a: Grüße 🚌"),
    ("string/a", "x" * 6000, "string/a: " + "x" * 6000),
    ("string/*", "to all", "string/*: to all"),
]


@dataclass(frozen=True, slots=True)
class Program:
    """A command line that behaves like `t2`, with a home of its own."""

    command: tuple[str, ...]
    home: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *arguments],
            env={**os.environ, "HOME": str(self.home)},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    def publish(self, topic: str, value: str, address: str) -> None:
        # The dashes keep a negative number from being read as an option.
        run = self.run("pub", "--", topic, value, address)
        assert (run.returncode, run.stdout) == (0, ""), run.stdout + run.stderr

    def config(self) -> str:
        return (self.home / ".t2").read_text()


@pytest.fixture
def real(t2_program: Path, tmp_path: Path) -> Program:
    return Program((str(t2_program),), tmp_path)


@pytest.fixture
def ours(tmp_path: Path) -> Program:
    return Program((str(POLYBUS), "t2"), tmp_path)


@contextmanager
def listening(
    program: Program, verb: str, topic: str, address: str, real: Program
) -> Iterator[Path]:
    """The growing output of `sub` or `ls`, emptied once the subscription is known to be in place."""
    with folder() as place:
        log = place / "log"
        with started([*program.command, verb, topic, address], log) as process:

            def is_subscribed() -> bool:
                real.publish("string/ready", "now", address)
                return "string/ready" in log.read_text()

            wait_ready(process, is_subscribed)
            yield log


def wait_for_lines(log: Path, wanted: list[str]) -> None:
    def lines() -> list[str]:
        return [line for line in log.read_text().splitlines() if "string/ready" not in line]

    wait_until(lambda: len(lines()) >= len(wanted), f"{len(wanted)} lines")
    assert lines() == wanted


def our_server() -> AbstractContextManager[Server]:
    """`polybus t2 serve` with addresses in the form of the real program."""
    return our_server_with("tcp:{tcp}", "unix:{unix}")


@contextmanager
def our_server_with(*arguments: str) -> Iterator[Server]:
    with folder() as place:
        places = {"tcp": f"127.0.0.1:{free_port()}", "unix": f"{place}/bus"}
        addresses = {kind: f"{kind}:{where}" for kind, where in places.items()}
        command = [str(POLYBUS), "t2", "serve", *(word.format(**places) for word in arguments)]
        log = place / "log"
        with started(command, log) as process:
            wait_ready(process, lambda: all(map(is_listening, addresses.values())))
            yield Server(process, log, addresses)


@pytest.fixture(
    params=[
        # server, publisher, subscriber
        ("real", "real", "real"),
        ("polybus", "real", "real"),
        ("polybus t2", "real", "real"),
        ("real", "ours", "real"),
        ("real", "real", "ours"),
        ("polybus", "ours", "ours"),
    ],
    ids=" / ".join,
)
def parts(
    request: pytest.FixtureRequest, t2_program: Path, real: Program, ours: Program
) -> Iterator[tuple[Server, Program, Program]]:
    server, publisher, subscriber = request.param
    programs = {"real": real, "ours": ours}
    servers = {
        "real": lambda: real_server(t2_program),
        "polybus": polybus_server,
        "polybus t2": our_server,
    }
    with servers[server]() as running:
        yield running, programs[publisher], programs[subscriber]


def test_what_one_publishes_the_other_prints(parts: tuple[Server, Program, Program], real: Program):
    server, publisher, subscriber = parts
    with listening(subscriber, "sub", "**", server.addresses["tcp"], real) as log:
        for (topic, value, _), address in zip(LINES, cycle(server.addresses.values())):
            publisher.publish(topic, value, address)
        wait_for_lines(log, [line for _, _, line in LINES])


def test_a_payload_of_another_protocol_is_printed_in_hex(
    parts: tuple[Server, Program, Program], real: Program, t2_peer: Path
):
    server, _, subscriber = parts
    with listening(subscriber, "sub", "**", server.addresses["tcp"], real) as log:
        # Only its publication matters: it fails, for this subscriber is one more than it expects.
        subprocess.run([t2_peer, server.addresses["unix"], "own_messages"], check=False)
        wait_until(lambda: "interop" in log.read_text(), "the line")
        assert re.search(r"^interop/run\d+/own/a: 0x646d696e65$", log.read_text(), re.MULTILINE)


def test_ls_prints_each_topic_when_first_seen(
    parts: tuple[Server, Program, Program], real: Program
):
    server, publisher, subscriber = parts
    address = server.addresses["unix"]
    with listening(subscriber, "ls", "*/**", address, real) as log:
        for topic in ["string/b", "string/a", "string/b", "f32/b", "string/a", "string/end"]:
            publisher.publish(topic, "1", address)
        wait_for_lines(log, ["string/b", "string/a", "f32/b", "string/end"])


def test_both_programs_keep_the_same_list_of_names(real: Program, ours: Program):
    assert real.home == ours.home
    steps = [
        (ours, "register home tcp:127.0.0.1:4242", "home tcp:127.0.0.1:4242\n"),
        (
            real,
            "register lab_one unix:/run/bus",
            "home tcp:127.0.0.1:4242\nlab_one unix:/run/bus\n",
        ),
        (
            ours,
            "register lab_one unix:other --default",
            "lab_one unix:other\nhome tcp:127.0.0.1:4242\n",
        ),
        (
            ours,
            "register far name:home",
            "lab_one unix:other\nhome tcp:127.0.0.1:4242\nfar tcp:127.0.0.1:4242\n",
        ),
        (real, "unregister home", "lab_one unix:other\nfar tcp:127.0.0.1:4242\n"),
        (ours, "unregister lab_one", "far tcp:127.0.0.1:4242\n"),
        (ours, "unregister nobody", "far tcp:127.0.0.1:4242\n"),
    ]
    for program, command, wanted in steps:
        run = program.run(*command.split())
        assert (run.returncode, run.stdout) == (0, ""), run.stdout + run.stderr
        assert program.config() == wanted, command


@pytest.mark.parametrize("address", [(), ("name:lab",)], ids=["default", "by name"])
def test_a_registered_bus_is_found(
    real_t2: Server, real: Program, ours: Program, address: tuple[str, ...]
):
    ours.run("register", "lab", real_t2.addresses["tcp"], "--default")
    with listening(real, "sub", "string/*", real_t2.addresses["unix"], real) as log:
        for program in (real, ours):
            run = program.run("pub", "string/x", "found", *address)
            assert (run.returncode, run.stdout) == (0, ""), run.stdout + run.stderr
        wait_for_lines(log, ["string/x: found"] * 2)


RUN_TIME_ERRORS = {
    "pub other/x 1 unix:/nowhere": "Unknown protocol",
    "pub f32/x one unix:/nowhere": (
        "When the topic starts with f32/ then the value must be a valid f32"
    ),
    "pub string/x 1": (
        "No default address found in config. "
        "Use the register command to add one or specify an address"
    ),
    "sub string/x name:nobody": "Name is not registered: nobody",
    "ls string/x unix:/nowhere": "No such file or directory",
}


@pytest.mark.parametrize("command", RUN_TIME_ERRORS)
def test_an_error_has_the_same_words_but_goes_to_stderr_with_a_code(
    real: Program, ours: Program, command: str
):
    theirs = real.run(*command.split())
    assert theirs.returncode == 0
    assert RUN_TIME_ERRORS[command] in theirs.stdout
    run = ours.run(*command.split())
    assert run.returncode not in (0, 2)
    assert run.stdout == ""
    assert RUN_TIME_ERRORS[command] in " ".join(run.stderr.split())


def test_a_refused_topic_is_an_error_of_the_program(real_t2: Server, ours: Program):
    run = ours.run("pub", "string/Capital", "x", real_t2.addresses["unix"])
    assert run.returncode not in (0, 2)
    assert "Invalid topic string" in run.stderr
    assert "string/Capital" in run.stderr


USAGE_ERRORS = {
    "sub string/x 127.0.0.1:4242": "Invalid bus address",
    "register Lab unix:/run/bus": "must contain only lowercase and underscore",
    "register lab2 unix:/run/bus": "must contain only lowercase and underscore",
    "pub string/x": "VALUE",
    "dance": "dance",
}


@pytest.mark.parametrize("command", USAGE_ERRORS)
def test_a_wrong_argument_is_a_usage_error_in_both(real: Program, ours: Program, command: str):
    for program in (real, ours):
        run = program.run(*command.split())
        assert run.returncode == 2, run.stdout
        assert USAGE_ERRORS[command] in " ".join(run.stderr.split())


def test_the_documented_flags_of_serve_give_the_same_bus(t2_peer: Path):
    with our_server_with("--unix", "{unix}", "--tcp", "{tcp}") as server:
        for address in server.addresses.values():
            subprocess.run([t2_peer, address, "publish", "request"], check=True)


def test_serve_logs_its_clients_like_the_real_server(t2_program: Path):
    def log_of(server: Server) -> list[str]:
        def lines() -> list[str]:
            return server.log.read_text().splitlines()

        def settled() -> bool:
            ends = [line.rpartition(" ")[2] for line in lines() if line.startswith("[B] Client")]
            return bool(ends) and ends.count("connected") == ends.count("disconnected")

        # How often it was asked whether it listens depends on how fast it starts: only what comes behind is compared.
        wait_until(settled, "the end of those who asked whether it listens")
        before = len(lines())
        assert is_listening(server.addresses["tcp"])
        wait_until(
            lambda: any("disconnected" in line for line in lines()[before:]), "the last line"
        )
        # A probe that closes with an Ack unread may show as a reset; whether it does is a matter of timing.
        told = (line for line in lines()[before:] if "Error" not in line)
        return [re.sub(r":\d+$", ":PORT", re.sub(r"#\d+", "#N", line)) for line in told]

    with real_server(t2_program) as real, our_server() as ours:
        log = log_of(ours)
        assert log == log_of(real)
        assert len(log) == 3  # accepted, connected, disconnected


def test_serve_ends_in_order_when_told_to():
    with our_server() as server:
        server.process.terminate()
        assert server.process.wait(PATIENCE_S) == 0
