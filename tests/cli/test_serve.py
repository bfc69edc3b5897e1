"""`polybus serve` as a process: what it prints, how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from polybus.protocols.native import wire
from tests.cli.processes import ANY_PORT, POLYBUS, node, running
from tests.protocols.native.room import HELLO


def refused(*args: str, cwd: Path, **env: str) -> str:
    """The stderr of a `serve` that must not start: exit code 2 and one line."""
    with running("serve", *args, cwd=cwd, **env) as process:
        out, err = process.communicate(timeout=15)
    assert process.returncode == 2, (out, err)
    assert out == ""
    assert err.startswith("polybus: ")
    assert err.count("\n") == 1
    return err


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_node_with_code_0_and_frees_its_addresses(number, tmp_path):
    path = tmp_path / "node.sock"
    with node("--listen", ANY_PORT, "--listen", f"unix:{path}", cwd=tmp_path) as (process, where):
        assert where[1] == f"unix://{path}"
        port = port_of(where[0])
        with socket.create_connection(("127.0.0.1", port)):
            process.send_signal(number)
            out, err = process.communicate(timeout=15)
    assert (process.returncode, out, err) == (0, "", "")
    assert not path.exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def begin_a_call_that_nobody_ends(service: socket.socket, caller: socket.socket) -> None:
    service.sendall(HELLO + wire.encode(wire.REGISTER, 2, "never"))
    heard = b""
    while wire.encode(wire.OK, 2) not in heard:
        heard += service.recv(4096)
    caller.sendall(HELLO + wire.encode(wire.CALL, 2, "never"))
    while b"never" not in heard:
        heard += service.recv(4096)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_cuts_the_drain_short_and_says_what_was_given_up(number, tmp_path):
    flags = ("--listen", ANY_PORT, "--data", "")
    with node(*flags, cwd=tmp_path, POLYBUS_LIMITS_DRAIN="60s") as (process, where):
        address = ("127.0.0.1", port_of(where[0]))
        with (
            socket.create_connection(address, 15) as service,
            socket.create_connection(address, 15) as caller,
        ):
            begin_a_call_that_nobody_ends(service, caller)
            process.send_signal(number)
            assert process.stderr is not None
            assert "waiting up to 54 s for 1 calls" in process.stderr.readline()
            process.send_signal(number)
            _, err = process.communicate(timeout=15)
    assert process.returncode == 0
    assert "1 calls were given up" in err


def test_port_0_takes_a_free_port_and_prints_it(tmp_path):
    with node("--listen", ANY_PORT, cwd=tmp_path) as (_, where):
        assert where[0].startswith("tcp://127.0.0.1:")
        socket.create_connection(("127.0.0.1", port_of(where[0]))).close()


def test_gsb_url_adds_a_listener_pinned_to_gsb(tmp_path):
    with node("--listen", ANY_PORT, cwd=tmp_path, GSB_URL=ANY_PORT) as (_, where):
        assert [address.split(":")[0] for address in where] == ["tcp", "gsb+tcp"]


def test_a_busy_port_is_one_line_and_code_2(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        url = f"tcp://127.0.0.1:{busy.getsockname()[1]}"
        message = refused("--listen", url, cwd=tmp_path)
    assert "Address already in use; does a node run there already?" in message


def test_a_second_busy_listener_leaves_nothing_of_the_first_behind(tmp_path):
    path = tmp_path / "node.sock"
    with socket.create_server(("127.0.0.1", 0)) as busy:
        url = f"tcp://127.0.0.1:{busy.getsockname()[1]}"
        refused("--listen", f"unix:{path}", "--listen", url, cwd=tmp_path)
    assert not path.exists()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:1", "bad address"),
        ("tcp://127.0.0.1:99999", "bad address"),
        ("zzz+tcp://127.0.0.1:0", "unknown protocol 'zzz'"),
        ("tls://127.0.0.1:0", "needs cert"),
        ("tcp://127.0.0.1:0?cert=/absent.pem", "needs cert"),
        ("tcp://127.0.0.1:0?ca=/absent.pem", "needs cert"),
        ("tls://127.0.0.1:0?cert=/absent.pem&key=/absent.key", "TLS file not found: /absent.pem"),
        ("unix:relative.sock", "absolute"),
        ("unix:/absent-folder/node.sock", "No such file or directory"),
    ],
)
def test_a_bad_address_is_one_line_and_code_2(url, message, tmp_path):
    assert message in refused("--listen", url, cwd=tmp_path)


def test_a_plain_file_in_the_place_of_a_socket_is_never_deleted(tmp_path):
    path = tmp_path / "precious"
    path.write_text("kept")
    assert "no socket" in refused("--listen", f"unix:{path}", cwd=tmp_path)
    assert path.read_text() == "kept"


def test_an_unreadable_config_file_is_one_line_and_code_2(tmp_path):
    assert "cannot read" in refused("--config", str(tmp_path / "absent.toml"), cwd=tmp_path)


def test_a_misspelt_key_is_one_line_and_code_2(tmp_path):
    (tmp_path / "p.toml").write_text("[limits]\nmax_fram = 1\n")
    assert "did you mean limits.max_frame" in refused("--config", "p.toml", cwd=tmp_path)


def test_check_reads_the_configuration_and_starts_nothing(tmp_path):
    path = tmp_path / "node.sock"
    with running("serve", "--check", "--listen", f"unix:{path}", cwd=tmp_path) as process:
        out, _ = process.communicate(timeout=15)
    assert (process.returncode, out) == (0, "configuration is good\n")
    assert list(tmp_path.iterdir()) == []
    assert "bad address" in refused("--check", "--listen", "nowhere", cwd=tmp_path)


def test_what_a_peer_did_wrong_is_logged_once_as_json_with_its_connection(tmp_path):
    with node("--listen", ANY_PORT, cwd=tmp_path) as (process, where):
        with socket.create_connection(("127.0.0.1", port_of(where[0]))) as peer:
            peer.sendall(b"\xff" * 64)
            assert peer.recv(1) == b""
        process.terminate()
        _, err = process.communicate(timeout=15)
    lines = [json.loads(line) for line in err.splitlines()]
    assert [line["level"] for line in lines] == ["warning"]
    assert isinstance(lines[0]["connection"], int)
    assert lines[0]["peer"].startswith("127.0.0.1:")


def test_a_stale_socket_file_is_replaced(tmp_path):
    path = tmp_path / "node.sock"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))
    with node("--listen", f"unix:{path}", cwd=tmp_path):
        assert stat.S_ISSOCK(path.stat().st_mode)


def test_a_data_folder_in_use_is_one_line_and_code_2(tmp_path):
    with node("--listen", ANY_PORT, "--data", "data", cwd=tmp_path):
        message = refused("--listen", ANY_PORT, "--data", "data", cwd=tmp_path)
    assert "data" in message


def on_a_terminal(*args: str, cwd: Path) -> str:
    """What `serve` shows somebody who starts it by hand and ends it with Ctrl-C once it is ready."""
    near, far = os.openpty()
    command = [POLYBUS, "serve", *args]
    process = subprocess.Popen(command, cwd=cwd, stdin=far, stdout=far, stderr=far)
    os.close(far)
    shown = b""
    try:
        with contextlib.suppress(OSError):  # how the end of the other side shows here
            while data := os.read(near, 4096):
                shown += data
                if b"Ctrl-C stops the node" in data:
                    process.send_signal(signal.SIGINT)
        process.wait(15)
    finally:
        process.kill()
        process.wait()
        os.close(near)
    return shown.decode()


def test_who_starts_a_node_by_hand_is_told_where_the_monitor_is(tmp_path):
    shown = on_a_terminal("--listen", "tcp://0.0.0.0:0", "--data", "", cwd=tmp_path)
    port = re.search(r"listening tcp://0\.0\.0\.0:(\d+)", shown)
    assert port is not None, shown
    assert f"the monitor is at http://127.0.0.1:{port[1]}/; Ctrl-C stops the node" in shown


def test_at_a_terminal_a_folder_in_use_comes_with_its_own_advice(tmp_path):
    with node("--listen", ANY_PORT, "--data", "data", cwd=tmp_path):
        shown = on_a_terminal("--listen", ANY_PORT, "--data", "data", cwd=tmp_path)
    assert "hint: Stop the other node" in shown


def test_at_a_terminal_a_busy_port_comes_with_its_own_advice(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        url = f"tcp://127.0.0.1:{busy.getsockname()[1]}"
        shown = on_a_terminal("--listen", url, "--data", "", cwd=tmp_path)
    assert "hint: Name another address with --listen" in shown


def test_a_data_folder_that_is_a_file_is_one_line_and_code_2(tmp_path):
    (tmp_path / "data").write_text("kept")
    assert "data" in refused("--listen", ANY_PORT, "--data", "data", cwd=tmp_path)
    assert (tmp_path / "data").read_text() == "kept"


def test_without_a_data_folder_nothing_is_written(tmp_path):
    with node("--listen", ANY_PORT, "--data", "", cwd=tmp_path) as (process, _):
        process.terminate()
        process.communicate(timeout=15)
    assert process.returncode == 0
    assert list(tmp_path.iterdir()) == []
