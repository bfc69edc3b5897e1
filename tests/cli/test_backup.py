"""`polybus backup` and `restore` on a folder whose node runs."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.processes import ANY_PORT, node, run


def test_a_backup_of_a_running_node_is_restored_and_served(tmp_path: Path):
    with node("--listen", ANY_PORT, "--data", str(tmp_path / "data")) as (_, where):
        url = {"POLYBUS_URL": where[0]}
        lines = b"".join(b"line %d\n" % n for n in range(50))
        assert run("pub", "events", "--topic", "--create", stdin=lines, **url).returncode == 0
        made = run("backup", str(tmp_path / "data"), str(tmp_path / "backup"), "--json")
        assert json.loads(made.stdout)["topics"][0]["end"] == 50
    done = run("restore", str(tmp_path / "backup"), str(tmp_path / "new"))
    assert b"1 topics" in done.stdout
    assert run("topic", "verify", str(tmp_path / "new")).returncode == 0
    with node("--listen", ANY_PORT, "--data", str(tmp_path / "new")) as (_, where):
        listed = run("topic", "ls", "--json", POLYBUS_URL=where[0])
        assert json.loads(listed.stdout)[0]["end"] == 50


def test_a_target_that_is_not_empty_is_refused(tmp_path: Path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "version").write_text("1\n")
    refused = run("backup", str(tmp_path / "data"), str(tmp_path))
    assert refused.returncode == 4
    assert b"is not empty" in refused.stderr
    nothing = run("backup", str(tmp_path), str(tmp_path / "x"))
    assert nothing.returncode == 1
    assert b"no data folder" in nothing.stderr
