"""Ctrl-C while the program loads."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest

from polybus.cli.loading import Loading

# Sends Ctrl-C at the moment when a module is looked for.
STRUCK = """
import os, signal, sys

class Strike:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == struck:
            os.kill(os.getpid(), signal.SIGINT)

# What a shell's `&` or nohup left to the tests is not left to it.
signal.signal(signal.SIGINT, signal.SIG_IGN if {ignored} else signal.default_int_handler)
struck = sys.argv.pop()
sys.meta_path.insert(0, Strike)
from polybus.__main__ import main
main()
"""


def strike(module: str, *verb: str, ignored: bool = False) -> tuple[int, str, str]:
    command = [sys.executable, "-c", STRUCK.format(ignored=ignored), *verb, module]
    done = subprocess.run(command, capture_output=True, text=True, timeout=15)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "module", ["polybus.cli.main", "click", "polybus.errors", "polybus.cli.errors"]
)
def test_ctrl_c_while_modules_load_ends_the_program_with_130_and_no_word(module):
    assert strike(module, "errors", "ls") == (130, "", "")


def test_who_started_it_to_ignore_ctrl_c_is_obeyed():
    code, out, _ = strike("click", "errors", "ls", ignored=True)
    assert (code, bool(out)) == (0, True)


def test_what_ctrl_c_did_before_it_does_again_after():
    def own(number: int, frame: Any) -> None:
        raise AssertionError

    before = signal.signal(signal.SIGINT, own)
    try:
        with Loading():
            assert signal.getsignal(signal.SIGINT) is own
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with Loading():
            assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_package_runs_as_a_module():
    command = [sys.executable, "-m", "polybus", "version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=15, check=True)
    assert done.stdout.startswith("polybus ")
