"""What SIGHUP does: the settings are read again, and who may do what goes by the new ones.

Invariant: settings that are wrong in any part change nothing; whatever else differs from the running node is named
in the log, since it needs a restart. Nobody who may still do what they do notices anything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from polybus.errors import PolybusError
from polybus.server.config import Config
from polybus.server.load import SETTINGS
from polybus.server.node import Node

log = logging.getLogger("polybus.reload")

TAKEN_OVER = ("policy.", "log.level")


class Reload:
    """Calling it reads the settings again; `read` puts them together as they were at the start."""

    def __init__(self, node: Node, read: Callable[[], Config]) -> None:
        self._node = node
        self._read = read

    def __call__(self) -> None:
        node = self._node
        try:
            config = self._read()
            node.take_policy(config.policy)
        except PolybusError as exc:
            log.error("the settings were read again and refused, the old ones stay: %s", exc.text)
            return
        old = node.config
        node.config = replace(
            old, policy=config.policy, log=replace(old.log, level=config.log.level)
        )
        logging.getLogger("polybus").setLevel(config.log.level.upper())
        changed = [key for key in SETTINGS if _value(old, key) != _value(config, key)]
        taken = [key for key in changed if key.startswith(TAKEN_OVER)]
        waiting = [key for key in changed if not key.startswith(TAKEN_OVER)]
        log.info("the settings were read again: %s", ", ".join(taken) or "nothing to take over")
        if waiting:
            log.warning("these changes need a restart: %s", ", ".join(waiting))


def _value(config: Config, key: str) -> object:
    found: object = config
    for part in key.split("."):
        found = getattr(found, part)
    return found
