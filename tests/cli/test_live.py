"""The verbs that talk to a node, each as a process against a real one."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import PIPE

import pytest

import polybus
from polybus.protocols.gsb.wire import CURRENT, Kind, encode_name
from tests.cli.processes import ANY_PORT, POLYBUS, lines_until, node, run, running


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with node("--listen", ANY_PORT, cwd=tmp_path_factory.mktemp("node")) as (_, where):
        yield where[0]


def test_call_prints_what_reply_answers_and_reply_prints_the_call(url):
    with running("reply", "cli/fixed", "pong", "--count", "2", POLYBUS_URL=url) as service:
        lines_until(service.stderr, "answering cli/fixed")
        plain = run("call", "cli/fixed", "ping", "--header", "a=b", "--url", url)
        assert (plain.returncode, plain.stdout) == (0, b"pong")
        streamed = run("call", "cli/fixed", "ping", "--stream", "--json", "--url", url)
        assert json.loads(streamed.stdout) == {"payload": "pong"}
        out, _ = service.communicate(timeout=15)
    assert service.returncode == 0
    assert out == "cli/fixed a=b ping\ncli/fixed ping\n"


def test_a_body_from_stdin_comes_back_byte_for_byte(url):
    body = bytes(range(256)) * 100
    with running("reply", "cli/echo", "--url", url) as service:
        lines_until(service.stderr, "answering cli/echo")
        assert run("call", "cli/echo", "-", "--url", url, stdin=body).stdout == body
        shown = run("call", "cli/echo", "-", "--json", "--url", url, stdin=b"\xff")
        assert json.loads(shown.stdout) == {"payload_base64": "/w=="}
        listed = run("service", "ls", "--json", "--url", url)
        assert [row["name"] for row in json.loads(listed.stdout)] == ["cli/echo"]
        assert b"cli/echo" in run("service", "ls", "--url", url).stdout
        service.send_signal(signal.SIGINT)
        service.communicate(timeout=15)
    assert service.returncode == 0
    assert run("service", "ls", "--url", url).stdout == b""


def test_sub_prints_what_pub_publishes(url):
    with running("sub", "price/**", "--count", "2", "--json", "--url", url) as subscriber:
        lines_until(subscriber.stderr, "subscribed to price/**")
        said = run("pub", "price/a", "12", "--header", "unit=eur", "--url", url)
        assert said.stdout == b"published; receivers: 1\n"
        counted = run("pub", "price/b/c", "13", "--json", "--url", url)
        assert json.loads(counted.stdout) == {"name": "price/b/c", "receivers": 1}
        out, _ = subscriber.communicate(timeout=15)
    assert [json.loads(line) for line in out.splitlines()] == [
        {"name": "price/a", "headers": {"unit": "eur"}, "payload": "12"},
        {"name": "price/b/c", "headers": {}, "payload": "13"},
    ]


def test_pub_stores_the_lines_of_stdin_in_a_topic(url):
    lines = [f"line {number}".encode() for number in range(1000)]
    command = ("pub", "cli-lines", "--topic", "--create", "--tag", "t", "--url", url)
    done = run(*command, stdin=b"\n".join(lines))
    assert (done.returncode, done.stdout) == (0, b"stored 1000 records in cli-lines\n")
    one = run(*command[:-2], "last", "--key", "k", "--json", "--url", url)
    assert json.loads(one.stdout) == {"topic": "cli-lines", "records": 1, "first": 1000}
    with polybus.connect_sync(url) as bus:
        records = bus.fetch("cli-lines")
    assert [record.payload for record in records] == [*lines, b"last"]
    assert (records[0].tag, records[-1].key) == ("t", b"k")


@contextmanager
def stdin_that_trickles(terminal: bool) -> Iterator[tuple[int, int]]:
    """The end to read and the end to write of a pipe or of a terminal."""
    reading, writing = reversed(os.openpty()) if terminal else os.pipe()
    try:
        yield reading, writing
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
@pytest.mark.parametrize("body", [(), ("-",)], ids=["lines", "body"])
def test_one_ctrl_c_ends_pub_at_once_while_it_waits_for_stdin(url, terminal, body):
    command = [POLYBUS, "pub", "cli-trickle", *body, "--topic", "--create", "--url", url]
    with (
        stdin_that_trickles(terminal) as (reading, writing),
        subprocess.Popen(command, stdin=reading, stdout=PIPE, stderr=PIPE) as process,
    ):
        try:
            os.write(writing, b"first\n")
            time.sleep(1)
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=5)
        finally:
            process.kill()
    assert (process.returncode, err.strip()) == (130, b"")
    assert out == (b"" if body else b"stored 1 record in cli-trickle\n")


def test_pub_stores_the_lines_of_a_file_and_of_a_slow_pipe(url, tmp_path):
    command = [POLYBUS, "pub", "cli-files", "--topic", "--create", "--url", url]
    (tmp_path / "lines").write_text("a\nb")
    with (tmp_path / "lines").open() as lines:
        subprocess.run(command, stdin=lines, check=True, timeout=15)
    with subprocess.Popen(command, stdin=PIPE, text=True, bufsize=0) as process:
        assert process.stdin is not None
        for part in ("c\nd", "d\n"):
            process.stdin.write(part)
            process.stdin.flush()
            time.sleep(0.5)
    assert process.returncode == 0
    with polybus.connect_sync(url) as bus:
        stored = [record.payload for record in bus.fetch("cli-files")]
    assert stored == [b"a", b"b", b"c", b"dd"]


def test_pub_into_a_missing_topic_stores_nothing_and_ends_with_code_3(url):
    done = run("pub", "cli-absent", "--topic", "--url", url, stdin=b"a\nb\n")
    assert (done.returncode, done.stdout) == (3, b"")
    assert done.stderr == b"polybus: no such topic: cli-absent (error 1202)\n"


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("call", "cli/nobody"), 3, "no such service: cli/nobody"),
        (("pub", "bad//name"), 4, "invalid name 'bad//name'"),
        (("call", "x", "--url", "zzz://here"), 2, "the scheme is none of"),
        (("call", "x", "--url", "127.0.0.1:1"), 2, "did you mean polybus://127.0.0.1:1?"),
        (("call", "x", "--url", "polybus://no.invalid"), 3, "15555: Name or service not known ("),
        (("cal", "x"), 2, "no such command 'cal', did you mean 'call'? see `polybus --help`"),
        (("call",), 2, "missing argument 'NAME'; see `polybus call --help`"),
        (("call", "x", "--url", "tcp://127.0.0.1:1"), 3, "cannot connect"),
    ],
)
def test_an_error_is_one_line_and_its_exit_code(args, code, message, url):
    done = run(*args, POLYBUS_URL=url)
    assert (done.returncode, done.stdout) == (code, b"")
    assert message in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


def test_a_call_that_is_not_answered_in_time_ends_with_code_5(url):
    # A GSB service that registers and never answers.
    port = int(url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as service:
        service.sendall(CURRENT.encode(Kind.REGISTER_REQUEST, encode_name("/cli/slow")))
        service.recv(1)
        done = run("call", "cli/slow", "--timeout", "200ms", "--url", url)
    assert done.returncode == 5


@pytest.mark.parametrize(
    "args",
    [
        ("call",),
        ("call", "x", "--timeout", "soon"),
        ("pub", "x", "--header", "novalue"),
        ("pub", "x", "--tag", "t"),
    ],
)
def test_wrong_usage_ends_with_code_2(args):
    done = run(*args)
    assert done.returncode == 2
    assert done.stderr.startswith(b"polybus %s: " % args[0].encode())
    assert done.stderr.endswith(b"; see `polybus %s --help`\n" % args[0].encode())
    assert done.stderr.count(b"\n") == 1
