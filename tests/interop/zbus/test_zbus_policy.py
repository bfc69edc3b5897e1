"""The published Python client of Zbus gets 403 for what it may not, and goes on on the same connection."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

from tests.cli.processes import node
from tests.interop.zbus.build import install_zbuspy

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

# As in zbuspy_peer.py: it was written for an older Python.
SCRIPT: Final = """
import inspect, json, os, sys
sys.path.insert(0, sys.argv[1])
loads = json.loads
json.loads = lambda text, encoding="", **options: loads(text, **options)
inspect.getargspec = inspect.getfullargspec
import zbus
client = zbus.MqClient(sys.argv[2])
for ask, topic in ((client.declare, "open"), (client.produce, "open"), (client.produce, "shut")):
    message = zbus.Message()
    message.topic = topic
    message.token = sys.argv[3]
    answer = ask(message)
    if ask == client.produce:
        print(topic, answer.status, flush=True)
os._exit(0)  # its heartbeat would go on
"""


@pytest.mark.parametrize(("token", "allowed"), [("s3cret", "open"), ("", "nothing")])
def test_the_published_client_gets_403(token, allowed, tmp_path):
    (tmp_path / "token").write_text("s3cret")
    rules = 'rules = ["token:shop may declare produce on open"]\ntokens = ["shop file:token"]\n'
    (tmp_path / "polybus.toml").write_text("[policy]\n" + rules)
    flags = ("--config", "polybus.toml", "--listen", "tcp://127.0.0.1:0", "--data", "data")
    with node(*flags, cwd=tmp_path) as (_process, lines):
        command = [sys.executable, "-c", SCRIPT, str(install_zbuspy()), lines[0][6:], token]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    expected = [f"{topic} {200 if topic == allowed else 403}" for topic in ("open", "shut")]
    assert done.stdout.splitlines() == expected, done.stderr
