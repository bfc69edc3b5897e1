"""`polybus pipeline` as a user runs it: results on the output, one line on the error output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def pipeline(*args: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("polybus")
    return subprocess.run(
        [str(program), "pipeline", *args], capture_output=True, text=True, timeout=240
    )


def test_a_pipeline_prints_what_it_did_and_nothing_else(served, tmp_path):
    topic = served.topic(b"1", b"2")
    done = pipeline("archive", topic, "--lake", str(tmp_path), "--once", "--url", served.url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "archived: 2\n", "")


def test_what_is_wrong_is_one_line_without_a_word_of_java(served, tmp_path):
    args = ("archive", "nowhere", "--lake", str(tmp_path), "--once", "--url", served.url)
    done = pipeline(*args, "--master", "local[1]")
    assert done.stderr == "polybus: no such topic: nowhere (error 1202)\n"
    assert (done.returncode, done.stdout) == (3, "")
