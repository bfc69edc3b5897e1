"""The node as a whole: configuration, assembly, running, draining, health.

Invariant: this is the only room that knows all the others; none of them imports it.
"""

from __future__ import annotations

from polybus.server.config import T2, Config, Gsb, Limits, Log, Rmb
from polybus.server.health import Health
from polybus.server.load import Effective, load
from polybus.server.node import Node

__all__ = ["T2", "Config", "Effective", "Gsb", "Health", "Limits", "Log", "Node", "Rmb", "load"]
