"""`polybus node` and `polybus service` on a running node."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.cli.processes import ANY_PORT, lines_until, node, run, running


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with node("--listen", ANY_PORT, cwd=tmp_path) as (_, where):
        yield where[0]


def test_info_shows_a_node_for_people_and_for_programs(url):
    with running("reply", "demo/echo", "--url", url) as service:
        lines_until(service.stderr, "answering demo/echo")
        shown = run("node", "info", "--url", url).stdout.decode()
        found = json.loads(run("node", "info", "--json", "--url", url).stdout)
    assert "\nnative  " in shown
    assert "state            ready\n" in shown
    assert f"addresses        {url}\n" in shown
    assert (found["ready"], found["services"], found["addresses"]) == (True, 1, [url])


def test_ls_shows_the_servers_and_twins_that_a_node_knows(url):
    rows = json.loads(run("node", "ls", "--json", "--url", url).stdout)
    address = url.removeprefix("tcp://")
    assert rows == [{"wire": "zbus", "address": address, "role": "this server"}]
    assert address in run("node", "ls", "--url", url).stdout.decode()


def test_check_tells_a_node_that_takes_work_from_none(url):
    done = run("node", "check", "--url", url)
    assert (done.returncode, done.stdout) == (0, b"ready\n")
    done = run("node", "check", "--json", "--url", url)
    assert json.loads(done.stdout) == {"ready": True, "state": "ready"}
    done = run("node", "check", "--url", "polybus://127.0.0.1:1")
    assert (done.returncode, done.stdout) == (3, b"")
    assert done.stderr.startswith(
        b"polybus: cannot connect to tcp://127.0.0.1:1: connection refused (error "
    )


def test_a_node_is_asked_through_a_socket_and_through_tls(tmp_path):
    ca = trustme.CA()
    issued = ca.issue_cert("127.0.0.1")
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    tls = f"tls://127.0.0.1:0?cert={tmp_path}/cert.pem&key={tmp_path}/key.pem"
    unix = f"unix://{tmp_path}/bus.sock"
    with node("--listen", tls, "--listen", unix, "--data", "", cwd=tmp_path) as (_, where):
        secure = where[0].partition("?")[0]
        assert run("node", "check", "--url", unix).stdout == b"ready\n"
        checked = run("node", "check", "--url", f"{secure}?ca={tmp_path}/ca.pem")
        assert checked.stdout == b"ready\n", checked.stderr
        assert "no durable topics" in run("node", "info", "--url", unix).stdout.decode()


def test_an_address_without_a_scheme_is_told_what_was_meant():
    for url in ("127.0.0.1:15555", "http://127.0.0.1:15555"):
        done = run("node", "check", "--url", url)
        assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
        assert b"did you mean polybus://127.0.0.1:15555?" in done.stderr
    assert b"another wire" not in run("node", "info", "--url", "memory:x").stderr


def test_what_is_no_node_of_ours_is_said():
    done = run("node", "info", "--url", "gsb://127.0.0.1:7464")
    assert (done.returncode, b"is another wire" in done.stderr) == (2, True)
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(10)
        with running(
            "node", "info", "--url", f"polybus://127.0.0.1:{other.getsockname()[1]}"
        ) as asking:
            peer, _ = other.accept()
            peer.recv(4096)
            peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhi\nho")
            assert asking.wait(10) == 1
            peer.close()
            assert asking.stderr is not None
            said = "polybus: /api/v1/overview was answered with 200: hi ho (error 1102)\n"
            assert asking.stderr.read() == said


def test_every_claim_on_a_name_is_listed_with_who_answers(url):
    gsb = url.replace("tcp://", "gsb://")
    with running("reply", "demo/echo", "--url", url) as first:
        lines_until(first.stderr, "answering demo/echo")
        with running("reply", "demo/echo", "--url", gsb) as second:
            lines_until(second.stderr, "answering demo/echo")
            rows = run("service", "ls", "--url", url).stdout.decode().splitlines()
    cells = [row.split()[:4] for row in rows]
    assert cells == [
        ["NAME", "WIRE", "THERE", "ANSWERS"],
        ["demo/echo", "native", "demo/echo", "yes"],
        ["demo/echo/**", "gsb", "/demo/echo/**", "no"],
    ]
