"""The one question asked before anything is done for a party: may it?

Invariant: the answer depends on identity, verb and name alone, so that it can be cached until `epoch` changes.
"""

from __future__ import annotations

from typing import Literal, Protocol

from polybus.core.endpoint import Identity

Verb = Literal["register", "call", "publish", "subscribe", "produce", "consume", "declare", "admin"]


class Policy(Protocol):
    """Decides; `epoch` rises whenever an answer may have changed."""

    epoch: int

    def may(self, identity: Identity, verb: Verb, name: str) -> bool:
        """Whether `identity` may do `verb` with the shared name or pattern `name`."""


class OpenPolicy:
    """Everybody may do everything: the originals' rule, and the default on this machine."""

    epoch = 0

    def may(self, identity: Identity, verb: Verb, name: str) -> bool:
        return True
